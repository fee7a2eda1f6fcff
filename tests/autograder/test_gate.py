"""Each thing that must not reach a student is found, and named by cell and file."""

import nbformat
import pytest

from autograder.gate import MAX_BYTES, dead_links, inspect_folder, secret_lines


def source_of(course):
    return nbformat.read(course.source("tiny"), as_version=4)


def problems(course, change):
    """What the gate says after `change` was made to the released notebook."""
    path = course.release("tiny")
    nb = nbformat.read(path, as_version=4)
    change({cell.id: cell for cell in nb.cells}, nb)
    path.write_text(nbformat.writes(nb))
    return inspect_folder(path.parent, source_of(course))


def test_the_release_passes(course):
    assert problems(course, lambda cells, nb: None) == []


LEAKS = {
    "holds a line of the solution": lambda c, nb: c["cell-02"].update(
        source="  Twice_The_Number=[ x,x ]  # like this"
    ),
    "'BEGIN SOLUTION'": lambda c, nb: c["double"].update(source="### BEGIN SOLUTION"),
    "'HIDDEN TEST'": lambda c, nb: c["check-double"].update(source="### BEGIN HIDDEN TEST"),
    "without its stub": lambda c, nb: c["double"].update(source="def double(x): ..."),
    "has outputs": lambda c, nb: c["cell-02"].update(
        outputs=[nbformat.v4.new_output("stream", text="4")]
    ),
    "has an execution count": lambda c, nb: c["cell-02"].update(execution_count=3),
    "has attachments": lambda c, nb: c["cell-02"].update(attachments={"a": {"image/png": ""}}),
    "has metadata 'answer'": lambda c, nb: c["cell-02"].metadata.update(answer=42),
    "has the tag 'nbval-skip'": lambda c, nb: c["cell-02"].metadata.update(tags=["nbval-skip"]),
    "has notebook metadata 'widgets'": lambda c, nb: nb.metadata.update(widgets={"state": {}}),
    "can be edited": lambda c, nb: c["check-double"].metadata.update(editable=True),
    "weighs": lambda c, nb: c["cell-02"].update(source="#" * MAX_BYTES),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_named(course, leak):
    found = problems(course, LEAKS[leak])
    assert any(leak in sentence for sentence in found), found
    assert all(str(course.release("tiny")) in sentence for sentence in found)


@pytest.mark.parametrize("name", ["tiny.py", "answers/key.txt", "other.ipynb"])
def test_no_other_file_is_released(course, name):
    path = course.release("tiny").parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("the answers")
    (sentence,) = inspect_folder(course.release("tiny").parent, source_of(course))
    assert sentence == f"{path}: only tiny.ipynb may be released"


def test_a_missing_notebook_is_named(course):
    course.release("tiny").unlink()
    (sentence,) = inspect_folder(course.release("tiny").parent, source_of(course))
    assert "is missing" in sentence


def test_public_and_trivial_lines_are_no_secret(course):
    nb = source_of(course)
    assert "returnmath.sqrt(squares_of_sides)" in secret_lines(nb)
    nb.cells[0].source += "\nreturn math.sqrt(squares_of_sides)"
    assert "returnmath.sqrt(squares_of_sides)" not in secret_lines(nb)


def test_a_solution_cell_without_a_region_is_all_secret(course):
    nb = source_of(course)
    nb.cells[3].source = "def double(x):\n    return an_answer_without_region(x)"
    assert "returnan_answer_without_region(x)" in secret_lines(nb)


def test_dead_links_are_named(tmp_path):
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("[a]: a/a.ipynb")])
    assert dead_links(page, tmp_path) == ["the start page links to a/a.ipynb: no such file"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.ipynb").touch()
    assert dead_links(page, tmp_path) == []
