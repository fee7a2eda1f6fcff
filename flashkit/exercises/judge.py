"""Compare a reply with the oracle: type, shape, dtype, finite, then an error budget.

The budget is no constant: an error may be at most twice what a fair computation in the same dtype
makes on the same inputs, plus rounding of the largest entry.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.diagnosis import first_bad_tile, matching
from flashkit.exercises import oracle
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.values import describe, leaves


class Part(NamedTuple):
    """One tensor of a reply: what it is called, what was got, wanted (float64), and allowed."""

    name: str
    got: Tensor
    want: Tensor
    limit: float


def passed(case: Case) -> CaseResult:
    """The case as passed."""
    return CaseResult(case.name, case.reason)


def failed(case: Case, message: str, kind: str = "wrong", **details) -> CaseResult:
    """The case as failed, with a sentence for the student."""
    return CaseResult(case.name, case.reason, kind, message, **details)


def malformed(exercise: Exercise, case: Case, problem: str) -> CaseResult:
    """The case as failed because the reply is no such thing as was asked for."""
    return failed(case, f"{exercise.function} must return {exercise.returns}, got {problem}.")


def judge_attention(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """Judge o (B, Hq, T, D), in q's dtype, against exact attention."""
    want, dtype = oracle.attention(inputs), inputs["q"].dtype
    problem = shape_problem(value, want.shape, dtype)
    if problem:
        return malformed(exercise, case, problem)
    limit = budget(want, oracle.attention_error(inputs, want), dtype)
    return compared(exercise, case, inputs, [Part("o", value, want, limit)])


def judge_parts(exercise, case, inputs, value, names, right) -> CaseResult:
    """Judge a tuple of float32 tensors; right(inputs, dtype) computes it in a dtype."""
    wants, fair = right(inputs, torch.float64), right(inputs, torch.float32)
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        return malformed(exercise, case, describe(value))
    value = [as_tensor(x) for x in value]
    parts = []
    for name, got, want, near in zip(names, value, wants, fair, strict=True):
        problem = shape_problem(got, want.shape, torch.float32)
        if problem:
            return malformed(exercise, case, f"{name} = {problem}")
        error = float((near.double() - want).nan_to_num(0.0, 0.0, 0.0).abs().max())
        parts.append(Part(name, got, want, budget(want, error, torch.float32)))
    return compared(exercise, case, inputs, parts)


def as_tensor(value):
    """A plain number as a 0-dimensional float32 tensor, anything else unchanged."""
    return torch.tensor(float(value)) if type(value) in (int, float) else value


def shape_problem(value, shape, dtype: torch.dtype) -> str:
    """What is wrong with the type, shape or dtype of a reply, or "" if nothing."""
    if not isinstance(value, Tensor) or value.shape != shape:
        return describe(value)
    return "" if value.dtype == dtype else f"dtype {value.dtype} in place of {dtype}"


def budget(want: Tensor, unavoidable: float, dtype: torch.dtype) -> float:
    """The error that is allowed: 2 * (unavoidable + eps * the largest entry)."""
    largest = want[torch.isfinite(want)].abs().max() if torch.isfinite(want).any() else 0.0
    return 2.0 * (unavoidable + torch.finfo(dtype).eps * float(largest))


def compared(exercise: Exercise, case: Case, inputs: Inputs, parts: list[Part]) -> CaseResult:
    """The case as passed if every entry of every part is within its limit."""
    for part in parts:
        bad = wrong_entries(part)
        if bad.any():
            result = _difference(case, part, bad, len(parts) > 1)
            tile = first_bad_tile(bad, inputs["block_m"]) if "block_m" in inputs else None
            return replace(result, tile=tile, bugs=bugs_of(exercise, case, inputs, parts))
    return passed(case)


def wrong_entries(part: Part) -> Tensor:
    """True where got is not want within the limit; NaN is never right."""
    got = part.got.double()
    return ~(((got - part.want).abs() <= part.limit) | (got == part.want))


def _difference(case: Case, part: Part, bad: Tensor, named: bool) -> CaseResult:
    index = tuple(int(i) for i in bad.nonzero()[0])
    wanted, got = (f"{float(x[index]):.6g}" for x in (part.want, part.got))
    name = f" of {part.name}" if named else ""
    many = f"{int(bad.sum())} of {bad.numel()} entries{name} are wrong, the first at {list(index)}"
    where = many if index else f"{part.name} is wrong"
    size = (part.got.double() - part.want)[bad].abs().max()
    far = f"; the largest error is {float(size):.2g}, allowed {part.limit:.2g}"
    message = f"{where}: wanted {wanted}, got {got}{far if size < math.inf else ''}."
    return failed(case, message, index=index, wanted=wanted, got=got)


def bugs_of(exercise: Exercise, case: Case, inputs: Inputs, parts: list[Part]) -> tuple[str, ...]:
    """The classic bugs that give exactly these wrong parts on these inputs."""
    got, want = (_flat([part[i] for part in parts]) for i in (1, 2))
    wrong = {
        fault: [
            _flat([x for _, x in leaves(exercise.view(reply))])
            for reply in exercise.faulty(fault, case, inputs)
        ]
        for fault in exercise.faults
    }
    return matching(got, want, wrong)


def _flat(tensors) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])


def number(value) -> float | None:
    """A number, also one in a 0-dimensional tensor; None for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    return float(value) if type(value) in (int, float) else None


def whole(value) -> int | None:
    """An integer, also a float or tensor that is one; None for anything else."""
    value = number(value)
    return int(value) if value is not None and math.isfinite(value) and value % 1 == 0 else None
