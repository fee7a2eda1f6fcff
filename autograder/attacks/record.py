"""Grade a recorded class again, by the engine alone, and compare the marks: needs no nbgrader."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from autograder import engine
from autograder.attacks.direct import Result
from autograder.engine import SolutionCell
from autograder.pool import each

Check = tuple[str, str, str, tuple]
"""Exercise, device, imports, and the (id, source) of the cells: all that a mark depends on."""


def run_record(path: Path, device: str, jobs: int, say: Callable[[str], None]) -> list[Result]:
    """One row a student: the same marks as were recorded, or not. Equal work is graded once."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    wanted = {
        (student, exercise): (_check(of, exercise, device), points)
        for student, of in kept["students"].items()
        for exercise, points in of["marks"].items()
    }
    start, graded = time.monotonic(), {}
    tasks = [(check, kept["seed"]) for check in dict.fromkeys(c for c, _ in wanted.values())]
    for (check, _), got in each(grade_check, tasks, jobs):
        graded[check] = got or (None, 0.0)
        say(f"[{len(graded)}/{len(tasks)}] {check[0]}: {graded[check][0]}")
    say(f"{time.monotonic() - start:.0f} s for {len(tasks)} different checks, {jobs} at a time")
    return [_compared(name, wanted, graded, device) for name in kept["students"]]


def _check(of: dict, exercise: str, device: str) -> Check:
    return exercise, device, of["prelude"], tuple(map(tuple, of["cells"]))


def grade_check(check: Check, seed: int) -> tuple[float, float]:
    """The points of one check, and the seconds it took."""
    exercise, device, prelude, cells = check
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="check-") as scratch:
        verdict = engine.grade(
            exercise,
            [SolutionCell(*cell) for cell in cells],
            prelude=prelude,
            device=device,
            seed=seed,
            scratch=Path(scratch),
        )
    return verdict.points, time.monotonic() - start


def _compared(student: str, wanted: dict, graded: dict, device: str) -> Result:
    """What one student has here and had there."""
    mine = {
        e: (graded[check], points)
        for (who, e), (check, points) in wanted.items()
        if who == student
    }
    broken = [
        f"{exercise} got {got}, recorded were {points:g}"
        for exercise, ((got, _), points) in mine.items()
        if got != points
    ]
    total = sum(got or 0 for (got, _), _ in mine.values())
    seconds = sum(spent for (_, spent), _ in mine.values())
    return Result(student, "class", f"the same marks on {device}", total, tuple(broken), seconds)
