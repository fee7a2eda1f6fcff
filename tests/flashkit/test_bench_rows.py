"""The rows of the bench: the file that keeps them, the targets, the tables, the command."""

import json
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from fake_gpu import FakeGpu, contestant

from flashkit import cli
from flashkit.bench import ahead, command, machine, modes, targets
from flashkit.bench.implementations import Implementation
from flashkit.bench.machine import Ceilings, Machine
from flashkit.bench.modes import MODES, Group, Mode
from flashkit.bench.report import columns, rendered
from flashkit.bench.rows import ROTATED, SEPARATE, Row, best_peer, compared, read, written
from flashkit.bench.runner import steps
from flashkit.bench.shapes import Shape, backward, decode, grouped, prefill, short
from flashkit.bench.timing import Settings

K = 1024
RATES = Ceilings(700.0, 50.0, 4000.0)
HERE = Machine("2026-11-29", "NVIDIA H200", "580.1", "torch 2.11.0, cudnn 91900", "flashkit bench")
OURS = {"triton", "hopper", "paged", "contiguous", "teaching"}


def row(shape, name, ms, **more):
    numbers = {"ms": ms, "low": 0.9 * ms, "high": 1.2 * ms, "samples": 9, "error": 1e-3}
    return Row(shape, name, name in OURS, **({"measure": SEPARATE} | numbers | more))


def test_the_file_gives_the_rows_back(tmp_path):
    rows = [
        row(prefill(128, 16 * K), "cudnn", 7.25),
        row(prefill(64, K, causal=False), "hopper", 0.5, note='a "note", with commas'),
        row(prefill(64, 16 * K, window=K), "triton", 1.5),
        row(decode(1, K, page=16), "paged", 0.0625, measure=ROTATED),
        Row(decode(1, K), "flash", False, "call", "skipped", "out of memory"),
    ]
    rows = compared(rows, RATES)
    path = tmp_path / "rows.csv"
    path.write_text(written(HERE, RATES, rows))
    comments, rates, again = read(path)
    assert comments[0] == HERE.line()
    assert "driver 580.1" in comments[0]
    assert rates == RATES
    for got, want in zip(again, rows, strict=True):
        for name, value in vars(want).items():
            near = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            assert getattr(got, name) == near


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "# one\n# two\na,b\n"])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no file of flashkit bench"):
        read(path)


def test_a_line_of_ceilings_must_be_one():
    assert Ceilings.parse(RATES.line()) == RATES
    with pytest.raises(ValueError, match="three rates"):
        Ceilings.parse("copy 3 GB/s")
    assert (RATES.tflops("bfloat16"), RATES.tflops("float32")) == (700.0, 50.0)


def test_the_best_peer_is_right_and_somebody_else():
    shape = prefill(128, K)
    mine = row(shape, "triton", 2.0)
    rows = [
        mine,
        row(shape, "hopper", 0.5),
        row(shape, "cudnn", 3.0),
        row(shape, "flash", 1.0, status="wrong"),
        row(shape, "flex", 0.1, measure=ROTATED),
        row(prefill(64, K), "flex", 0.1),
    ]
    assert best_peer(mine, rows).implementation == "cudnn"
    assert best_peer(rows[2], rows) is None


def verdicts(rows, name):
    return [v for v in targets.judged(rows, RATES) if v.target == name]


@pytest.mark.parametrize(("ms", "word"), [(7.0, "aim"), (10.0, "pass"), (11.0, "gap")])
def test_the_worst_shape_decides(ms, word):
    rows = []
    for t in (8 * K, 16 * K):
        for causal in (True, False):
            shape = prefill(128, t, causal=causal)
            mine = ms if (t, causal) == (8 * K, False) else 1.0
            speeds = {"cudnn": 8.0, "flash": 14.0, "triton": mine}
            rows += [row(shape, name, speed) for name, speed in speeds.items()]
    cudnn, flash = verdicts(rows, "forward, Triton, D128, T 8k to 16k")
    assert cudnn.value == pytest.approx(8.0 / ms)
    assert cudnn.word == word
    assert cudnn.where == prefill(128, 8 * K, causal=False).label
    assert flash.bar.against == "flash"
    assert flash.value == pytest.approx(14.0 / ms)


def test_a_missing_row_is_not_measured_and_says_why():
    shape = prefill(128, 4 * K)
    skipped = Row(shape, "hopper", True, "call", "skipped", "not served: no Hopper here")
    one = verdicts([skipped], "forward, Gluon, D128, T 4k to 32k")[0]
    assert (one.word, one.value) == ("not measured", None)
    assert "not served: no Hopper here" in one.where
    one = verdicts([row(shape, "hopper", 1.0)], "forward, Gluon, D128, T 4k to 32k")[0]
    assert one.where.endswith("no time of cudnn")
    wrong = row(shape, "hopper", 1.0, status="wrong", note="wrong by 1")
    rows = [wrong, row(shape, "cudnn", 9.0)]
    assert verdicts(rows, "forward, Gluon, D128, T 4k to 32k")[0].word == "not measured"
    assert targets.judged([], RATES) == []


def test_yardsticks():
    wide, narrow = prefill(128, 16 * K), prefill(128, 16 * K, window=K)
    page, cache = decode(16, 8 * K, page=64), decode(16, 8 * K)
    rows = [
        row(wide, "hopper", 6.0), row(narrow, "hopper", 1.0), row(narrow, "flex", 1.5),
        row(page, "paged", 2.0), row(page, "contiguous", 1.0),
        row(cache, "triton", cache.bytes / 3000e6), row(cache, "cudnn", 5.0),
    ]  # fmt: skip
    of = {(v.target, v.bar.against): (v.value, v.word) for v in targets.judged(rows, RATES)}
    name = "window 1024, D64 and D128, T 16k"
    assert of[name, "full causal"] == (6.0, "aim")
    assert of[name, "flex"] == (1.5, "pass")
    assert of["paged decode, page 64", "contiguous"] == (0.5, "gap")
    assert of["decode B16, S 8k", "copy rate"] == (pytest.approx(0.75), "gap")
    rate = wide.flops / 6e-3 / 1e12 / RATES.matmul
    assert of["forward, Gluon, D128, T 4k to 32k", "matmul rate"] == (rate, "below the aim")


def test_another_backend_counts_where_the_first_is_not_served():
    narrow = prefill(64, 16 * K, window=K)
    rows = [
        Row(narrow, "hopper", True, "call", "skipped", "not served"),
        row(narrow, "triton", 1.0), row(narrow, "flex", 2.0),
    ]  # fmt: skip
    _, flex = verdicts(rows, "window 1024, D64 and D128, T 16k")
    assert (flex.value, flex.word) == (2.0, "pass")


def test_a_bar_without_numbers_only_reports():
    shape = MODES["quick"].only("fp32").groups[0].shapes[0]
    rows = [row(shape, "triton", 1.0), row(shape, "efficient", 2.0)]
    (only,) = verdicts(rows, "float32 (ieee), D64")
    assert (only.value, only.word) == (2.0, "report")


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_a_mode_has_all_that_the_targets_ask_for(mode):
    planned = [
        row(shape, implementation.name, 1.0, measure=measure)
        for group in MODES[mode].groups
        for shape in group.shapes
        for implementation in group.implementations
        for measure in group.measures
    ]
    asked = targets.judged(planned, RATES)
    assert {v.target for v in asked} == {target.name for target in targets.TARGETS}
    assert [v for v in asked if v.word == "not measured"] == []
    keys = [(r.shape, r.implementation, r.measure) for r in planned]
    assert len(keys) == len(set(keys)), "nothing is measured twice"
    assert steps(MODES[mode]) == len(keys)


def test_shapes_say_what_they_are():
    assert prefill(128, 16 * K).label == "D128 causal B2 H16 T16k"
    assert prefill(64, 512, causal=False).label == "D64 no mask B64 H32 T512"
    assert prefill(64, 2 * K, window=K).label == "D64 causal window 1024 B16 H32 T2k"
    assert grouped(8 * K, True).label == "D128 causal B1 H64/8 T8k"
    shape = backward(grouped(8 * K, False))
    assert shape.label == "D128 no mask B1 H64/8 T8k"
    assert shape.flops == 2.5 * grouped(8 * K, False).flops
    assert not shape.decodes
    assert decode(1, 512 * K, page=16).label == "D128 B1 H32/8 S512k page 16"
    assert [short(n) for n in (1023, 1500, 2048)] == ["1023", "1500", "2k"]
    with_tokens = prefill(256, 64 * K)
    assert (with_tokens.batch, with_tokens.q_heads) == (1, 8)


def test_columns_align():
    assert columns([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"


# The command.


def fake_run(monkeypatch, gpu, *, spoil=None, spoil_peer=None):
    """Let the command believe in a GPU, with one small mode and one contestant of each side."""
    shape = Shape("decode", 1, 2, 1, 1, 8, 16, dtype="float32")
    crowd = (
        contestant(gpu, "cudnn", 4.0, spoil=spoil_peer),
        contestant(gpu, "triton", 2.0, True, spoil),
    )
    mode = Mode((Group((shape, replace(shape, s=9)), crowd),), Settings(50, (2, 4)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command.runtime, "interpreting", lambda: False)
    monkeypatch.setitem(modes.MODES, "quick", mode)
    monkeypatch.setattr(command, "Gpu", lambda: gpu)
    monkeypatch.setattr(ahead, "pool", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(command, "ceilings", lambda gpu: RATES)
    monkeypatch.setattr(command, "here", lambda words: replace(HERE, command=words))


def run(capsys, *arguments):
    code = cli.main(["bench", "--quick", *arguments])
    return code, *capsys.readouterr()


def test_the_command_keeps_the_rows_and_prints_the_tables(monkeypatch, capsys, tmp_path):
    fake_run(monkeypatch, FakeGpu())
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys)
    assert code == 0
    path = tmp_path / "benchmarks/results/2026-11-29-h200-quick.csv"
    comments, rates, rows = read(path)
    assert comments[0].endswith("flashkit bench --quick")
    assert (rates, len(rows)) == (RATES, 4)
    assert {r.ratio for r in rows} == {2.0, None}
    assert HERE.gpu in out
    assert "decode: one call at a time, behind a flushed cache" in out
    assert "2/4" in err
    assert "4 rows in" in err


def test_json_is_for_programs(monkeypatch, capsys, tmp_path):
    fake_run(monkeypatch, FakeGpu())
    code, out, _ = run(capsys, "--json", "--to", str(tmp_path / "x" / "rows.csv"))
    report = json.loads(out)
    assert code == 0
    assert len(report["rows"]) == 4
    assert report["ceilings"]["copy_gbs"] == 4000.0
    assert report["rows"][0]["shape"]["path"] == "decode"
    assert len(read(tmp_path / "x" / "rows.csv")[2]) == 4


def test_a_wrong_result_of_ours_is_exit_code_1(monkeypatch, capsys, tmp_path):
    fake_run(monkeypatch, FakeGpu(), spoil=lambda o: o + 1)
    code, out, _ = run(capsys, "--to", str(tmp_path / "rows.csv"))
    assert code == 1
    assert "triton, 1 row wrong: wrong by" in out


def test_a_wrong_result_of_a_peer_is_theirs(monkeypatch, capsys, tmp_path):
    fake_run(monkeypatch, FakeGpu(), spoil_peer=lambda o: o + 1)
    code, out, _ = run(capsys, "--to", str(tmp_path / "rows.csv"))
    assert code == 0
    assert "cudnn, 1 row wrong: wrong by" in out


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def sign(request):
    """A signal that is heard here, also where a shell in the background has it ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = signal.signal(request.param, usual[request.param])
    yield request.param
    signal.signal(request.param, before)


def test_an_interrupt_keeps_the_rows_so_far(monkeypatch, capsys, tmp_path, sign):
    gpu = FakeGpu()
    fake_run(monkeypatch, gpu)
    before = signal.getsignal(sign)
    gpu.release = lambda: signal.raise_signal(sign)
    code, _, err = run(capsys, "--to", str(tmp_path / "rows.csv"))
    assert code == 130
    assert signal.getsignal(sign) is before
    assert len(read(tmp_path / "rows.csv")[2]) == 2
    assert "Traceback" not in err


def test_a_gpu_that_dies_leaves_the_rows_so_far(monkeypatch, capsys, tmp_path):
    gpu = FakeGpu()
    fake_run(monkeypatch, gpu)

    def die():
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nFor debugging ...")

    gpu.release = die
    code, _, err = run(capsys, "--to", str(tmp_path / "rows.csv"))
    assert code == 1
    assert "the GPU stopped: CUDA error: an illegal memory access; these are" in err
    assert len(read(tmp_path / "rows.csv")[2]) == 2


def test_no_gpu_is_said_in_one_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "needs an NVIDIA GPU" in err
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_is_no_gpu(monkeypatch, capsys):
    fake_run(monkeypatch, FakeGpu())
    monkeypatch.setattr(command.runtime, "interpreting", lambda: True)
    code, _, err = run(capsys)
    assert code == 2
    assert "unset" in err


def test_a_part_that_the_mode_has_not(monkeypatch, capsys):
    fake_run(monkeypatch, FakeGpu())
    code, _, err = run(capsys, "--only", "paged")
    assert code == 2
    assert "the mode quick has no shapes of --only paged" in err


def test_a_place_that_cannot_be_written_is_known_before_the_run(monkeypatch, capsys, tmp_path):
    gpu = FakeGpu()
    fake_run(monkeypatch, gpu)
    code, _, err = run(capsys, "--to", str(tmp_path))
    assert code == 2
    assert f"cannot write {tmp_path}" in err
    assert gpu.log == []


def test_an_unknown_part_names_the_known(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "--only", "sideways"])
    assert stopped.value.code == 2
    assert "forward" in capsys.readouterr().err


def test_everybody_compiles_before_the_clock_runs(monkeypatch, capsys, tmp_path):
    gpu = FakeGpu()
    fake_run(monkeypatch, gpu)
    _, _, err = run(capsys, "--to", str(tmp_path / "rows.csv"))
    assert gpu.log[:4] == ["cudnn", "cudnn", "triton", "triton"], "each on both shapes"
    assert gpu.log.index("flush") > 4
    assert "1/2  " in err
    assert "2/2 compiled in" in err
    names = {implementation.name for implementation, _ in ahead.tasks(MODES["full"])}
    assert {"flex", "triton", "hopper", "paged"} <= names
    assert not {"cudnn", "flash", "efficient", "xformers"} & names


def test_who_cannot_compile_is_left_to_the_run():
    def make(shape):
        raise RuntimeError("no")

    shapes = (decode(1, 8), decode(1, 16))
    assert ahead.call_once(Implementation("a", make), shapes, "cpu") is None


def test_the_tasks_can_be_sent_to_another_process():
    for mode in MODES.values():
        assert pickle.loads(pickle.dumps(ahead.tasks(mode))) == ahead.tasks(mode)


def test_the_default_file_says_when_where_and_what():
    path = command.default_path(replace(HERE, gpu="NVIDIA A100-SXM4 80GB"), "full", "decode")
    assert str(path) == "benchmarks/results/2026-11-29-a100-sxm4-80gb-full-decode.csv"


def test_tables_show_what_was_skipped_and_why():
    shape = prefill(128, K)
    rows = [row(shape, "cudnn", 1.0), row(shape, "triton", 2.0)]
    for other in (shape, prefill(64, K)):
        rows.append(Row(other, "hopper", True, "call", "skipped", "not served: no"))
    text = rendered(HERE, RATES, compared(rows, RATES), targets.judged(rows, RATES))
    assert f"{shape.flops / 1e9:.0f}" in text
    assert "0.50" in text
    assert "hopper, 2 rows skipped: not served: no" in text


def test_ceilings_are_measured_like_everything_else(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr(machine, "MATMUL", {"bfloat16": 8, "float32": 4})
    monkeypatch.setattr(machine, "COPY_BYTES", 64)
    ticks = iter(range(10**6))
    gpu.mark = lambda: next(ticks)  # every pair of marks is one apart: each call takes 1 ms
    assert machine.ceilings(gpu) == Ceilings(2 * 8**3 / 1e9, 2 * 4**3 / 1e9, 2 * 64 / 1e6)


@pytest.mark.gpu
def test_the_bench_runs_on_this_gpu(tmp_path, monkeypatch, capsys):
    """Shapes of a few microseconds: only that all parts fit together."""
    small = Settings(20, (3, 5))
    crowd = [g.implementations for g in modes.QUICK.groups]
    groups = (
        Group((prefill(64, 512, tokens=512),), crowd[1]),
        Group((decode(1, 512),), (modes.CUDNN, modes.DECODE), modes.MEASURES),
        Group((backward(prefill(64, 512, tokens=512)),), modes.TRAINERS),
    )
    monkeypatch.setitem(modes.MODES, "quick", Mode(groups, small))
    code, _, err = run(capsys, "--to", str(tmp_path / "rows.csv"))
    assert code == 0, err
    rows = read(tmp_path / "rows.csv")[2]
    timed = {r.implementation for r in rows if r.status == "ok"}
    assert {"cudnn", "flash", "triton"} <= timed
    assert "no graph" not in "".join(r.note for r in rows)
