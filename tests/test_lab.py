"""`make lab` opens the start page, on this machine only, with or without a browser."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READY = ROOT / ".venv" / "ready"


@pytest.fixture
def lab(tmp_path):
    """The address that `make lab` prints, and what it printed before; stopped afterwards."""
    if not READY.exists():
        pytest.skip("needs the environment that `make test` builds")
    log = tmp_path / "log"
    variables = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    environment = {**os.environ, **{name: str(tmp_path / name) for name in variables}}
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        environment.pop(name, None)
    with log.open("w") as out:
        process = subprocess.Popen(
            ["make", "lab"],
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield wait_for_address(process, log), log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself: the test says why
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_address(process: subprocess.Popen, log: Path) -> str:
    """The first address with a token in the log; fails with the log if the command ends."""
    for _ in range(600):
        found = re.search(r"http://\S+\?token=\w+", log.read_text())
        if found:
            return found.group()
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_lab_serves_the_start_page(lab):
    address, printed = lab
    assert re.match(r"http://127\.0\.0\.1:\d+/lab/tree/start\.ipynb\?token=", address)
    assert "flashkit doctor" in printed
    assert "No nbgrader_config.py file found" not in printed
    with urllib.request.urlopen(address, timeout=30) as page:
        assert page.status == 200
        assert "JupyterLab" in page.read().decode()
    base, token = re.match(r"(.+)/lab/tree/start\.ipynb\?token=(\w+)", address).groups()
    with urllib.request.urlopen(f"{base}/api/contents/?token={token}", timeout=30) as reply:
        names = {entry["name"] for entry in json.load(reply)["content"]}
    assert {"start.ipynb", "01_worked_example"} <= names
