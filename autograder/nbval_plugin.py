"""The engine's verdicts as tests: what nbgrader marks, a CI sees under the same hidden cases.

    pytest --nbval-lax -p autograder.nbval_plugin SUBMISSION.ipynb --junit-xml=report.xml

nbval would run a student's notebook in a Jupyter kernel: unjailed, and it waits for a kernel that
died. This plugin takes the notebooks that nbval picks and makes each check of the lesson a test of
its own, judged by the engine with the course's settings. No student code runs in this process, and
what kills its worker fails its own check within the limit of that check.
"""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbgrader.utils import is_grade

from autograder.build import CHECK
from autograder.course import REPOSITORY, Course
from autograder.execute import EngineExecute
from autograder.intake import transplant
from autograder.reading import Unreadable, read_cells


class Failed(Exception):
    """A check that is not at full marks; the text is the report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The course and the device, for runs outside the repository."""
    group = parser.getgroup("autograder", "verdicts on students' notebooks")
    group.addoption("--course", type=Path, default=REPOSITORY, help="the folder of the course")
    group.addoption("--grade-device", choices=["cpu", "cuda"], help="default: what there is")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector):
    """Take the place of nbval's collector for each notebook that nbval was told to run."""
    collectors = yield
    wanted = parent.config.option.nbval or parent.config.option.nbval_lax
    if file_path.suffix == ".ipynb" and wanted:
        return [Submission.from_parent(parent, path=file_path)]
    return collectors


class Submission(pytest.File):
    """A student's notebook: one test for each check cell of its lesson."""

    def collect(self) -> Iterator[pytest.Item]:
        """The checks of the release, whatever became of the submission's own check cells."""
        course, device = Course(self.config.option.course), self.config.option.grade_device
        nb = transplant(self._release(course), self.path)
        judge = EngineExecute(config=course.config, **({"device": device} if device else {}))
        for cell in filter(is_grade, nb.cells):
            name = cell.metadata.nbgrader.grade_id.removeprefix(CHECK)
            yield Check.from_parent(self, name=name, nb=nb, cell=cell, judge=judge)

    def _release(self, course: Course) -> NotebookNode:
        """The release that the notebook comes from: by its name, else by the cells they share."""
        releases = {
            lesson: nbformat.read(course.release(lesson), as_version=4)
            for lesson in course.lessons()
            if course.release(lesson).exists()
        }
        if self.path.stem in releases:
            return releases[self.path.stem]
        try:
            ids = {name for c in read_cells(self.path) for name in (c.grade_id, c.cell_id)}
        except Unreadable as why:
            raise self.CollectError(f"{self.path.name}: {why}") from None
        shared = {name: len(ids & {c.id for c in nb.cells}) for name, nb in releases.items()}
        if not any(shared.values()):
            lessons = ", ".join(releases) or "none is released"
            raise self.CollectError(f"{self.path.name} shares no cell with a lesson ({lessons})")
        return releases[max(shared, key=shared.get)]


class Check(pytest.Item):
    """One check cell: passed at full marks, with the report as the reason where it is not."""

    def __init__(self, *, nb: NotebookNode, cell: NotebookNode, judge: EngineExecute, **kw):
        super().__init__(**kw)
        self.nb, self.cell, self.judge = nb, cell, judge

    def runtest(self) -> None:
        """Judge the cell; points, bug and device go to the JUnit file as properties."""
        verdict, (_, text) = self.judge.judge(self.nb, self.cell)
        for name in ("points", "max_points", "bug", "device"):
            self.user_properties.append((name, getattr(verdict, name)))
        if verdict.status != "graded" or verdict.points < verdict.max_points:
            raise Failed(text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo, style=None):
        """The report as a student reads it; a traceback only for a fault of ours."""
        known = isinstance(excinfo.value, Failed)
        return str(excinfo.value) if known else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where the check is, for pytest's summary."""
        return self.path, None, f"{self.path.name}: {self.name}"
