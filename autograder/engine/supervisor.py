"""Grade one exercise: the cases, the seed, the clock, the oracle and the verdict are here.

Student code runs elsewhere (see `session`); what comes back is data, compared in this process.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autograder.engine import SolutionCell, growth, jail
from autograder.engine.session import Infra, Session
from autograder.hidden import EXPLANATIONS, HIDDEN
from flashkit.exercises import EXERCISES
from flashkit.exercises.marking import points
from flashkit.exercises.model import Case, Exercise, Verdict
from flashkit.exercises.naming import name_bug, one_thread

PRELUDE = "imports"
PROVISIONAL = (
    "Graded in Triton's interpreter, which runs one program after another: a race between them "
    "cannot show here, so the mark is provisional until a GPU has confirmed it."
)


def grade(
    exercise_id: str,
    cells: Sequence[SolutionCell],
    *,
    prelude: str = "",
    device: str = "cpu",
    seed: int | None = None,
    scratch: Path,
    jailed: bool = True,
) -> Verdict:
    """The verdict on one exercise of a submission, whatever its cells do.

    cells are all solution cells in order, prelude the pristine cell of imports; scratch is an
    empty folder. device is "cpu" (Triton's interpreter) or "cuda". The cells run in a jail (see
    `jail`) unless jailed is false, which the verdict records. A fault of the machine is tried
    once more, then the status is "infra". Raises ValueError for an unknown exercise or device,
    JailError where there can be no jail.
    """
    _check(exercise_id, device, jailed)
    exercise, seed = EXERCISES[exercise_id], secrets.randbits(31) if seed is None else seed
    sources = [SolutionCell(PRELUDE, prelude), *cells]
    for attempt in ("first", "second"):
        verdict = _judged(
            Session(exercise, sources, device, Path(scratch) / attempt, jailed), seed
        )
        if verdict.status != "infra":
            break
    return verdict


def _judged(session: Session, seed: int) -> Verdict:
    """The verdict of one attempt; its status is "infra" where the machine failed."""
    try:
        with one_thread():
            return _graded(session, seed)
    except Infra as error:
        exercise, record = session.exercise, {"note": str(error), "jailed": session.jailed}
        empty = (exercise.id, 0.0, exercise.points, ())
        return Verdict(*empty, "infra", seed, session.device, **record)
    finally:
        session.stop()


def _check(exercise_id: str, device: str, jailed: bool) -> None:
    if exercise_id not in EXERCISES:
        raise ValueError(f"exercise must be one of {', '.join(EXERCISES)}, got {exercise_id!r}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    if jailed:
        jail.require(device)


def graded_cases(exercise: Exercise) -> tuple[Case, ...]:
    """The public cases, where they count, and the hidden ones."""
    public = exercise.public if exercise.public_counts else ()
    return public + HIDDEN.get(exercise.id, ())


def _graded(session: Session, seed: int) -> Verdict:
    exercise = session.exercise
    provisional = exercise.own_work == "kernel" and session.device == "cpu"
    cases = graded_cases(exercise)
    results = [session.run(case, seed) for case in cases]
    session.settle()
    known = [case.name for case in exercise.public]
    results = [replace(result, hidden=result.name not in known) for result in results]
    found = name_bug(exercise, cases, results, seed, session.probe, known)
    results += growth.results(session, seed)
    return Verdict(
        exercise=exercise.id,
        points=points(exercise, results),
        max_points=exercise.points,
        cases=tuple(results),
        status="graded",
        seed=seed,
        device=session.device,
        jailed=session.jailed,
        versions=session.versions,
        bug=found.bug,
        seen=found.seen,
        tile=next((result.tile for result in results if result.tile is not None), None),
        note=EXPLANATIONS.get(exercise.id, PROVISIONAL if provisional else ""),
        provisional=provisional,
    )
