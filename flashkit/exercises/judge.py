"""Compare a reply with the oracle: type, shape, dtype, finite, then an error budget.

The budget is no constant: an error may be at most twice what a fair computation in the same dtype
makes on the same inputs, plus rounding. It is kept row by row, relative to the row's own size, so
that a small row that is wrong does not hide behind a large one that is right.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.diagnosis import first_bad_tile, matching
from flashkit.exercises import oracle
from flashkit.exercises.errormap import error_map
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.values import describe, leaves


class Part(NamedTuple):
    """One tensor of a reply: what it is called, what was got, wanted (float64), and allowed.

    limit has the shape of want, or one that spreads to it.
    """

    name: str
    got: Tensor
    want: Tensor
    limit: Tensor


def passed(case: Case) -> CaseResult:
    """The case as passed."""
    return CaseResult(case.name, case.reason)


def failed(case: Case, message: str, kind: str = "wrong", **details) -> CaseResult:
    """The case as failed, with a sentence for the student."""
    return CaseResult(case.name, case.reason, kind, message, **details)


def malformed(exercise: Exercise, case: Case, problem: str, bugs=()) -> CaseResult:
    """The case as failed because the reply is no such thing as was asked for."""
    message = f"{exercise.function} must return {exercise.returns}, got {problem}."
    return failed(case, message, bugs=bugs)


def dtype_bug(value, shape) -> tuple[str, ...]:
    """The name of the bug if a reply has the right shape but another dtype."""
    fits = isinstance(value, Tensor) and value.shape == shape
    return ("output_dtype",) if fits else ()


def judge_attention(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """Judge o (B, Hq, T, D), in q's dtype, against exact attention."""
    want, dtype = oracle.attention(inputs), inputs["q"].dtype
    problem = shape_problem(value, want.shape, dtype)
    if problem:
        return malformed(exercise, case, problem, dtype_bug(value, want.shape))
    return compared(
        exercise, case, inputs, [Part("o", value, want, attention_limit(inputs, want))]
    )


def attention_limit(inputs: Inputs, want: Tensor) -> Tensor:
    """The error allowed in each row of want, (B, Hq, T, 1)."""
    error, size = oracle.attention_error(inputs, want), oracle.row_sizes(inputs)
    return budget(error, size, inputs["q"].dtype)


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
        error = (near.double() - want).nan_to_num(0.0, 0.0, 0.0).abs()
        size = want.abs() if name in ("m", "l") else want.abs().amax(-1, keepdim=True)
        size = size.nan_to_num(0.0, 0.0).clamp(min=1.0)  # scores and values are of order 1
        parts.append(Part(name, got, want, budget(error, size, torch.float32)))
    return compared(exercise, case, inputs, parts)


def as_tensor(value):
    """A plain number as a 0-dimensional float32 tensor, anything else unchanged."""
    return torch.tensor(float(value)) if type(value) in (int, float) else value


def shape_problem(value, shape, dtype: torch.dtype) -> str:
    """What is wrong with the type, shape or dtype of a reply, or "" if nothing."""
    if not isinstance(value, Tensor) or value.shape != shape:
        return describe(value)
    return "" if value.dtype == dtype else f"dtype {value.dtype} in place of {dtype}"


def budget(unavoidable: Tensor, size: Tensor, dtype: torch.dtype) -> Tensor:
    """The error allowed, like size: 2 * (the worst unavoidable relative error + eps) * size.

    unavoidable spreads size along its last axis; a row of size 0 is allowed no error.
    """
    relative = unavoidable / torch.where(size > 0, size, math.inf)
    worst = float(relative.max()) if relative.numel() else 0.0
    return 2.0 * (worst + torch.finfo(dtype).eps) * size


def compared(exercise: Exercise, case: Case, inputs: Inputs, parts: list[Part]) -> CaseResult:
    """The case as passed if every entry of every part is within its limit."""
    for part in parts:
        bad = wrong_entries(part)
        if bad.any():
            result = _difference(case, part, bad, len(parts) > 1)
            tile = first_bad_tile(bad, inputs["block_m"]) if "block_m" in inputs else None
            levels = error_map(part.got, part.want, part.limit, inputs.get("block_m", 16))
            bugs = bugs_of(exercise, case, inputs, parts)
            return replace(result, tile=tile, bugs=bugs, map=levels)
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
    errors = torch.where(bad, (part.got.double() - part.want).abs(), 0.0).reshape(-1)
    worst = int(errors.argmax())
    allowed = float(part.limit.expand(part.want.shape).reshape(-1)[worst])
    far = f"; the largest error is {float(errors[worst]):.2g}, allowed {allowed:.2g}"
    message = f"{where}: wanted {wanted}, got {got}{far if errors[worst] < math.inf else ''}."
    told = told_of(int(bad.sum()) / bad.numel(), float(errors[worst]) / max(allowed, 1e-300))
    return failed(case, message, index=index, wanted=wanted, got=got, told=told)


def told_of(share: float, times: float) -> str:
    """The error in words that give none of the numbers away."""
    many = "All" if share == 1 else f"{max(1, round(100 * share))} %"
    far = f"{times:.2g} times what is allowed" if times < math.inf else "not a finite number"
    return f"{many} of the entries are wrong; the largest error is {far}."


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
