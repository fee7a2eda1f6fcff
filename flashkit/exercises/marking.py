"""Run the cases of an exercise through anything that answers, and mark them."""

import builtins
from collections.abc import Callable, Sequence
from dataclasses import replace

from flashkit.exercises.errors import hint_for
from flashkit.exercises.inputs import case_seed
from flashkit.exercises.judge import failed, passed
from flashkit.exercises.model import Answer, Case, CaseResult, Exercise, Inputs, StudentError
from flashkit.exercises.relations import broken
from flashkit.faults import FAULTS

UNWRITTEN = "NotImplementedError"
OURS = ("CompilationError", "InterpreterError", "OutOfBounds", "NotAllowed", "NoLaunch")
MAX_LINE = 2000


def run_case(
    exercise: Exercise,
    case: Case,
    seed: int,
    ask: Callable[[Inputs], Answer],
    faults: tuple[str, ...] = (),
) -> CaseResult:
    """Put every call of the case to `ask`; the first wrong answer decides, then their relation.

    faults are the bugs that a wrong answer is compared with; see `naming`.
    """
    exercise = replace(exercise, faults=faults) if exercise.probes else exercise
    calls, replies = exercise.build(case, case_seed(seed, exercise.id, case.name)), []
    for inputs in calls:
        answer = ask(inputs)
        result = _mark(exercise, case, inputs, answer)
        if not result.passed:
            return result
        replies.append(answer.value)
    apart = broken(case, calls, replies)
    return failed(case, apart) if apart else passed(case)


def _mark(exercise: Exercise, case: Case, inputs: Inputs, answer: Answer) -> CaseResult:
    if answer.failure:
        return failed(case, answer.detail, answer.failure)
    wanted_error = case.params.get("raises")
    if answer.error:
        if answer.error.type == wanted_error:
            return passed(case)
        if answer.error.type == "OutOfBounds":
            return failed(case, answer.error.message, bugs=("store_without_mask",))
        told = told_of(answer.error)
        return failed(case, error_text(exercise, answer.error), _kind(answer.error), told=told)
    if wanted_error:
        return failed(case, f"{exercise.function} must raise {wanted_error} here.")
    if answer.changed:
        names = ", ".join(answer.changed)
        what = f"Your function changed its input {names}: work on a copy."
        return failed(case, what, bugs=("input_changed",))
    return exercise.judge(exercise, case, inputs, answer.value)


def _kind(error: StudentError) -> str:
    return "unwritten" if error.type == UNWRITTEN else "error"


def error_text(exercise: Exercise, error: StudentError) -> str:
    """What happened, where, and the hint, in two sentences at most."""
    if error.type == UNWRITTEN:
        return f"{exercise.function} is not written yet."
    cell = f" of cell {error.cell}" if error.cell else " of your cell"
    place = f" in line {error.line}{cell}" if error.line else ""
    code = f" ({error.code})" if error.code else ""
    what = f"{error.type}{place}{code}: {error.message}".removesuffix(": ")
    return f"{what}. {error.hint}" if error.hint else what


def told_of(error: StudentError) -> str:
    """The kind of an exception and our hint: nothing in it that student code could have put there.

    The message, and even the name of the class, could carry the inputs of a hidden case out.
    """
    known = isinstance(getattr(builtins, error.type, None), type) or error.type in OURS
    what = error.type if known else "An exception"
    place = f" in line {error.line}" if error.line and 0 < error.line < MAX_LINE else ""
    hint = hint_for(error)
    return f"{what}{place}.{' ' + hint if hint else ''}"


def points(exercise: Exercise, results: Sequence[CaseResult]) -> float:
    """The exercise's points, shared out evenly over its cases."""
    good = sum(result.passed for result in results)
    return round(exercise.points * good / len(results), 2) if results else 0.0


def reason_of(bug: str | None) -> str:
    """The sentence that tells a student about a bug, or ""."""
    return FAULTS.get(bug, "") if bug else ""
