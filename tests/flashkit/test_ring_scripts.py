"""The ring's benchmark and the example of its docs run, here with one process."""

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

ROOT = Path(__file__).parents[2]


@pytest.fixture
def one_process(monkeypatch):
    """What torchrun tells a process that is alone; port 0 is any that is free."""
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for name, value in (rank | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
        monkeypatch.setenv(name, value)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_benchmark(one_process, monkeypatch, tmp_path):
    path = tmp_path / "ring.csv"
    sizes = "--lengths 32 48 --heads 4 --kv-heads 2 --dim 16 --dtype float32 --rounds 1"
    arguments = f"--device cpu {sizes} --csv {path}".split()
    monkeypatch.setattr(sys, "argv", ["ring.py", *arguments])
    runpy.run_path(str(ROOT / "benchmarks" / "ring.py"), run_name="__main__")
    comment, *lines = path.read_text().splitlines()
    rows = list(csv.DictReader(lines))
    assert comment.startswith("# ")
    assert [(row["T"], row["direction"]) for row in rows] == [
        (t, direction) for t in ("32", "48") for direction in ("forward", "backward")
    ]
    for row in rows:
        assert max(float(row["error"]), float(row["second_error"])) < 1e-5


def test_the_example_of_the_docs(one_process, capsys):
    (example,) = re.findall(r"```python\n(.+?)```", (ROOT / "docs" / "ring.md").read_text(), re.S)
    names = {}
    exec(example, names)
    assert names["whole"].shape == (1, 8, 1024, 64)
    assert names["q"].grad.isfinite().all()


def test_the_measured_table_of_the_docs():
    page = (ROOT / "docs" / "ring.md").read_text()
    (name,) = re.findall(r"benchmarks/results/\S+ring-step\.csv", page)
    rows = list(csv.DictReader((ROOT / name).read_text().splitlines()[1:]))
    table = re.findall(r"^\| (\d+)k \| (\d) \| \d+k \| (.+) \|$", page, re.M)
    assert len(table) == 8
    for length, ranks, numbers in table:
        found = []
        for direction in ("forward", "backward"):
            key = (str(1024 * int(length)), ranks, direction)
            own = [row for row in rows if (row["T"], row["ranks"], row["direction"]) == key]
            slow = max(own, key=lambda row: float(row["ms"]))
            found += [slow["hop_ms"], slow["needed_gbs"], slow["efficiency"]]
        said = [x.strip() for x in numbers.split("|")]
        for text, number in zip(said, found, strict=True):
            assert not text or float(text) == pytest.approx(float(number), rel=0.05)
