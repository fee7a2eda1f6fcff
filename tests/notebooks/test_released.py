"""What students get: it runs, fails exactly its own checks, and gives nothing away."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader", reason="the autograder needs the extra `grading`")

from autograder import gate  # noqa: E402
from autograder.cli import POINTS  # noqa: E402
from autograder.course import Course  # noqa: E402
from autograder.release import drift  # noqa: E402

COURSE = Course()
LESSONS = COURSE.lessons()
NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]
QUIET = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--override-ini=timeout=0"]


def run_unsolved(notebook):
    """Run nbval over `notebook` with its check cells as strict expected failures."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *NBVAL, *QUIET, "-p", "unsolved", str(notebook)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lesson", LESSONS)
def test_an_unsolved_lesson_fails_exactly_its_own_checks(lesson):
    notebook = COURSE.release(lesson)
    checks = sum(
        bool(cell.metadata.get("nbgrader", {}).get("grade"))
        for cell in nbformat.read(notebook, as_version=4).cells
    )
    done = run_unsolved(notebook)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(rf"\b{checks} xfailed", done.stdout), done.stdout[-500:]


def test_a_check_that_passes_unsolved_is_caught(tmp_path):
    passing = nbformat.v4.new_code_cell("assert True", metadata={"nbgrader": {"grade": True}})
    nbformat.write(nbformat.v4.new_notebook(cells=[passing]), tmp_path / "lesson.ipynb")
    done = run_unsolved(tmp_path / "lesson.ipynb")
    assert done.returncode == 1
    assert "XPASS(strict)" in done.stdout


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_release_leaks_nothing(lesson):
    source = nbformat.read(COURSE.source(lesson), as_version=4)
    assert gate.secret_lines(source), "the solution has no lines to look for"
    assert gate.inspect_folder(COURSE.release(lesson).parent, source) == []


def test_notebooks_are_what_solutions_make():
    assert drift(COURSE, LESSONS, POINTS) == []
