"""`autograder feedback`: a page for each student, without a line of hidden tests."""

from pathlib import Path

from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbgrader.preprocessors import ClearHiddenTests
from nbgrader.utils import is_grade, is_solution

from autograder.course import Course, CourseError


class FeedbackExporter(HTMLExporter):
    """The page of templates/feedback/: small, it loads nothing and runs nothing."""


class HideTests(ClearHiddenTests):
    """Removes hidden regions from check cells only: nothing a student writes can stop a page."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, cell_index: int):
        """Clear a check cell; leave any other as it is."""
        if is_grade(cell) and not is_solution(cell):
            return super().preprocess_cell(cell, resources, cell_index)
        return cell, resources


def feedback(course: Course, lesson: str, students: list[str]) -> list[Path]:
    """Write the feedback pages of `lesson` and return their paths. Raises CourseError by name."""
    pages = []
    for student in students:
        result = course.api.generate_feedback(lesson, student, force=True)
        if not result["success"]:
            reason = result.get("log", result["error"]).strip()
            raise CourseError(f"no feedback for {student} in {lesson}:\n{reason}")
        pages.append(course.path("feedback", student, lesson) / f"{lesson}.html")
    return pages
