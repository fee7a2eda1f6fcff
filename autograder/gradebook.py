"""The marks, read from nbgrader's gradebook as plain rows."""

import csv
import io
from dataclasses import asdict, dataclass

from nbgrader.api import Gradebook, MissingEntry

from autograder.build import CHECK
from autograder.course import Course


@dataclass(frozen=True)
class Mark:
    """What one student has for one lesson; exercises maps each exercise to its points."""

    student: str
    lesson: str
    score: float
    max_score: float
    late_penalty: float
    needs_review: bool
    exercises: dict[str, float]


def marks(course: Course, lesson: str, students: list[str] | None = None) -> list[Mark]:
    """The marks of every graded student (or of `students`) in `lesson`, by name."""
    with Gradebook(course.directory.db_url, course.directory.course_id) as gradebook:
        names = students or sorted(s.student.id for s in _submissions(gradebook, lesson))
        found = [_mark(gradebook, lesson, name) for name in names]
    return [mark for mark in found if mark]


def _submissions(gradebook: Gradebook, lesson: str) -> list:
    try:
        return gradebook.assignment_submissions(lesson)
    except MissingEntry:
        return []


def _mark(gradebook: Gradebook, lesson: str, student: str) -> Mark | None:
    try:
        submission = gradebook.find_submission(lesson, student)
    except MissingEntry:
        return None
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    return Mark(
        student=student,
        lesson=lesson,
        score=submission.score,
        max_score=submission.max_score,
        late_penalty=submission.late_submission_penalty or 0.0,
        needs_review=any(grade.needs_manual_grade for grade in grades),
        exercises={grade.name.removeprefix(CHECK): grade.score for grade in grades},
    )


def registered(course: Course, lesson: str) -> dict[str, float]:
    """The check cells of `lesson` in the gradebook and their points; empty if it is not there."""
    with Gradebook(course.directory.db_url, course.directory.course_id) as gradebook:
        try:
            cells = gradebook.find_notebook(lesson, lesson).grade_cells
        except MissingEntry:
            return {}
        return {cell.name: float(cell.max_score) for cell in cells}


def as_csv(rows: list[Mark]) -> str:
    """`rows` as CSV, one line a student and lesson, with a header."""
    page = io.StringIO()
    names = [name for name in Mark.__dataclass_fields__ if name != "exercises"]
    writer = csv.DictWriter(page, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return page.getvalue()
