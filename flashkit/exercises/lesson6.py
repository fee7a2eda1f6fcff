"""Lesson 6, beyond: a cache in pages, and what a roofline says before anything is measured."""

import torch

from flashkit import cost
from flashkit.exercises import pages, probes
from flashkit.exercises.judge import (
    Part,
    compared,
    dtype_bug,
    failed,
    malformed,
    number,
    passed,
    shape_problem,
)
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.questions import question
from flashkit.exercises.values import describe

LESSON = "06_beyond"
TOLERANCE = 0.03
"""Relative: two digits were asked for."""
SLIPS = {
    2.0: "It is twice what is right: a causal mask leaves half of the pairs, and half the work.",
    0.5: "It is half of what is right: there are two matmuls, K and V, and 2 bytes a number.",
    1e3: "It is 1000 times what is right: look at the unit.",
    1e-3: "It is 1000 times too small: look at the unit.",
}
"""What a wrong number over the right one may tell."""


def predictions() -> dict[str, float]:
    """The numbers of the roofline exercise, as `cost` counts them."""
    gpu, heads, kv_heads, d = cost.DEVICES["H200"], 32, 8, 128
    cache = 2 * 2 * kv_heads * d * 8192  # K and V of a sequence, 2 bytes a number
    work = cost.flops(16384, 16384, d, heads=heads)
    return {
        "ridge": gpu.flops / gpu.bandwidth,
        "decode_intensity": cost.flops(1, 8192, d, heads=heads) / cache,
        "decode_us": 1e6 * 16 * cache / gpu.bandwidth,
        "prefill_ms": 1e3 * work / gpu.flops,
        "share_percent": 100 * work / 3.31e-3 / gpu.flops,
        "ring_tokens": 2 * 600e12 / 50e9 * kv_heads / heads,
    }


def _judge_prediction(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    key = case.params["key"]
    given = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict) and given is None:
        return failed(case, f"There is no number {key!r} in the dict yet.", "unwritten")
    got = number(given)
    if got is None:
        return malformed(exercise, case, describe(value))
    times = got / predictions()[key]
    if abs(times - 1) <= TOLERANCE:
        return passed(case)
    slips = [say for ratio, say in SLIPS.items() if abs(times / ratio - 1) <= TOLERANCE]
    return failed(case, f"{key} = {got:g} is not right. {' '.join(slips)}".strip(), got=f"{got:g}")


def _judge_gather(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """Copies are exact: no error is allowed."""
    want, dtype = pages.gathered(*inputs.values()), inputs["pages"].dtype
    problem = shape_problem(value, want.shape, dtype)
    if problem:
        return malformed(exercise, case, problem, dtype_bug(value, want.shape))
    exact = torch.zeros_like(want[..., :1], dtype=torch.float64)
    return compared(exercise, case, inputs, [Part("k", value, want.double(), exact)])


def _judge_decode(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    want, limit = pages.right(inputs)
    problem = shape_problem(value, want.shape, inputs["q"].dtype)
    if problem:
        return malformed(exercise, case, problem, dtype_bug(value, want.shape))
    return compared(exercise, case, inputs, [Part("o", value, want, limit)])


EXERCISES = (
    Exercise(
        id="gather_pages",
        lesson=LESSON,
        title="Gather a sequence from its pages",
        function="gather_pages",
        own_work="torch",
        points=4,
        signature="gather_pages(pages, block_table, length) -> k",
        returns="k (Hkv, length, D) in the dtype of the pages",
        public=(
            Case(
                "whole pages, two heads",
                "pages that are read in order, or heads that are mixed with rows",
                {"lengths": [12], "Hkv": 2},
            ),
            Case(
                "a last page that is not full",
                "rows of the last page that belong to nobody",
                {"lengths": [10, 7], "Hkv": 2, "which": 1},
            ),
            Case("pages of 32", "a page size that is a constant", {"lengths": [45], "page": 32}),
        ),
        build=pages.gather_calls,
        judge=_judge_gather,
        faults=tuple(pages.GATHERS),
        faulty=pages.faulty_gather,
        probes=probes.gathers(),
    ),
    Exercise(
        id="paged_decode",
        lesson=LESSON,
        title="Decode over a block table",
        function="paged_decode",
        own_work="torch",
        points=8,
        signature="paged_decode(q, k_pages, v_pages, block_table, lengths) -> o",
        returns="o (B, Hq, 1, D) in q's dtype",
        public=(
            Case(
                "one sequence, whole pages",
                "l or acc that is not rescaled from one page to the next",
                {"lengths": [24], "page": 8, "pattern": "rising"},
            ),
            Case(
                "three lengths, grouped heads",
                "the wrong KV head, the table of another sequence, or stale rows that count",
                {"lengths": [21, 3, 14], "page": 8, "Hq": 4, "Hkv": 2},
            ),
            Case(
                "a sequence without keys",
                "NaN from 0 / 0: its output is 0",
                {"lengths": [9, 0], "Hq": 2, "Hkv": 2},
            ),
            Case(
                "pages of 32, a prefix that is shared",
                "a page size that is a constant, or pages that are taken for one sequence's own",
                {"lengths": [46, 40], "page": 32, "shared": 1, "Hq": 2},
            ),
        ),
        build=pages.decode_calls,
        judge=_judge_decode,
        faults=(*pages.TABLES, *pages.RECURRENCE),
        faulty=pages.faulty_decode,
        probes=probes.paged(),
    ),
    Exercise(
        id="read_roofline",
        lesson=LESSON,
        title="Read the roofline",
        function="read_roofline",
        points=6,
        signature="read_roofline() -> dict",
        returns=f"a dict with the numbers {', '.join(predictions())}",
        public=tuple(
            Case(key, reason, {"key": key})
            for key, reason in (
                ("ridge", "a ratio that is upside down"),
                ("decode_intensity", "the cache counted once a query head, not once a KV head"),
                ("decode_us", "K or V left out, or a number of 4 bytes"),
                ("prefill_ms", "work that a causal mask saves, or one matmul of two"),
                ("share_percent", "a share of the wrong limit"),
                ("ring_tokens", "the group left out, or upside down"),
            )
        ),
        build=lambda case, seed: [{}],
        judge=_judge_prediction,
    ),
    question(6, LESSON, "What do pages, splits, rings and tiles have in common?"),
)
