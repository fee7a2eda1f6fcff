"""Grades submissions, each by nbgrader on its own, so that one student's failure stops nobody."""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import nbformat
from nbgrader.utils import is_grade
from traitlets.config import Config

from autograder.course import Course, CourseError
from autograder.gradebook import Mark, marks, registered
from autograder.release import REPAIR, register


@dataclass(frozen=True)
class Outcome:
    """What became of one submission. status: graded, unchanged (since it was graded) or failed."""

    student: str
    lesson: str
    status: str
    reason: str = ""
    mark: Mark | None = None
    seconds: float = 0.0


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
    """Grade (lesson, student) pairs of the course in `folder`, `jobs` at a time."""
    if jobs == 1 or len(pairs) == 1:
        course = Course(folder, overrides)
        yield from (grade_one(course, lesson, student, force) for lesson, student in pairs)
        return
    with ProcessPoolExecutor(min(jobs, len(pairs)), mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(_in_worker, folder, overrides, *pair, force): pair for pair in pairs
        }
        for done in as_completed(waiting):
            lesson, student = waiting[done]
            try:
                yield done.result()
            except BrokenProcessPool:
                yield Outcome(student, lesson, "failed", "a grading process died: run this again")


def _in_worker(folder: Path, overrides: Config, lesson: str, student: str, force: bool) -> Outcome:
    return grade_one(Course(folder, overrides), lesson, student, force)


def grade_one(course: Course, lesson: str, student: str, force: bool) -> Outcome:
    """Grade one submission unless it is unchanged; never raises for what was handed in."""
    start = time.monotonic()
    folder = course.path("submitted", student, lesson)
    if reason := _cannot_choose(folder):
        return Outcome(student, lesson, "failed", reason)
    stamp = course.verdicts / student / lesson / "submission.sha256"
    print_now = fingerprint(folder, course.release(lesson))
    mark = next(iter(marks(course, lesson, [student])), None)
    settled = mark is not None and not mark.needs_review and stamp.exists()
    if settled and not force and stamp.read_text() == print_now:
        return Outcome(student, lesson, "unchanged", mark=mark)
    result = course.api.autograde(lesson, student, force=True, create=True)
    log = _keep_log(course, lesson, student, result)
    if not result["success"]:
        reason = f"{result['error'].strip().splitlines()[-1]} (see {log})"
        return Outcome(student, lesson, "failed", reason)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(print_now)
    (mark,) = marks(course, lesson, [student])
    reason = f"see {log}" if mark.needs_review else ""
    return Outcome(student, lesson, "graded", reason, mark, time.monotonic() - start)


def _cannot_choose(folder: Path) -> str:
    """Why no notebook of the submission can be graded; "" if one can."""
    names = [path.name for path in folder.glob("*.ipynb")]
    if not names:
        return "there is no notebook in the submission"
    if len(names) > 1 and f"{folder.name}.ipynb" not in names:
        return f"{len(names)} notebooks, none of them called {folder.name}.ipynb"
    return ""


def fingerprint(folder: Path, release: Path) -> str:
    """A hash of the submitted notebooks, whatever they are called, and of what was released."""
    digest = hashlib.sha256(release.read_bytes())
    for content in sorted(hashlib.sha256(p.read_bytes()).digest() for p in folder.glob("*.ipynb")):
        digest.update(content)
    return digest.hexdigest()


def _keep_log(course: Course, lesson: str, student: str, result: dict) -> Path:
    """Write what nbgrader said about one submission to a file."""
    log = course.work / "logs" / f"{student}-{lesson}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(result.get("log", "") + result.get("error", ""), encoding="utf-8")
    return log
