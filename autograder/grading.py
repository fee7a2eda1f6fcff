"""Grades submissions, each by nbgrader on its own, so that one student's failure stops nobody."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.utils import is_grade
from traitlets.config import Config

from autograder.attention import reasons
from autograder.course import Course, CourseError
from autograder.gradebook import Mark, marks, registered
from autograder.handed_in import fingerprint, refusal
from autograder.pool import each
from autograder.release import REPAIR, register

DIED = "the grading process died, and again when it ran alone: look at this submission by hand"


@dataclass(frozen=True)
class Outcome:
    """What became of one submission. status: graded, unchanged (since it was graded) or failed."""

    student: str
    lesson: str
    status: str
    reason: str = ""
    mark: Mark | None = None
    seconds: float = 0.0
    attention: tuple[str, ...] = ()  # why a person should look at it all the same


def prepare(course: Course, lesson: str) -> None:
    """Enter `lesson` in the gradebook unless it is there as released. Raises CourseError."""
    path = course.release(lesson)
    if not path.exists():
        raise CourseError(f"{path} is missing: {REPAIR}")
    checks = filter(is_grade, nbformat.read(path, as_version=4).cells)
    released = {c.metadata.nbgrader.grade_id: float(c.metadata.nbgrader.points) for c in checks}
    if registered(course, lesson) != released:
        register(course, lesson)
    if registered(course, lesson) != released:
        raise CourseError(f"{path} is not the release of {course.source(lesson)}: {REPAIR}")


def grade(
    folder: Path,
    overrides: Config,
    pairs: list[tuple[str, str]],
    *,
    jobs: int = 1,
    force: bool = False,
) -> Iterator[Outcome]:
    """Grade (lesson, student) pairs of the course in `folder`, `jobs` at a time.

    Each is graded in a process of its own, so that one which dies stops nobody else.
    """
    tasks = [(folder, overrides, lesson, student, force) for lesson, student in pairs]
    if len(tasks) == 1:
        yield _in_worker(*tasks[0])
        return
    for (_, _, lesson, student, _), outcome in each(_in_worker, tasks, jobs):
        yield outcome or Outcome(student, lesson, "failed", DIED)


def _in_worker(folder: Path, overrides: Config, lesson: str, student: str, force: bool) -> Outcome:
    try:
        return grade_one(Course(folder, overrides), lesson, student, force)
    except Exception as error:  # ours, or nbgrader's: the next student is graded all the same
        reason = f"grading failed: {type(error).__name__}: {error}"
        return Outcome(student, lesson, "failed", reason)


def grade_one(course: Course, lesson: str, student: str, force: bool) -> Outcome:
    """Grade one submission unless it is unchanged."""
    start = time.monotonic()
    folder = course.path("submitted", student, lesson)
    if reason := refusal(folder):
        return Outcome(student, lesson, "failed", reason)
    stamp = course.verdicts / student / lesson / "submission.sha256"
    print_now = fingerprint(folder, course.release(lesson))
    mark = next(iter(marks(course, lesson, [student])), None)
    settled = mark is not None and not mark.needs_review and stamp.exists()
    if settled and not force and stamp.read_text() == print_now:
        look = reasons(course, lesson, student)
        return Outcome(student, lesson, "unchanged", mark=mark, attention=look)
    result = course.api.autograde(lesson, student, force=True, create=True)
    log = _keep_log(course, lesson, student, result)
    if not result["success"]:
        reason = f"{result['error'].strip().splitlines()[-1]} (see {log})"
        return Outcome(student, lesson, "failed", reason)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(print_now)
    (mark,) = marks(course, lesson, [student])
    reason, look = f"see {log}" if mark.needs_review else "", reasons(course, lesson, student)
    return Outcome(student, lesson, "graded", reason, mark, time.monotonic() - start, look)


def _keep_log(course: Course, lesson: str, student: str, result: dict) -> Path:
    """Write what nbgrader said about one submission to a file."""
    log = course.work / "logs" / f"{student}-{lesson}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(result.get("log", "") + result.get("error", ""), encoding="utf-8")
    return log
