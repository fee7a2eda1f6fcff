"""Lesson 4, flash-decoding: merge, split attention, the split kernel and the merge kernel."""

import math
from dataclasses import replace

import torch

from flashkit.diagnosis import attention_with
from flashkit.exercises import oracle, probes
from flashkit.exercises.inputs import attention_calls
from flashkit.exercises.judge import (
    Part,
    attention_limit,
    budget,
    compared,
    judge_attention,
    judge_parts,
    malformed,
    shape_problem,
)
from flashkit.exercises.lesson2 import TORCH_FAULTS
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.parts import combined, decode_merge_calls, merge_calls
from flashkit.exercises.questions import question
from flashkit.exercises.spoilt import DECODE_FAULTS, faulty_decode, faulty_decode_merge
from flashkit.exercises.values import describe
from flashkit.faults import faulty_merge
from flashkit.faults.states import MERGES
from flashkit.online import State, merge

LESSON = "04_flash_decoding"
MERGE_FAULTS = (
    "no_max",
    "max_starts_at_zero",
    "l_not_rescaled",
    "acc_not_rescaled",
    "nothing_rescaled",
    "alpha_inverted",
    "no_guard",
    "merge_one_side",
    "part_lost",
    "max_of_tile_alone",
    "max_frozen",
)
ONLY_M = ("max_of_tile_alone", "max_frozen")
"""Bugs that a merge which hands no m on hardly shows."""


def _merged(inputs: Inputs, dtype: torch.dtype) -> State:
    a, b = (State(*(x.to(dtype) for x in inputs[side])) for side in ("a", "b"))
    return merge(a, b)


def _judge_merge(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    return judge_parts(exercise, case, inputs, value, "mla", _merged)


def _faulty_merges(fault: str, case: Case, inputs: Inputs) -> list:
    ways = range(len(MERGES.get(fault, (0,))))
    return [faulty_merge(fault, inputs["a"], inputs["b"], variant) for variant in ways]


def _faulty_split(fault: str, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    """The bug with one tile of keys for each split."""
    q, k, v = (inputs[name] for name in "qkv")
    size = max(1, -(-k.shape[2] // inputs["num_splits"]))
    if fault == "no_guard":
        return [oracle.unguarded(inputs, size, parts=True).to(q.dtype)]
    outputs = attention_with(fault, q, k, v, block_m=q.shape[2], block_n=size)
    return [x.to(q.dtype) for x in outputs]


def _judge_decode_split(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """Any cut of the keys is right: the parts are merged here and the output is judged."""
    q, splits = inputs["q"], inputs["num_splits"]
    rows = (q.shape[0], q.shape[1], splits)
    shapes = (rows, rows, (*rows, q.shape[3]))
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        return malformed(exercise, case, describe(value))
    for name, x, shape in zip(("m", "l", "acc"), value, shapes, strict=True):
        problem = shape_problem(x, shape, torch.float32)
        if problem:
            return malformed(exercise, case, f"{name} = {problem}")
    want = oracle.attention(inputs)
    got = combined(*(x.double() for x in value))
    part = Part("merged output", got.float(), want, attention_limit(inputs, want))
    result = compared(exercise, case, inputs, [part])
    asked = result.passed and case.params.get("lse")
    return _judge_lse(exercise, case, inputs, value) if asked else result


def _judge_lse(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """A maximum that is off by the same in all parts leaves the output right: look at the lse."""
    want, fair = (oracle.lse(inputs, dtype) for dtype in (torch.float64, torch.float32))
    limit = budget((fair - want).abs(), want.abs().clamp(min=1.0), inputs["q"].dtype)
    m, l, _ = (x.double() for x in value)
    got = torch.logsumexp(m + torch.log(l), -1, keepdim=True).float()
    part = Part("merged log-sum-exp", got, want, limit)
    result = compared(replace(exercise, faults=()), case, inputs, [part])
    natural = torch.logsumexp(m * math.log(2.0) + torch.log(l), -1, keepdim=True)
    bugs = ("lse_in_base_2",) if bool(((natural - want).abs() <= limit).all()) else ()
    return replace(result, bugs=bugs)


def _judge_decode_merge(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    return judge_parts(exercise, case, inputs, [value], ("o",), _combined_inputs)


def _combined_inputs(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (combined(*(x.to(dtype) for x in inputs.values())),)


_SPLIT_DEFAULT = {"num_splits": 4}
EXERCISES = (
    Exercise(
        id="merge",
        lesson=LESSON,
        title="Merge two partial results",
        function="merge",
        own_work="torch",
        points=4,
        signature="merge(a, b) -> (m, l, a)",
        returns="a tuple (m, l, a) of tensors (T,), (T,), (T, D), float32",
        public=(
            Case("two full parts", "l or a that is not rescaled", {"b_level": 1.5}),
            Case("one part is empty", "NaN from exp(-inf - m)", {"b_empty": "all"}),
            Case(
                "both parts are empty in some rows",
                "NaN from exp(-inf - -inf)",
                {"a_empty": "every second", "b_empty": "every third"},
            ),
        ),
        build=merge_calls,
        judge=_judge_merge,
        faults=MERGE_FAULTS,
        faulty=_faulty_merges,
        probes=probes.merges(),
    ),
    Exercise(
        id="split_attention",
        lesson=LESSON,
        title="★★ Split, then merge",
        function="split_attention",
        own_work="torch",
        points=5,
        signature="split_attention(q, k, v, num_splits=4) -> o",
        returns="o (B, Hq, T, D) in q's dtype",
        public=(
            Case(
                "four splits",
                "parts that are merged without a common maximum",
                {"Hq": 2, "Hkv": 2, "T": 9, "S": 32},
                _SPLIT_DEFAULT,
            ),
            Case(
                "ragged, grouped heads",
                "a last split that is lost, or the wrong KV head",
                {"Hq": 4, "Hkv": 2, "T": 5, "S": 30},
                _SPLIT_DEFAULT,
            ),
            Case(
                "more splits than keys",
                "NaN from a split without keys",
                {"T": 3, "S": 5},
                {"num_splits": 8},
            ),
        ),
        build=attention_calls,
        judge=judge_attention,
        faults=tuple(f for f in TORCH_FAULTS if f != "positions_ignored"),  # it is given none
        faulty=_faulty_split,
        probes=probes.attention({"num_splits": 3}),
    ),
    Exercise(
        id="decode_split",
        lesson=LESSON,
        title="The split kernel",
        function="decode_split",
        own_work="kernel",
        points=6,
        signature="decode_split(q, k, v, num_splits) -> (m, l, acc)",
        returns="a tuple of float32 tensors m, l (B, Hq, num_splits), acc (B, Hq, num_splits, D)",
        public=(
            Case(
                "two splits",
                "an acc that is divided by l, or scores that are not scaled",
                {"Hq": 2, "Hkv": 2, "T": 1, "S": 64},
                {"num_splits": 2},
            ),
            Case(
                "ragged, grouped heads",
                "keys past the end, or the wrong KV head",
                {"Hq": 4, "Hkv": 2, "T": 1, "S": 50},
                {"num_splits": 3},
            ),
        ),
        build=attention_calls,
        judge=_judge_decode_split,
        faults=DECODE_FAULTS,
        faulty=faulty_decode,
        probes=probes.decode(),
        view=lambda parts: combined(*parts),
    ),
    Exercise(
        id="decode_merge",
        lesson=LESSON,
        title="The merge kernel",
        function="decode_merge",
        own_work="kernel",
        points=5,
        signature="decode_merge(m, l, acc) -> o",
        returns="o (B, Hq, 1, D), float32",
        public=(
            Case("four splits", "parts that are not rescaled, or not divided by l", {"step": 0.7}),
            Case("empty splits", "NaN from a split without keys", {"empty": 2}),
        ),
        build=decode_merge_calls,
        judge=_judge_decode_merge,
        faults=(*(f for f in MERGE_FAULTS if f not in ONLY_M), "not_divided"),
        faulty=faulty_decode_merge,
        probes=probes.decode_merges(),
    ),
    question(4, LESSON, "Why does decode need another parallelisation?"),
)
