"""Grade one exercise: the cases, the seed, the clock, the oracle and the verdict are here.

Student code runs elsewhere (see `session`); what comes back is data, compared in this process.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path

from autograder.engine import SolutionCell
from autograder.engine.session import Infra, Session
from autograder.hidden import EXPLANATIONS, HIDDEN
from flashkit.exercises import EXERCISES
from flashkit.exercises.marking import name_bug, points
from flashkit.exercises.model import Case, CaseResult, Exercise, Verdict

PRELUDE = "imports"


def grade(
    exercise_id: str,
    cells: Sequence[SolutionCell],
    *,
    prelude: str = "",
    device: str = "cpu",
    seed: int | None = None,
    scratch: Path,
) -> Verdict:
    """The verdict on one exercise of a submission, whatever its cells do.

    cells are all solution cells in order, prelude the pristine cell of imports; scratch is an
    empty folder. device is "cpu" (Triton's interpreter) or "cuda". ValueError for an unknown
    exercise or device.
    """
    if exercise_id not in EXERCISES:
        raise ValueError(f"exercise must be one of {', '.join(EXERCISES)}, got {exercise_id!r}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    exercise, seed = EXERCISES[exercise_id], secrets.randbits(31) if seed is None else seed
    cases = graded_cases(exercise)
    session = Session(exercise, [SolutionCell(PRELUDE, prelude), *cells], device, Path(scratch))
    try:
        results = [session.run(case, seed) for case in cases]
        return _verdict(exercise, cases, results, session, seed)
    except Infra as error:
        note = str(error)
        return Verdict(exercise.id, 0.0, exercise.points, (), "infra", seed, device, note=note)
    finally:
        session.stop()


def graded_cases(exercise: Exercise) -> tuple[Case, ...]:
    """The public cases, where they count, and the hidden ones."""
    public = exercise.public if exercise.public_counts else ()
    return public + HIDDEN.get(exercise.id, ())


def _verdict(
    exercise: Exercise,
    cases: tuple[Case, ...],
    results: list[CaseResult],
    session: Session,
    seed: int,
) -> Verdict:
    return Verdict(
        exercise=exercise.id,
        points=points(exercise, results),
        max_points=exercise.points,
        cases=tuple(results),
        status="graded",
        seed=seed,
        device=session.device,
        versions=session.versions,
        bug=name_bug(exercise, cases, results, seed),
        tile=next((result.tile for result in results if result.tile is not None), None),
        note=EXPLANATIONS.get(exercise.id, ""),
    )
