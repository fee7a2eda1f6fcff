"""A lesson's source becomes a sound notebook, or the author is told what is wrong with it."""

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator
from tiny_course import POINTS, SOURCE

from autograder.build import build, read_lesson
from autograder.course import CourseError


def broken(tmp_path, old, new):
    """The tiny lesson's source with `old` replaced by `new`."""
    text = SOURCE.read_text()
    assert old in text
    (tmp_path / "tiny.py").write_text(text.replace(old, new))
    return tmp_path / "tiny.py"


def test_metadata_is_complete_and_ids_are_stable():
    nb = read_lesson(SOURCE, POINTS)
    MetadataValidator().validate_nb(nb)
    names = [cell.id for cell in nb.cells]
    assert names[1:] == [
        "imports",
        "cell-02",
        "double",
        "check-double",
        "hypotenuse",
        "check-hypotenuse",
    ]
    marks = {cell.id: cell.metadata.get("nbgrader", {}) for cell in nb.cells}
    assert marks["check-double"].locked
    assert marks["imports"].locked
    assert not marks["double"].locked
    assert nb == read_lesson(SOURCE, POINTS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"points": 2', '"points": 5', r"must carry the exercise's points 2, got 5"),
        (', "points": 2', "", r"must carry the exercise's points 2, got None"),
        ('"grade_id": "hypotenuse"', '"grade_id": "double"', "'double' is used twice"),
        ('"check-double"', '"check-triple"', "'check-triple' has no solution cell 'triple'"),
        (
            '# %% nbgrader={"grade_id": "check-double", "grade": true, "points": 2}',
            "# %%",
            "'double' has no check cell",
        ),
        ('"grade_id": "imports"', '"grade_id": ""', "cell 1 has .* without a grade_id"),
        ('"solution": true', '"solutoin": true', "unknown key 'solutoin'"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    with pytest.raises(CourseError, match=message):
        read_lesson(broken(tmp_path, old, new), POINTS)


def test_the_built_notebook_is_executed_and_carries_nothing_of_the_machine(course):
    nb = nbformat.read(course.source("tiny"), as_version=4)
    assert nb.cells[2].outputs[0].text == "1.4142\n"
    assert set(nb.metadata) == {"kernelspec", "language_info"}
    assert nb.metadata.language_info == {"name": "python"}
    assert all("execution" not in cell.metadata for cell in nb.cells)


def test_two_builds_are_byte_identical(course):
    first = course.source("tiny").read_bytes()
    build(course.source("tiny").with_suffix(".py"), POINTS, course.root)
    assert course.source("tiny").read_bytes() == first


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("object()", "cell cell-02 prints a memory address"),
        ("import sys; sys.stderr.write('warning')", r"cell cell-02 prints on stderr"),
        ("import tempfile; tempfile.gettempdir() + '/'", "a temporary path"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_would_change_from_run_to_run_is_refused(tmp_path, code, message):
    source = broken(tmp_path, 'print(f"{math.sqrt(2):.4f}")', code)
    with pytest.raises(CourseError, match=message):
        build(source, POINTS, tmp_path / "elsewhere")
    assert not source.with_suffix(".ipynb").exists()
