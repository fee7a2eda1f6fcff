"""Lesson 5, the backward pass: its parts for one head, then the whole by tiles."""

from dataclasses import replace

import torch

from flashkit.exercises import gradients
from flashkit.exercises.gradients import PARTS
from flashkit.exercises.judge import (
    Part,
    compared,
    failed,
    malformed,
    shape_problem,
    wrong_entries,
)
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.probes import backward_parts, backward_whole
from flashkit.exercises.questions import question
from flashkit.exercises.values import describe
from flashkit.faults import GRADIENTS, faulty_backward

LESSON = "05_backward"
GIVEN = ("q", "k", "v", "o", "lse", "do")
MADE_FROM = {"dv": ("p",), "ds": ("p", "delta"), "dq": ("ds",), "dk": ("ds",)}
"""Which parts the formula of a part takes up."""
NEAR = 1e-4
"""How near a part must be to what follows from the student's own earlier parts."""
NOT_OF_ONE_HEAD = (
    *("gqa_modulo", "group_transposed", "group_not_summed", "causal_top_left"),
    *("query_offset_ignored", "window_ignored", "window_off_by_one", "window_one_short"),
    *("window_without_offset", "lse_unguarded", "last_tile_skipped", "dq_overwritten"),
    "softmax_per_tile",
)


def whole(query_offset: int | None = None, window: int | None = None, tile: int = 8) -> dict:
    """The args of attention_backward after do."""
    return {"query_offset": query_offset, "window": window, "tile": tile}


def _judge_part(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """The case's part of a dict of parts, and whether its fault lies in an earlier one."""
    name = case.params["part"]
    if type(value) is not dict:
        return malformed(exercise, case, describe(value))
    if name not in value:
        return failed(case, f"There is no {name!r} in the dict yet.", "unwritten")
    lifted = gradients.with_heads(inputs)
    want = gradients.right(lifted)
    limit = gradients.limits(lifted, want)[name][0, 0]
    problem = shape_problem(value[name], want[name][0, 0].shape, torch.float32)
    if problem:
        return malformed(exercise, case, f"{name} = {problem}")
    part = Part(name, value[name], want[name][0, 0], limit)
    result = compared(replace(exercise, view=lambda x: x[name]), case, inputs, [part])
    follows = "" if result.passed else _inherited(name, inputs, value, part)
    said = {what: f"{getattr(result, what)} {follows}".strip() for what in ("message", "told")}
    return replace(result, **said) if follows else result


def _inherited(name: str, inputs: Inputs, value: dict, part: Part) -> str:
    """A sentence, where a wrong part follows rightly from parts that are wrong themselves."""
    earlier = [x for x in MADE_FROM.get(name, ()) if isinstance(value.get(x), torch.Tensor)]
    if len(earlier) < len(MADE_FROM.get(name, "-")):
        return ""
    try:
        own = FORMULAS[name](*(value[x].double() for x in earlier), *_doubles(inputs))
    except RuntimeError:  # their shapes do not fit
        return ""
    near = own.shape == part.want.shape and (part.got - own).abs().max() <= NEAR * own.abs().max()
    if not near:
        return ""
    return f"It is right for your own {' and '.join(earlier)}: look for the fault there."


def _doubles(inputs: Inputs) -> list[torch.Tensor]:
    return [inputs[name].double() for name in GIVEN]


def _scale(q: torch.Tensor) -> float:
    return q.shape[-1] ** -0.5


FORMULAS = {
    "dv": lambda p, q, k, v, o, lse, do: p.mT @ do,
    "ds": lambda p, delta, q, k, v, o, lse, do: p * (do @ v.mT - delta[:, None]),
    "dq": lambda ds, q, k, v, o, lse, do: _scale(q) * ds @ k,
    "dk": lambda ds, q, k, v, o, lse, do: _scale(q) * ds.mT @ q,
}
"""A part from the earlier ones, for one head."""


def _judge_whole(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """dq, dk and dv; dv is told first, as dq and dk come after it."""
    want = gradients.right(inputs)
    limit = gradients.limits(inputs, want)
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        return malformed(exercise, case, describe(value))
    parts = {}
    for name, got in zip(("dq", "dk", "dv"), value, strict=True):
        problem = shape_problem(got, want[name].shape, inputs[name[1]].dtype)
        if problem:
            fits = isinstance(got, torch.Tensor) and got.shape == want[name].shape
            bugs = ("output_dtype",) if fits else ()
            return malformed(exercise, case, f"{name} = {problem}", bugs)
        parts[name] = Part(name, got, want[name], limit[name])
    result = compared(exercise, case, inputs, list(_dv_first(parts.values())))
    return result if result.passed else _with_the_others(result, parts)


def _dv_first(reply) -> tuple:
    """dq, dk, dv in the order in which they are judged."""
    dq, dk, dv = reply
    return dv, dq, dk


def _with_the_others(result: CaseResult, parts: dict[str, Part]) -> CaseResult:
    """The result, which says of all three whether they are right."""
    wrong = [name for name, part in parts.items() if wrong_entries(part).any()]
    right = [name for name in parts if name not in wrong]
    said = " and ".join(wrong) + (" are wrong" if len(wrong) > 1 else " is wrong")
    said += f", {' and '.join(right)} right." if right else "."
    said = {what: f"{said} {getattr(result, what)}" for what in ("message", "told")}
    return replace(result, map=(), **said)  # the map counts tiles of queries, not of keys


def _faulty_parts(fault: str, case: Case, inputs: Inputs) -> list[dict]:
    lifted = gradients.with_heads(inputs)
    found = _spoilt(fault, [lifted[name] for name in GIVEN])
    return [{name: x[0, 0] for name, x in reply.items()} for reply in found]


def _faulty_whole(fault: str, case: Case, inputs: Inputs) -> list[tuple]:
    found = _spoilt(fault, list(inputs.values()))
    names = ("dq", "dk", "dv")
    return [tuple(reply[name].to(inputs[name[1]].dtype) for name in names) for reply in found]


def _spoilt(fault: str, arguments: list) -> list[dict]:
    """What the bug gives, in each way that it is written."""
    q, k, v, o, lse, do, *rest = arguments
    options = dict(zip(("query_offset", "window", "tile"), rest, strict=False))
    ways = range(len(GRADIENTS[fault]))
    return [faulty_backward(fault, q, k, v, o, lse, do, variant=i, **options) for i in ways]


def _part(name: str, part: str, reason: str, **params) -> Case:
    return Case(name, reason, {"part": part, "T": 6, "S": 11, "D": 8, **params})


EXERCISES = (
    Exercise(
        id="backward_parts",
        lesson=LESSON,
        title="The parts, for one head",
        function="backward_parts",
        own_work="torch",
        points=6,
        signature="backward_parts(q, k, v, o, lse, do) -> dict",
        returns=f"a dict of float32 tensors with the keys {', '.join(PARTS)}",
        public=(
            _part("p", "p", "a mask, a scale or a base that is not that of the forward"),
            _part("dv", "dv", "p that is not transposed, or ds in its place"),
            _part("delta", "delta", "the sum of something else than do * o"),
            _part("ds", "ds", "a delta that is left out"),
            _part("dq", "dq", "a scale that is missing, or there twice"),
            _part("dk", "dk", "a scale that is missing, or there twice"),
        ),
        build=gradients.calls_of_one_head,
        judge=_judge_part,
        faults=tuple(fault for fault in GRADIENTS if fault not in NOT_OF_ONE_HEAD),
        faulty=_faulty_parts,
        probes=backward_parts(PARTS),
    ),
    Exercise(
        id="attention_backward",
        lesson=LESSON,
        title="★★★ The backward pass by tiles",
        function="attention_backward",
        own_work="torch",
        points=12,
        signature="attention_backward(q, k, v, o, lse, do, query_offset=None, window=None, "
        "tile=16) -> (dq, dk, dv)",
        returns="a tuple (dq, dk, dv) of the shapes and dtypes of q, k and v",
        public=(
            Case(
                "T = S, several tiles",
                "a dq that keeps one tile's part only",
                {"Hq": 2, "Hkv": 2, "T": 24, "S": 24},
                whole(),
            ),
            Case(
                "T < S, grouped heads, a ragged last tile",
                "the offset S - T forgotten, a group that is not summed, a tile that is lost",
                {"Hq": 4, "Hkv": 2, "T": 10, "S": 21},
                whole(),
            ),
            Case(
                "a window",
                "a window that is ignored, or off by one",
                {"Hq": 2, "Hkv": 1, "T": 18, "S": 22},
                whole(window=6),
            ),
            Case(
                "rows that see no key",
                "NaN from exp(-inf - -inf): such a row gets and gives no gradient",
                {"Hq": 2, "Hkv": 2, "T": 12, "S": 7},
                whole(),
            ),
        ),
        build=gradients.calls,
        judge=_judge_whole,
        faults=tuple(GRADIENTS),
        faulty=_faulty_whole,
        view=_dv_first,
        probes=backward_whole(whole),
    ),
    question(5, LESSON, "What does it cost to compute P once more?"),
)
