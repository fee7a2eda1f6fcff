"""solutions/ -> notebooks/: complete, repeatable, and nothing of the answer in it."""

import nbformat
import pytest
from nbgrader.api import Gradebook
from tiny_course import POINTS

from autograder.course import CourseError
from autograder.release import drift, release


def test_release_is_byte_identical_on_repetition(course):
    first = course.release("tiny").read_bytes()
    release(course, ["tiny"], POINTS)
    assert course.release("tiny").read_bytes() == first
    assert drift(course, ["tiny"], POINTS) == []


def test_release_holds_stubs_and_no_output(course):
    nb = nbformat.read(course.release("tiny"), as_version=4)
    text = "\n".join(cell.source for cell in nb.cells)
    assert text.count("raise NotImplementedError(") == 2
    assert "twice_the_number" not in text
    assert not any(cell.get("outputs") for cell in nb.cells)
    assert [p.name for p in course.release("tiny").parent.iterdir()] == ["tiny.ipynb"]


def test_release_enters_the_gradebook(course):
    with Gradebook(course.directory.db_url) as gradebook:
        assert gradebook.find_assignment("tiny").max_score == 5


@pytest.mark.parametrize("what", ["source", "notebook", "release"])
def test_drift_names_the_file(course, what):
    path = {
        "source": course.source("tiny").with_suffix(".py"),
        "notebook": course.source("tiny"),
        "release": course.release("tiny"),
    }[what]
    path.write_text(path.read_text().replace("A tiny lesson", "A small lesson"))
    found = drift(course, ["tiny"], POINTS)
    assert found
    assert any(str(path) in sentence for sentence in found)


def test_drift_sees_a_release_without_source(course):
    course.release("tiny").parent.joinpath("../ghost").mkdir()
    assert any("ghost" in sentence for sentence in drift(course, ["tiny"], POINTS))


def test_an_unbuilt_source_is_not_released(course):
    source = course.source("tiny").with_suffix(".py")
    source.write_text(source.read_text().replace("Twice x.", "Two times x."))
    before = course.release("tiny").read_bytes()
    with pytest.raises(CourseError, match="is not what .* builds"):
        release(course, ["tiny"], POINTS)
    assert course.release("tiny").read_bytes() == before


def test_a_refused_release_leaves_the_old_one(course):
    before = course.release("tiny").read_bytes()
    nb = nbformat.read(course.source("tiny"), as_version=4)
    nb.cells[0].attachments = {"answer.png": {"image/png": "AAAA"}}
    nbformat.write(nb, course.source("tiny"))
    with pytest.raises(CourseError, match="has attachments"):
        release(course, ["tiny"], POINTS)
    assert course.release("tiny").read_bytes() == before
