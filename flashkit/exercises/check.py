"""The check that a student runs in the notebook: the public cases, in place."""

import inspect

from flashkit import runtime
from flashkit.exercises.calling import call
from flashkit.exercises.marking import points, run_case
from flashkit.exercises.model import Exercise, Verdict
from flashkit.exercises.naming import name_bug
from flashkit.exercises.registry import EXERCISES
from flashkit.exercises.report import headline, render_text


class CheckFailed(AssertionError):
    """Raised when a check finds something wrong; a notebook shows its report, no traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def check(exercise_id: str) -> None:
    """Run the public cases of an exercise on the caller's function and print the report.

    The function is looked up in the caller's globals, which in a notebook are its cells.
    Raises ValueError for an unknown id and CheckFailed if anything is wrong.
    """
    if exercise_id not in EXERCISES:
        raise ValueError(f"exercise must be one of {', '.join(EXERCISES)}, got {exercise_id!r}")
    exercise = EXERCISES[exercise_id]
    names = inspect.currentframe().f_back.f_globals
    function = names.get(exercise.function)
    if not callable(function):
        raise CheckFailed(
            f"{exercise.id}: there is no function {exercise.function} here. Run the cell that "
            f"defines it: {exercise.signature}"
        )
    verdict = run_public(exercise, function)
    if verdict.passed < len(verdict.cases):
        raise CheckFailed(render_text(verdict))
    print(f"{exercise.id}: {exercise.note}" if exercise.note else headline(verdict))


def run_public(exercise: Exercise, function) -> Verdict:
    """The verdict of the public cases, run in this process."""
    device = runtime.device()

    def ask(inputs):
        return call(function, inputs, device, own_work=exercise.own_work)

    results = [run_case(exercise, case, 0, ask) for case in exercise.public]
    names = [case.name for case in exercise.public]
    found = name_bug(exercise, exercise.public, results, 0, ask, names)
    return Verdict(
        exercise=exercise.id,
        points=points(exercise, results),
        max_points=exercise.points,
        cases=tuple(results),
        status="public",
        seed=0,
        device=device,
        bug=found.bug,
        seen=found.seen,
    )
