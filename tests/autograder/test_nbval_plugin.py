"""The engine's verdicts as tests of a student's notebook."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest
from submissions import cell, hand_in, right, without_check_cells

from autograder.course import REPOSITORY, Course

OPTIONS = ("-p", "autograder.nbval_plugin", "-p", "no:cacheprovider", "--rootdir", ".", "-q")


def run(notebook: Path, *options: str) -> subprocess.CompletedProcess:
    """pytest with the plugin over one notebook, in a process of its own."""
    program = [sys.executable, "-m", "pytest", *OPTIONS, *options, str(notebook)]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, REPOSITORY)))}
    return subprocess.run(
        program, cwd=notebook.parent, env=os.environ | paths, capture_output=True, text=True
    )


def cases(folder: Path) -> dict[str, ElementTree.Element]:
    """The test cases of the JUnit file by name."""
    return {
        case.get("name"): case for case in ElementTree.parse(folder / "r.xml").iter("testcase")
    }


@pytest.fixture
def judged(course):
    """A function that hands in a notebook of the tiny course and runs the plugin over it."""

    def judged(content, name="tiny.ipynb", options=("--nbval-lax", "--junit-xml=r.xml")):
        path = hand_in(course, "ada", content, name)
        return run(path, "--course", str(course.folder), *options), path.parent

    return judged


def test_full_marks_pass_with_their_points(course, judged):
    done, folder = judged(right(course))
    assert done.returncode == 0, done.stdout
    found = cases(folder)
    assert list(found) == ["double", "hypotenuse"]
    points = {p.get("name"): p.get("value") for p in found["double"].iter("property")}
    assert (points["points"], points["max_points"], points["device"]) == ("2.0", "2.0", "cpu")


def test_a_wrong_answer_fails_its_own_check_with_the_report(course, judged):
    nb = right(course)
    cell(nb, "double").source = "def double(x):\n    return 3 * x"
    done, folder = judged(nb)
    assert done.returncode == 1
    found = cases(folder)
    assert found["hypotenuse"].find("failure") is None
    assert "double" in found["double"].find("failure").text
    assert "Traceback" not in done.stdout


def test_deleting_the_checks_deletes_no_test(course, judged):
    done, folder = judged(without_check_cells(right(course)), name="lab (1).ipynb")
    assert done.returncode == 0, done.stdout
    assert list(cases(folder)) == ["double", "hypotenuse"]


def test_a_notebook_of_no_lesson_is_refused_by_name(judged):
    done, _ = judged(nbformat.v4.new_notebook(), name="diary.ipynb")
    assert done.returncode == 2
    assert "diary.ipynb shares no cell with a lesson (tiny)" in done.stdout


def test_a_file_that_is_no_notebook_gets_nothing(judged):
    done, folder = judged("<<<<<<< mine\n")
    assert done.returncode == 1
    assert all("merge conflict" in case.find("failure").text for case in cases(folder).values())


def test_only_what_nbval_was_asked_for(course, judged):
    done, _ = judged(right(course), options=())
    assert done.returncode == pytest.ExitCode.USAGE_ERROR  # no collector takes the file


def test_a_killed_process_is_reported(tmp_path):
    lesson = "01_worked_example"
    nb = nbformat.read(Course().release(lesson), as_version=4)
    cell(nb, "online_update").source = "import os\nos.kill(os.getpid(), 9)"
    nbformat.write(nb, tmp_path / f"{lesson}.ipynb")
    options = ("--nbval-lax", "--junit-xml=r.xml", "--grade-device", "cpu", "-k", "online_update")
    done = run(tmp_path / f"{lesson}.ipynb", *options)
    assert done.returncode == 1
    assert "process ended" in cases(tmp_path)["online_update"].find("failure").text
