"""The bench on a fake device: what is timed, in which order, and what each number means."""

import importlib
import io
import itertools
import statistics
from dataclasses import replace

import oracle
import pytest
import torch
from fake_gpu import FakeGpu, contestant

import flashkit
from flashkit.bench import check, launchers, runner
from flashkit.bench.implementations import Implementation, Inputs, NotServed, reason
from flashkit.bench.machine import Ceilings
from flashkit.bench.modes import Group, Mode
from flashkit.bench.progress import Progress, span
from flashkit.bench.rows import ROTATED, SEPARATE, compared
from flashkit.bench.shapes import Shape
from flashkit.bench.timing import Run, Settings, quantile, rounds_for, sample, times

SMALL = Shape("forward", 2, 4, 2, 5, 5, 16, dtype="float32")
CACHE = Shape("decode", 2, 4, 2, 1, 12, 16, dtype="float32")
SETTINGS = Settings(budget_ms=100, rounds=(2, 10))


def wait(gpu, name, ms):
    def replay():
        gpu.now += ms
        gpu.log.append(name)

    return replay


def test_median_and_marks_agree_with_the_standard_library():
    samples = [float((7 * i) % 11) for i in range(11)]
    fifths = statistics.quantiles(samples, n=5, method="inclusive")
    assert times(samples) == (statistics.median(samples), fifths[0], fifths[3])
    assert times([3.0]) == (3.0, 3.0, 3.0)
    assert quantile([1.0, 2.0], 0.25) == 1.25


def test_every_round_runs_everybody_behind_a_flush_and_turns():
    gpu = FakeGpu()
    runs = {name: [Run(wait(gpu, name, ms), 1, [])] for name, ms in (("a", 1.0), ("b", 2.0))}
    samples = sample(runs, 3, gpu, gpu.flush)
    assert samples == {"a": [1.0] * 3, "b": [2.0] * 3}
    order = [word for word in gpu.log if word in "ab"]
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert gpu.log[0::2][:6] == ["flush"] * 6
    assert gpu.log[-1] == "settle"
    assert gpu.log.count("settle") == 1


def test_runs_on_different_inputs_take_turns_and_share_their_time_among_their_calls():
    gpu = FakeGpu()
    runs = {"a": [Run(wait(gpu, str(i), 10.0 * i), 4, []) for i in (1, 2)]}
    assert sample(runs, 3, gpu, gpu.flush) == {"a": [2.5, 5.0, 2.5]}


@pytest.mark.parametrize(
    ("ms", "calls", "rounds"), [(1.0, 1, 100), (10.0, 2, 5), (1e-6, 1, 200), (99.0, 1, 3)]
)
def test_rounds_fit_the_budget(ms, calls, rounds):
    assert rounds_for({"a": [ms]}, calls, Settings(100, (3, 200))) == rounds


def test_rows_hold_the_times_and_the_ratio_to_the_best_other_peer():
    gpu = FakeGpu()
    crowd = [
        contestant(gpu, "slow peer", 8.0),
        contestant(gpu, "peer", 4.0),
        contestant(gpu, "mine", 2.0, ours=True),
    ]
    rows = runner.measured(SMALL, crowd, (SEPARATE, ROTATED), SETTINGS, gpu)
    rows = compared(rows, Ceilings(1.0, 2.0, 3.0))
    assert [row.ms for row in rows] == [8.0, 4.0, 2.0] * 2
    assert [row.ratio for row in rows] == [0.5, 2.0, 2.0] * 2
    assert {row.status for row in rows} == {"ok"}
    assert max(row.error for row in rows) < 1e-5
    flops = 4 * 16 * 2 * 4 * 15  # 15 of 25 pairs are visible
    assert rows[2].tflops == pytest.approx(flops / 2e-3 / 1e12)
    assert rows[2].share == pytest.approx(rows[2].tflops / 2.0)


def test_decode_is_measured_against_the_copy():
    gpu = FakeGpu()
    rows = runner.measured(CACHE, [contestant(gpu, "a", 2.0)], (SEPARATE,), SETTINGS, gpu)
    (row,) = compared(rows, Ceilings(1.0, 1.0, 50.0))
    moved = 4 * (2 * 2 * 2 * 12 * 16 + 2 * 2 * 4 * 16)  # K and V, q and o
    assert row.gbs == pytest.approx(moved / 2e-3 / 1e9)
    assert row.share == pytest.approx(row.gbs / 50.0)
    assert row.ratio is None, "nobody else is there"


def test_the_inputs_of_a_rotation_exceed_the_cache():
    for cache in (1, 10_000, 100_000):
        count = runner.input_sets(SMALL, cache)
        assert count >= 2
        assert count == runner.MOST_SETS or count * SMALL.bytes >= cache
    x, y = runner.inputs(SMALL, 2, "cpu")
    assert not torch.equal(x.k, y.k)


def wrong_once(o):
    o[-1, -1, -1] += 1.0
    return o


def unwritten(o):
    return torch.full_like(o, float("nan"))


@pytest.mark.parametrize("spoil", [wrong_once, unwritten])
def test_a_wrong_output_is_named_and_earns_no_ratio(spoil):
    gpu = FakeGpu()
    crowd = [contestant(gpu, "peer", 4.0), contestant(gpu, "mine", 1.0, True, spoil)]
    rows = runner.measured(SMALL, crowd, (SEPARATE,), SETTINGS, gpu)
    peer, mine = compared(rows, Ceilings(1.0, 1.0, 1.0))
    assert (peer.status, mine.status) == ("ok", "wrong")
    assert mine.note.startswith("wrong by")
    assert mine.ratio is None


def test_a_wrong_peer_is_nobodys_yardstick():
    gpu = FakeGpu()
    crowd = [contestant(gpu, "peer", 1.0, spoil=wrong_once), contestant(gpu, "mine", 2.0, True)]
    rows = runner.measured(SMALL, crowd, (SEPARATE,), SETTINGS, gpu)
    assert compared(rows, Ceilings(1.0, 1.0, 1.0))[1].ratio is None


def test_an_output_that_only_the_first_run_wrote_is_caught():
    """What is checked is what a timed replay writes, not what was left from the first call."""
    gpu = FakeGpu()
    honest = gpu.capture

    def lazy(calls):
        run = honest(calls)
        return Run(lambda: None, run.calls, run.results)

    gpu.capture = lazy
    (row,) = runner.measured(SMALL, [contestant(gpu, "a", 1.0)], (SEPARATE,), SETTINGS, gpu)
    assert row.status == "wrong"


def test_a_fault_of_the_device_is_laid_at_the_door_of_who_caused_it():
    gpu = FakeGpu()

    def settle():
        gpu.log.append("settle")
        if "bad" in gpu.log[-3:]:
            raise RuntimeError("CUDA error: an illegal memory access")

    gpu.settle = settle
    crowd = [contestant(gpu, "good", 1.0), contestant(gpu, "bad", 1.0)]
    good, bad = runner.measured(SMALL, crowd, (ROTATED,), SETTINGS, gpu)
    assert (good.status, bad.status) == ("ok", "skipped")
    assert bad.note == "failed: RuntimeError: CUDA error: an illegal memory access"


def refuse(error):
    def make(shape):
        raise error

    return Implementation("mine", make, ours=True)


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (NotServed("no window"), "not served: no window"),
        (ValueError("D must be 64,\n got 80"), "not served: D must be 64, got 80"),
        (TypeError("unexpected keyword argument 'backend'"), "not served: unexpected keyword"),
        (NotImplementedError(), "not served: NotImplementedError"),
        (RuntimeError("No available kernel. Aborting execution."), "not served: No available"),
        (ModuleNotFoundError("No module named 'x'"), "not installed: No module named 'x'"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried 9 GiB"), "out of memory"),
        (RuntimeError("misaligned " + 500 * "x"), "failed: RuntimeError: misaligned"),
    ],
)
def test_who_cannot_run_is_a_row_with_the_reason(error, note):
    gpu = FakeGpu()
    crowd = [refuse(error), contestant(gpu, "peer", 4.0)]
    skipped, peer = runner.measured(SMALL, crowd, (SEPARATE,), SETTINGS, gpu)
    assert (skipped.status, skipped.ms, skipped.ratio) == ("skipped", None, None)
    assert skipped.note.startswith(note)
    assert len(skipped.note) <= 160
    assert peer.ms == 4.0
    assert reason(error) == skipped.note


def test_nobody_can_run_a_shape():
    gpu = FakeGpu()
    rows = runner.measured(SMALL, [refuse(NotServed("no"))], (SEPARATE, ROTATED), SETTINGS, gpu)
    assert [row.status for row in rows] == ["skipped"] * 2


def test_inputs_that_do_not_fit_are_rows_too(monkeypatch):
    def full(*_):
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr(runner, "inputs", full)
    gpu = FakeGpu()
    rows = runner.measured(SMALL, [contestant(gpu, "a", 1.0)], (SEPARATE,), SETTINGS, gpu)
    assert [(row.status, row.note) for row in rows] == [("skipped", "out of memory")]


def test_a_run_goes_through_all_groups_and_gives_memory_back():
    gpu = FakeGpu()
    crowd = (contestant(gpu, "a", 1.0), contestant(gpu, "b", 1.0))
    mode = Mode((Group((SMALL, CACHE), crowd), Group((CACHE,), crowd[:1], (ROTATED,))), SETTINGS)
    batches = list(runner.run(mode, gpu))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert runner.steps(mode) == 5
    assert gpu.log.count("release") == 3
    assert mode.only("decode").groups[0].shapes == (CACHE,)
    assert runner.steps(mode.only("decode")) == 3
    assert mode.only("paged").groups == ()


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        CACHE,
        Shape("forward", 1, 2, 1, 4, 9, 16, causal=False, dtype="float32"),
        Shape("window", 1, 2, 2, 9, 9, 16, window=3, dtype="float32"),
    ],
)
def test_the_checked_rows_are_those_of_the_oracle(shape):
    (x,) = runner.inputs(shape, 1, "cpu")
    want, _ = oracle.attention(x.q, x.k, x.v, causal=shape.causal, window=shape.window)
    (rows,) = check.exact(shape, x)
    assert rows.values.dtype == torch.float64
    for place, row in zip(rows.places, rows.values, strict=True):
        assert torch.allclose(row, torch.from_numpy(want[place]), atol=1e-12)
    assert check.error(torch.from_numpy(want), (rows,)) < 1e-12


def test_one_unwritten_element_anywhere_is_an_error():
    shape = replace(SMALL, batch=3, t=50, s=50)
    (x,) = runner.inputs(shape, 1, "cpu")
    want, rows = oracle.attention(x.q, x.k, x.v)[0], check.exact(shape, x)
    places = set(itertools.product(range(3), range(4), range(50)))
    want[min(places - set(check.picks(shape)))][3] = float("nan")
    assert check.error(torch.from_numpy(want), rows) == float("inf")
    assert check.error(torch.from_numpy(want)[..., :1, :], rows) == float("inf")


def test_pages_hold_what_the_cache_holds():
    shape = Shape("paged", 3, 4, 2, 1, 24, 16, page=8, dtype="float32")
    (x,) = runner.inputs(shape, 1, "cpu")
    assert x.k_pages.shape == (9, 8, 2, 16)
    assert x.lengths.tolist() == [24] * 3
    assert sorted(x.table.flatten().tolist()) == list(range(9))
    assert x.table.flatten().tolist() != list(range(9)), "in order it would test nothing"
    for pages, whole in ((x.k_pages, x.k), (x.v_pages, x.v)):
        for b in range(3):
            joined = torch.cat([pages[number] for number in x.table[b]])
            assert torch.equal(joined.transpose(0, 1), whole[b])


def test_a_cache_that_ends_inside_a_page_is_refused():
    x = torch.zeros(1, 2, 10, 16)
    with pytest.raises(ValueError, match="S = 10 must be a multiple of the page 8"):
        runner.paged(Shape("paged", 1, 2, 2, 1, 10, 16, page=8), x, x)


def test_progress_says_rate_and_time_left():
    clock = iter([0.0, 10.0, 80.0, 100.0])
    out = io.StringIO()
    progress = Progress(4, out, "rows", lambda: next(clock))
    progress.step("first")
    progress.step("second", 3)
    progress.close()
    assert out.getvalue().splitlines() == [
        "1/4  0.10 rows/s  30 s left  first",
        "4/4  0.05 rows/s  0 s left  second",
        "4/4 rows in 1 min 40 s",
    ]


def test_progress_writes_over_its_line_on_a_terminal():
    out = io.StringIO()
    out.isatty = lambda: True
    progress = Progress(2, out, "rows", lambda: 5.0)
    progress.step("a long name")
    progress.step("b")
    first, second = out.getvalue().split("\r")[1:]
    assert first == "1/2  0.00 rows/s  ? left  a long name"
    assert len(second) == len(first), "the rest of the longer line is wiped"
    assert "\n" not in out.getvalue()


def test_span():
    assert [span(s) for s in (0, 59.4, 60, 3601)] == ["0 s", "59 s", "1 min 0 s", "60 min 1 s"]


def test_inputs_without_pages_have_none():
    assert runner.inputs(SMALL, 1, "cpu")[0][3:] == Inputs(None, None, None)[3:]


TRAINED = [
    Shape("backward", 2, 4, 2, 40, 40, 16, dtype="float32"),
    Shape("backward", 1, 2, 1, 20, 33, 16, causal=False, dtype="float32"),
    Shape("backward", 1, 3, 3, 30, 40, 16, window=7, dtype="float32"),
]
each_trained = pytest.mark.parametrize("shape", TRAINED)


@each_trained
def test_the_checked_gradients_are_those_of_the_oracle(shape, monkeypatch):
    """Of the first and of the last KV head, with all that read them, in however many pieces."""
    monkeypatch.setattr(check, "ENTRIES", 256)
    (x,) = runner.inputs(shape, 1, "cpu")
    want = oracle.gradients(x.q, x.k, x.v, x.do, causal=shape.causal, window=shape.window)
    parts = check.exact(shape, x)
    assert check.error(want, parts) < 1e-12
    for gradient, part in zip(want, parts, strict=True):
        assert (0,) * 2 in part.places
        assert tuple(n - 1 for n in gradient.shape[:2]) in part.places
    for number, place in itertools.product(range(3), ((0, 0, 0, 0), (-1, -1, -1, -1))):
        spoilt = [x.clone() for x in want]
        spoilt[number][place] += 1.0
        assert check.error(tuple(spoilt), parts) > 1e-3


@each_trained
def test_both_ways_to_a_gradient_are_right(shape):
    """Our launcher by itself, and what autograd finds behind a forward."""
    (x,) = runner.inputs(shape, 1, "cpu")
    want = check.exact(shape, x)
    crowd = [launchers.BACKWARD_TEACHING, launchers.BACKWARD_AUTO]
    if shape.window is None and shape.t == shape.s:
        crowd.append(launchers.BACKWARD_FLASH)  # on a CPU too SDPA has a kernel of that name
    for implementation in crowd:
        call = implementation.call(shape)
        assert check.error(call(x), want) < 1e-5, implementation.name
        assert check.error(call(x), want) < 1e-5, "a second call needs no second forward"


def test_the_forward_is_no_part_of_a_timed_backward(monkeypatch):
    shape = TRAINED[0]
    forwards, attend = [], flashkit.flash_attention
    monkeypatch.setattr(
        flashkit, "flash_attention", lambda *a, **k: forwards.append(1) or attend(*a, **k)
    )
    one, two = runner.inputs(shape, 2, "cpu")
    for implementation in (launchers.BACKWARD_TEACHING, launchers.BACKWARD_AUTO):
        call = implementation.call(shape)
        forwards.clear()
        for x in (one, two, one, two, two):
            call(x)
        assert len(forwards) == 2, implementation.name


def test_a_backward_that_does_not_serve_is_a_row_that_says_so(monkeypatch):
    module = importlib.import_module("flashkit.kernels.backward")
    monkeypatch.setattr(module, "serves", lambda *_, **__: "it takes no such thing")
    (row,) = runner.measured(
        TRAINED[0], [launchers.BACKWARD_TEACHING], (SEPARATE,), SETTINGS, FakeGpu()
    )
    assert (row.status, row.note) == ("skipped", "not served: it takes no such thing")


def test_rows_of_a_backward_count_five_products():
    gpu = FakeGpu()

    def make(shape):
        teaching = launchers.BACKWARD_TEACHING.call(shape)

        def call(x):
            gpu.now += 2.0
            return teaching(x)

        return call

    (row,) = runner.measured(
        TRAINED[0], [Implementation("mine", make, ours=True)], (SEPARATE,), SETTINGS, gpu
    )
    assert (row.status, row.note) == ("ok", "")
    assert row.error < 1e-5
    assert row.tflops == pytest.approx(10 * 16 * 2 * 4 * 820 / 2e-3 / 1e12)  # 820 visible pairs
