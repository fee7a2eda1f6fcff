"""No T x T matrix: how the memory of a kernel's launcher grows with T, told by two witnesses.

The first counts, inside the worker, the bytes of every tensor that the student's function makes.
The second is the peak: of torch's allocator on a GPU, of the worker's process otherwise, which is
read from outside. A worker may lie about what it measures inside, so that the figures are only
evidence against a function. Its numbers need only be near here, to show that it did the work: how
exact they are is for the other cases, and T is large for an error budget.
"""

from collections.abc import Sequence
from dataclasses import replace

from flashkit.exercises import oracle
from flashkit.exercises.judge import failed, malformed, passed, shape_problem
from flashkit.exercises.lesson3 import blocks
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs

NAME = "memory in T"
REASON = "a T x T matrix in memory, which FlashAttention is there to avoid"
SIZES = {"cpu": (128, 256, 512), "cuda": (512, 1024, 2048)}
PARAMS = {"Hq": 2, "Hkv": 1}
ARGS = {
    "flash_attention": {"cpu": blocks(128, 128), "cuda": blocks(64, 64)},
    "flash_attention_window": {
        "cpu": blocks(128, 128, window=100),
        "cuda": blocks(64, 64, window=100),
    },
}
NEAR = 1e-2
"""The largest error, on values of size 1."""
LINEAR = 2.6
"""From 2T to 4T linear memory grows twice as much as from T to 2T, a square four times."""
SLACK = {"memory for new tensors": 2**16, "peak of memory": 3 * 2**19}
"""Bytes by which each witness may be wrong."""
MATRIX = (
    "Its {} grows from {} over {} to {} MiB at T = {}: that is a T x T matrix. Keep one tile of"
    " scores at a time, inside the kernel."
)


def results(session, seed: int) -> tuple[CaseResult, ...]:
    """One more case of an exercise that has a kernel over T and S, or none."""
    if session.exercise.id not in ARGS:
        return ()
    used, args = [], ARGS[session.exercise.id][session.device]
    session.exercise = replace(session.exercise, judge=near)
    for t in SIZES[session.device]:
        case = Case(f"{NAME} = {t}", REASON, {**PARAMS, "T": t, "S": t}, args)
        result = session.run(case, seed)
        if not result.passed:
            return (replace(result, name=NAME, message=f"At T = S = {t}: {result.message}"),)
        used.append(session.memory)
    said = verdict(used, SIZES[session.device])
    return (CaseResult(NAME, REASON, "wrong" if said else "pass", said),)


def near(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    """Whether a reply is attention at all: o (B, Hq, T, D), in q's dtype."""
    want = oracle.attention(inputs)
    if problem := shape_problem(value, want.shape, inputs["q"].dtype):
        return malformed(exercise, case, problem)
    if not ((value.double() - want).abs() <= NEAR).all():
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
