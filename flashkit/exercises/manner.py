"""Bugs that show in the manner of an answer, whatever its numbers: stale, varying, imprecise."""

from dataclasses import replace

import torch
from torch import Tensor

from flashkit.exercises import oracle
from flashkit.exercises.inputs import case_seed
from flashkit.exercises.model import Case, Exercise
from flashkit.exercises.values import leaves, mapped

NOISE = {torch.float32: 0.01, torch.float16: 0.05}
"""Rounding on the way leaves errors below this share of the size of the output, by dtype."""


def of(exercise: Exercise, case: Case, seed: int, ask) -> str | None:
    """ "stale_output" if fresh data of the same shapes get the same answer, else None."""
    replies, inputs = [], []
    for number in (seed, seed + 1):
        inputs.append(exercise.build(case, case_seed(number, exercise.id, case.name))[0])
        replies.append(_tensors(ask(inputs[-1])))
    fresh = not _equal(_leaves(inputs[0]), _leaves(inputs[1]))
    telling = all(replies) and all(torch.isfinite(x).all() and _varied(x) for x in replies[0])
    return "stale_output" if fresh and telling and _equal(*replies) else None


def steady(ask):
    """ask, with NaN in the rows that differ when it is asked twice: memory that nobody wrote."""

    def twice(inputs):
        first, second = ask(inputs), ask(inputs)
        pairs = zip(_tensors(first), _tensors(second), strict=False)
        marked = iter([_unwritten_as_nan(x, y) for x, y in pairs if x.shape == y.shape])
        return replace(first, value=mapped(lambda x: next(marked, x), first.value))

    return twice


def _unwritten_as_nan(x: Tensor, y: Tensor) -> Tensor:
    """x with NaN in its rows that are not those of y, or are empty like fresh memory."""
    same = x.nan_to_num(7.5) == y.nan_to_num(7.5)
    if not x.ndim:
        return x.masked_fill(~same, torch.nan)
    written = same.all(-1, keepdim=True) & (x != 0).any(-1, keepdim=True)
    return x.masked_fill(~written, torch.nan)


def of_numbers(exercise: Exercise, wrong: list[tuple[Case, int]], ask) -> str | None:
    """What the size and the spread of the errors say, where no bug explains them."""
    found = set()
    for case, seed in wrong:
        inputs = exercise.build(case, case_seed(seed, exercise.id, case.name))[0]
        replies = [_tensors(ask(inputs)) for _ in range(2)]
        if not all(replies) or not _equal(*replies):
            return "answer_varies" if all(replies) else None
        if not {"q", "k", "v"} <= set(inputs) or len(replies[0]) != 1:
            return None
        found.add(_precision(inputs, replies[0][0]))
    return found.pop() if len(found) == 1 else None


def all_varies(exercise: Exercise, wrong: list[tuple[Case, int]], ask) -> bool:
    """Whether most of an answer varies: memory that is not written at all is a part of it."""
    case, seed = wrong[0]
    inputs = exercise.build(case, case_seed(seed, exercise.id, case.name))[0]
    pairs = zip(_tensors(ask(inputs)), _tensors(ask(inputs)), strict=False)
    shares = [float((x != y).double().mean()) for x, y in pairs if x.shape == y.shape]
    return bool(shares) and min(shares) > 0.9


def _precision(inputs: dict, got: Tensor) -> str | None:
    """A bug of precision if the errors are small and look like rounding."""
    want = oracle.attention(inputs)
    if got.shape != want.shape or not torch.isfinite(got).all():
        return None
    error = (got.double() - want).flatten()
    size = float(want.square().mean().sqrt())
    rms, mean = float(error.square().mean().sqrt()), float(error.mean())
    few = float((error.abs() < 0.01 * rms).double().mean())
    if rms > NOISE[got.dtype] * size:
        return None
    if got.dtype == torch.float16:
        return "acc_in_float16"
    return "low_precision" if abs(mean) < 0.5 * rms and few < 0.5 else None


def _varied(x: Tensor) -> bool:
    """Whether the entries differ enough to be no accident: rounding makes few values equal."""
    return x.unique().numel() > x.numel() / 2


def _tensors(answer) -> list[Tensor]:
    """The tensors of an answer; none if there was an error."""
    return _leaves(answer.value) if not answer.error and not answer.failure else []


def _leaves(value) -> list[Tensor]:
    return [x for _, x in leaves(value) if isinstance(x, Tensor)]


def _equal(xs: list[Tensor], ys: list[Tensor]) -> bool:
    """Bit for bit, NaN being itself."""
    return len(xs) == len(ys) and all(
        x.shape == y.shape and torch.equal(x.nan_to_num(7.5), y.nan_to_num(7.5))
        for x, y in zip(xs, ys, strict=True)
    )
