"""One shape after the other: inputs, graphs, times, checks, rows."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from flashkit.bench.check import TOLERANCE, Exact, error, exact
from flashkit.bench.implementations import Implementation, Inputs, Result, outputs, reason
from flashkit.bench.modes import Mode
from flashkit.bench.rows import ROTATED, Row
from flashkit.bench.shapes import Shape
from flashkit.bench.timing import Run, Settings, rounds_for, sample, times

COVER = 3  # the rotated inputs together hold this many times the second-level cache
FEWEST_SETS, MOST_SETS, SEPARATE_SETS = 2, 64, 4


def steps(mode: Mode) -> int:
    """How many rows the mode gives."""
    return sum(len(g.shapes) * len(g.implementations) * len(g.measures) for g in mode.groups)


def run(mode: Mode, gpu, seed: int = 15) -> Iterator[list[Row]]:
    """The rows of one shape after the other; what cannot be measured is a row that says why."""
    torch.manual_seed(seed)
    for group in mode.groups:
        for shape in group.shapes:
            yield measured(shape, group.implementations, group.measures, mode.settings, gpu)
            gpu.release()


def measured(
    shape: Shape,
    implementations: Sequence[Implementation],
    measures: Sequence[str],
    settings: Settings,
    gpu,
) -> list[Row]:
    """Rows of one shape, measure by measure, in the order of the implementations."""
    try:
        sets = inputs(shape, input_sets(shape, gpu.cache_bytes), gpu.device)
        want = [exact(shape, x) for x in sets]
    except torch.cuda.OutOfMemoryError as fault:
        failed = {implementation.name: reason(fault) for implementation in implementations}
        return [_skipped(shape, i, m, failed) for m in measures for i in implementations]
    rows = []
    for measure in measures:
        contestants, failed = _prepared(shape, implementations, measure, sets, gpu)
        columns = _timed(contestants, settings, gpu)
        for implementation in implementations:
            name = implementation.name
            if name in failed:
                rows.append(_skipped(shape, implementation, measure, failed))
                continue
            worst = max(_errors(contestants[name], want))
            rows.append(_row(shape, implementation, measure, contestants[name], columns, worst))
    return rows


def input_sets(shape: Shape, cache_bytes: int) -> int:
    """How many sets of inputs together exceed the cache, at least two."""
    return max(FEWEST_SETS, min(MOST_SETS, math.ceil(COVER * cache_bytes / shape.bytes)))


def inputs(shape: Shape, count: int, device: str) -> list[Inputs]:
    """Sets of normal random inputs; on the paged path also cut into pages in random order, on the
    backward path with o's gradient."""
    kind = {"dtype": getattr(torch, shape.dtype), "device": device}
    sets = []
    for _ in range(count):
        q = torch.randn(shape.batch, shape.q_heads, shape.t, shape.d, **kind)
        k, v = (
            torch.randn(shape.batch, shape.kv_heads, shape.s, shape.d, **kind) for _ in range(2)
        )
        do = torch.randn_like(q) if shape.path == "backward" else None
        sets.append(Inputs(q, k, v, *(paged(shape, k, v) if shape.page else ()))._replace(do=do))
    return sets


def paged(shape: Shape, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """k and v as (pages, page, Hkv, D) with the table (B, pages a sequence) and the lengths (B,).

    The pages lie in random order. Raises ValueError if S is no multiple of the page.
    """
    if shape.s % shape.page:
        raise ValueError(f"S = {shape.s} must be a multiple of the page {shape.page}")
    each = shape.s // shape.page
    place = torch.randperm(shape.batch * each, device=k.device)
    pages = []
    for x in (k, v):
        cut = x.unflatten(2, (each, shape.page)).permute(0, 2, 3, 1, 4).flatten(0, 1)
        shuffled = torch.empty_like(cut, memory_format=torch.contiguous_format)
        shuffled[place] = cut
        pages.append(shuffled)
    table = place.view(shape.batch, each).to(torch.int32)
    lengths = torch.full((shape.batch,), shape.s, dtype=torch.int32, device=k.device)
    return *pages, table, lengths


def _prepared(
    shape: Shape, implementations: Sequence[Implementation], measure: str, sets: list[Inputs], gpu
) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """The runs of those that can run, and the reasons of those that cannot."""
    contestants, failed = {}, {}
    for implementation in implementations:
        try:
            call = implementation.call(shape)
            call(sets[0])
            bound = [partial(call, x) for x in sets]
            each = [bound] if measure == ROTATED else [[one] for one in bound[:SEPARATE_SETS]]
            runs = [gpu.capture(calls) for calls in each]
            for run in runs:
                run.replay()
            gpu.settle()  # a fault of the device shows here, while it is known whose it is
            contestants[implementation.name] = runs
        except Exception as fault:  # any failure of one contestant is a row, and the next goes on
            failed[implementation.name] = reason(fault)
    return contestants, failed


def _timed(contestants: dict[str, list[Run]], settings: Settings, gpu) -> dict[str, list[float]]:
    if not contestants:
        return {}
    sample(contestants, 1, gpu, gpu.flush)  # warm-up
    first = sample(contestants, 1, gpu, gpu.flush)
    calls = max(run.calls for runs in contestants.values() for run in runs)
    return sample(contestants, rounds_for(first, calls, settings), gpu, gpu.flush)


def _errors(runs: list[Run], want: list[tuple[Exact, ...]]) -> Iterator[float]:
    """The error of every result, written anew over NaN: so one that is not written shows."""
    for result in _results(runs):
        for o in outputs(result):
            o.fill_(math.nan)
    for run in runs:
        run.replay()
    # an eager run has made new results; separate runs use the first sets only
    for result, parts in zip(_results(runs), want, strict=False):
        yield error(result, parts)


def _results(runs: list[Run]) -> list[Result]:
    return [result for run in runs for result in run.results]


def _row(
    shape: Shape, implementation: Implementation, measure: str, runs: list[Run], columns, worst
) -> Row:
    median, low, high = times(columns[implementation.name])
    wrong = not worst <= TOLERANCE[shape.dtype]
    note = "" if runs[0].how == "graph" else "no graph: the host's time counts"
    if wrong:
        note = f"wrong by {worst:.1e}, allowed {TOLERANCE[shape.dtype]:.0e}"
    return Row(
        shape, implementation.name, implementation.ours, measure, "wrong" if wrong else "ok",
        note, median, low, high, len(columns[implementation.name]), worst,
    )  # fmt: skip


def _skipped(shape: Shape, implementation: Implementation, measure: str, failed: dict) -> Row:
    note = failed[implementation.name]
    return Row(shape, implementation.name, implementation.ours, measure, "skipped", note)
