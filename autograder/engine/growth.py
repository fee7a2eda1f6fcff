"""No T x T matrix: how the memory of a student's function grows with T, told by two witnesses.

The first counts, inside the worker, the bytes of every tensor that a kernel's launcher makes, or
of the largest where torch computes. The second is the peak: of torch's allocator on a GPU, of the
worker's process otherwise, which is read from outside. A worker may lie about what it measures
inside, so that the figures are only evidence against a function. Its numbers need only be near
here, to show that it did the work: how exact they are is for the other cases, and T is large for
an error budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from flashkit.exercises import gradients, oracle
from flashkit.exercises.judge import failed, malformed, passed, shape_problem
from flashkit.exercises.lesson3 import blocks
from flashkit.exercises.lesson5 import whole
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.values import describe

NAME = "memory in T"
REASON = "a T x T matrix in memory, which FlashAttention is there to avoid"
SIZES = {"cpu": (128, 256, 512), "cuda": (512, 1024, 2048)}
PARAMS = {"Hq": 2, "Hkv": 1}
NEAR = 1e-2
"""The largest error, on values of size 1."""
LINEAR = 2.6
"""From 2T to 4T linear memory grows twice as much as from T to 2T, a square four times."""
SLACK = {"memory for new tensors": 2**16, "peak of memory": 3 * 2**19}
"""Bytes by which each witness may be wrong."""
MATRIX = (
    "Its {} grows from {} over {} to {} MiB at T = {}: that is a T x T matrix. Keep one tile of"
    " scores at a time."
)


class Question(NamedTuple):
    """How an exercise is asked: its args by device, and the right reply as a tuple."""

    cpu: dict[str, Any]
    cuda: dict[str, Any]
    right: Callable[[Inputs], tuple[Tensor, ...]]


def _attention(inputs: Inputs) -> tuple[Tensor, ...]:
    return (oracle.attention(inputs),)


def _gradients(inputs: Inputs) -> tuple[Tensor, ...]:
    want = gradients.right(inputs)
    return want["dq"], want["dk"], want["dv"]


QUESTIONS = {
    "flash_attention": Question(blocks(128, 128), blocks(64, 64), _attention),
    "flash_attention_window": Question(
        blocks(128, 128, window=100), blocks(64, 64, window=100), _attention
    ),
    "attention_backward": Question(whole(tile=16), whole(tile=64), _gradients),
}


def results(session, seed: int) -> tuple[CaseResult, ...]:
    """One more case of an exercise that works on T x S, or none."""
    if session.exercise.id not in QUESTIONS:
        return ()
    used, args = [], getattr(QUESTIONS[session.exercise.id], session.device)
    session.exercise = replace(session.exercise, judge=near)
    sizes = SIZES[session.device]
    for t in (sizes[0], *sizes):  # the first call also pays for what libraries keep
        case = Case(f"{NAME} = {t}", REASON, {**PARAMS, "T": t, "S": t}, args)
        result = session.run(case, seed)
        if not result.passed:
            return (replace(result, name=NAME, message=f"At T = S = {t}: {result.message}"),)
        used.append(session.memory)
    said = verdict(used[1:], sizes)
    return (CaseResult(NAME, REASON, "wrong" if said else "pass", said),)


def near(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """Whether a reply is what was asked for at all, in shape, dtype and two digits."""
    wants = QUESTIONS[exercise.id].right(inputs)
    value = (value,) if isinstance(value, Tensor) else value
    if not isinstance(value, (tuple, list)) or len(value) != len(wants):
        return malformed(exercise, case, describe(value))
    for got, want in zip(value, wants, strict=True):
        if problem := shape_problem(got, want.shape, inputs["q"].dtype):
            return malformed(exercise, case, problem)
        if not ((got.double() - want).abs() <= NEAR * want.abs().amax().clamp(min=1.0)).all():
            return failed(case, "the output is wrong.")
    return passed(case)


def verdict(used: Sequence[tuple[int, int]], sizes: Sequence[int]) -> str:
    """What is wrong with bytes (new tensors, peak) at T, 2T and 4T, or ""."""
    for witness, figures in zip(SLACK, zip(*used, strict=True), strict=True):
        small, middle, large = figures
        if large - middle > LINEAR * max(middle - small, 0) + SLACK[witness]:
            mib = [f"{n / 2**20:.1f}" for n in figures]
            return MATRIX.format(witness, *mib, ", ".join(map(str, sizes)))
    return ""
