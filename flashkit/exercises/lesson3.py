"""Lesson 3, the Triton kernel: loop bounds, the kernel, a sliding window, and breaking kernels."""

import math

import torch

from flashkit import cost
from flashkit.exercises import oracle, probes
from flashkit.exercises.inputs import attention_calls
from flashkit.exercises.judge import (
    attention_limit,
    failed,
    judge_attention,
    malformed,
    passed,
    whole,
)
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.spoilt import KERNEL_FAULTS, faulty_elsewhere, faulty_kernel
from flashkit.exercises.values import describe
from flashkit.faults import faulty_attention
from flashkit.online import online_attention

LESSON = "03_triton_kernel"
COUNTEREXAMPLES = {
    "bound_without_offset": "tests with T = S alone: there the offset is 0",
    "gqa_modulo": "tests with one KV head, or as many as query heads",
    "last_tile_skipped": "tests whose lengths are multiples of the tile",
    "max_starts_at_zero": "tests with scores around 0",
    "padded_keys_counted": "tests with the default offset: there causality hides the padding",
}
"""The bugs to be exposed, and the tests that do not see them."""
MAX_ELEMENTS = 2**17


def blocks(block_m: int, block_n: int, query_offset: int | None = None, **first) -> dict:
    """The args of a kernel case, in the order of the signature."""
    return {**first, "query_offset": query_offset, "block_m": block_m, "block_n": block_n}


def bounds(t, s, offset, block_m, block_n, causal=True, window=None) -> dict:
    """The args of a case of tile_bounds; it is asked for every query tile."""
    names = ("t", "s", "offset", "block_m", "block_n", "causal", "window")
    return dict(zip(names, (t, s, offset, block_m, block_n, causal, window), strict=True))


def _bounds_calls(case: Case, seed: int) -> list[Inputs]:
    tiles = math.ceil(case.args["t"] / case.args["block_m"])
    return [{"i": i, **case.args} for i in range(tiles)]


def _judge_bounds(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    got = tuple(whole(x) for x in value) if isinstance(value, (tuple, list)) else ()
    if len(got) != 2 or None in got:
        return malformed(exercise, case, describe(value))
    want = cost.tile_bounds(**inputs)
    if range(*got) == range(*want):
        return passed(case)
    bugs = tuple(bug for bug in exercise.faults if got in _faulty_bounds(bug, case, inputs))
    given = ", ".join(f"{name} = {value}" for name, value in inputs.items())
    wanted = "(0, 0): no tile" if range(*want) == range(0) else f"{want}"
    return failed(
        case, f"{given}: wanted {wanted}, got {got}.", wanted=wanted, got=f"{got}", bugs=bugs
    )


def _faulty_bounds(fault: str, case: Case, inputs: Inputs) -> list[tuple[int, int]]:
    """Bounds with one bug: the right function of the wrong arguments."""
    x, s = inputs, inputs["s"]
    changed = {
        "causal_ignored": {"causal": False},
        "offset_ignored": {"offset": 0},
        "window_ignored": {"window": None},
        "window_off_by_one": {"window": x["window"] and x["window"] + 1},
        "last_tile_skipped": {"s": s // x["block_n"] * x["block_n"]},
        "rows_past_t": {"t": -(-x["t"] // x["block_m"]) * x["block_m"]},
    }
    first, stop = cost.tile_bounds(**{**x, **changed[fault]})
    if fault == "last_tile_skipped":
        last = cost.tile_bounds(**{**x, "block_n": 1})[1]
        return [(first, stop), (first, last // x["block_n"])]
    return [(first, stop)]


def _judge_counterexample(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    problem = _not_a_problem(value)
    if problem:
        return malformed(exercise, case, problem)
    given = dict(zip(("q", "k", "v", "query_offset"), value, strict=True))
    want = oracle.attention(given)
    limit = 10 * attention_limit(given, want)
    q, k, v, offset = value
    right = online_attention(q.float(), k.float(), v.float(), oracle.query_positions(given))
    if not _within(right, want, limit.clamp(min=1e-2)):
        return failed(case, "On these inputs a right kernel fails too: they are too extreme.")
    if _within(faulty_attention(inputs["fault"], q, k, v, offset), want, limit):
        return failed(case, f"On these inputs the kernel with {inputs['fault']} is right.")
    return passed(case)


def _within(got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> bool:
    return bool(((got.double() - want).abs() <= limit).all())


def _not_a_problem(value) -> str:
    """Why a reply is no attention problem that can be run here, or ""."""
    if not isinstance(value, (tuple, list)) or len(value) != 4:
        return describe(value)
    for name, x in zip("qkv", value, strict=False):
        if not isinstance(x, torch.Tensor) or x.ndim != 4 or not x.numel():
            return f"{name} = {describe(x)}"
        if x.dtype not in (torch.float32, torch.float16) or x.numel() > MAX_ELEMENTS:
            return f"{name} = {describe(x)}: float32 or float16, at most {MAX_ELEMENTS} entries"
        if not torch.isfinite(x).all():
            return f"{name} with entries that are not finite"
    q, k, v, offset = value
    fits = k.shape == v.shape and (q.shape[0], q.shape[3]) == (k.shape[0], k.shape[3])
    if not fits or q.shape[1] % k.shape[1] or not q.dtype == k.dtype == v.dtype:
        return f"shapes or dtypes that do not fit together: {describe(value)}"
    if q.shape[1] * q.shape[2] * k.shape[2] > MAX_ELEMENTS:
        return f"more than {MAX_ELEMENTS} scores: {describe(value)}"
    least = k.shape[2] - q.shape[2] if offset is None else offset
    if type(least) is not int or not 0 <= least < 2**31:
        return f"query_offset = {describe(offset)}: row 0 must see key 0"
    return ""


EXERCISES = (
    Exercise(
        id="tile_bounds",
        lesson=LESSON,
        title="Loop bounds",
        function="tile_bounds",
        own_work="torch",
        points=5,
        signature="tile_bounds(i, t, s, offset, block_m, block_n, causal=True, window=None)",
        returns="two integers (first, stop)",
        public=(
            Case("square", "a loop that visits keys of the future", {}, bounds(64, 64, 0, 16, 16)),
            Case("offset", "a bound without the offset", {}, bounds(32, 96, 64, 16, 16)),
            Case("window", "tiles before the window", {}, bounds(96, 96, 0, 16, 16, window=20)),
            Case("not causal", "a causal bound", {}, bounds(32, 40, 8, 16, 16, causal=False)),
        ),
        build=_bounds_calls,
        judge=_judge_bounds,
        faults=(
            "causal_ignored",
            "offset_ignored",
            "window_ignored",
            "window_off_by_one",
            "last_tile_skipped",
            "rows_past_t",
        ),
        faulty=_faulty_bounds,
    ),
    Exercise(
        id="flash_attention",
        lesson=LESSON,
        title="The kernel",
        function="flash_attention",
        own_work="kernel",
        points=12,
        signature="flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32) -> o",
        returns="o (B, Hq, T, D) in q's dtype",
        public=(
            Case(
                "T = S, whole tiles",
                "l or acc that is not rescaled, a mask that is off by one",
                {"Hq": 2, "Hkv": 2, "T": 32, "S": 32},
                blocks(16, 16),
            ),
            Case(
                "ragged lengths",
                "rows or keys past the end that are read or written",
                {"Hq": 2, "Hkv": 2, "T": 37, "S": 37, "D": 32},
                blocks(16, 16),
            ),
            Case(
                "T < S, grouped heads",
                "a loop bound without the offset, or query heads that read the wrong KV head",
                {"Hq": 4, "Hkv": 2, "T": 20, "S": 50},
                blocks(16, 16),
            ),
            Case(
                "one query",
                "a causal mask that hides all keys but the first",
                {"B": 2, "Hq": 2, "Hkv": 1, "T": 1, "S": 40},
                blocks(16, 32),
            ),
        ),
        build=attention_calls,
        judge=judge_attention,
        faults=tuple(f for f in KERNEL_FAULTS if not f.startswith("window")),
        faulty=faulty_kernel,
        faulty_elsewhere=faulty_elsewhere,
        probes=probes.kernel(blocks),
    ),
    Exercise(
        id="flash_attention_window",
        lesson=LESSON,
        title="★★ A sliding window",
        function="flash_attention_window",
        own_work="kernel",
        points=6,
        signature="flash_attention_window(q, k, v, window, query_offset=None, block_m=32, "
        "block_n=32) -> o",
        returns="o (B, Hq, T, D) in q's dtype",
        public=(
            Case(
                "a window of 20",
                "a window that is ignored or off by one",
                {"Hq": 2, "Hkv": 2, "T": 48, "S": 48},
                blocks(16, 16, window=20),
            ),
            Case(
                "a window smaller than a tile",
                "NaN in rows that see no key of the first tile they visit",
                {"T": 48, "S": 48},
                blocks(16, 16, window=5),
            ),
            Case(
                "a window larger than S",
                "a first tile before key 0",
                {"T": 20, "S": 33},
                blocks(16, 16, window=100),
            ),
        ),
        build=attention_calls,
        judge=judge_attention,
        faults=KERNEL_FAULTS,
        faulty=faulty_kernel,
        faulty_elsewhere=faulty_elsewhere,
        probes=probes.windowed(blocks),
    ),
    Exercise(
        id="counterexample",
        lesson=LESSON,
        title="Break this kernel",
        function="counterexample",
        points=5,
        signature="counterexample(fault) -> (q, k, v, query_offset)",
        returns="a tuple (q, k, v, query_offset)",
        public=tuple(
            Case(fault, reason, {}, {"fault": fault}) for fault, reason in COUNTEREXAMPLES.items()
        ),
        build=lambda case, seed: [dict(case.args)],
        judge=_judge_counterexample,
    ),
)
