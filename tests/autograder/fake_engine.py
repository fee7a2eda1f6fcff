"""Stands for autograder.engine in these tests: judges the tiny lesson in milliseconds.

It runs the answer in this process, which the real engine never does.
"""

from flashkit.exercises.model import CaseResult, Verdict

QUESTIONS = {"double": ((2,), 4), "hypotenuse": ((3, 4), 5)}
POINTS = {"double": 2.0, "hypotenuse": 3.0}


def grade(exercise_id, cells, *, prelude="", device="cpu", seed=None, scratch=None, jailed=True):
    """The verdict on one exercise: all its points or none."""
    sources = {cell.id: cell.source for cell in cells}
    if "grader bug" in sources[exercise_id]:
        raise RuntimeError("the engine is broken")
    if "while True" in sources[exercise_id]:
        return _verdict(exercise_id, "timeout", "no answer in 1 s", seed)
    if "NaN points" in sources[exercise_id]:
        return _verdict(exercise_id, "pass", "", seed, points=float("nan"))
    arguments, wanted = QUESTIONS[exercise_id]
    try:
        names = {}
        for source in (prelude, sources[exercise_id]):
            exec(source, names)  # noqa: S102
        got = names[exercise_id](*arguments)
    except Exception as error:
        return _verdict(exercise_id, "error", repr(error), seed)
    kind = "pass" if got == wanted else "wrong"
    return _verdict(exercise_id, kind, f"wanted {wanted}, got {got}", seed)


def _verdict(exercise, kind, message, seed, points=None):
    case = CaseResult("the only case", "it is the tiny lesson's", kind=kind, message=message)
    most = POINTS[exercise]
    earned = (most if kind == "pass" else 0.0) if points is None else points
    return Verdict(exercise, earned, most, (case,), "graded", seed=seed, device="cpu")
