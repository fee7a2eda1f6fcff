"""Answers are found in whatever state a submission is, and nothing else gets through."""

import json

import nbformat
import pytest
from submissions import FULL_MARKS, RIGHT, cell, hand_in, right

from autograder.intake import MISSING, parses, settle_names, transplant, without_magics


def taken(course, content, name="tiny.ipynb"):
    release = nbformat.read(course.release("tiny"), as_version=4)
    return transplant(release, hand_in(course, "ann", content, name))


@pytest.mark.parametrize("damage", FULL_MARKS, ids=lambda f: f.__name__)
def test_answers_survive(course, damage):
    nb = taken(course, damage(right(course)))
    assert {name: cell(nb, name).source for name in RIGHT} == RIGHT


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings(course, encoding):
    nb = right(course)
    cell(nb, "double").source = "def double(x):\n    # zweimal, bitte schön\n    return 2 * x"
    text = json.dumps(nb, ensure_ascii=False)
    assert "schön" in cell(taken(course, text.encode(encoding)), "double").source


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"\x89PNG\r\n", "not valid JSON"),
        (b"[" * 100_000, "not a notebook"),
        (b"[]", "no list of cells"),
        (b'{"cells": 3}', "no list of cells"),
        (b'{"cells": [\n<<<<<<< HEAD\n', "merge conflict"),
        (b'{"cells": [{"cell_type": "code"', "its end is missing"),
    ],
)
def test_unreadable_files_say_why_and_leave_the_stubs(course, content, why):
    nb = taken(course, content)
    assert why in nb.metadata.autograder.unreadable
    assert "raise NotImplementedError" in cell(nb, "double").source


def test_only_sources_of_answers_are_taken_over(course):
    submitted = right(course)
    cell(submitted, "check-double").source = "print('full marks please')"
    cell(submitted, "imports").source = "import evil"
    cell(submitted, "double").metadata["tags"] = ["skip-execution"]
    text = json.dumps(taken(course, submitted))
    assert "full marks" not in text
    assert "evil" not in text
    assert "skip-execution" not in text


def test_a_deleted_answer_leaves_the_stub_and_a_note(course):
    submitted = right(course)
    submitted.cells = [c for c in submitted.cells if c.id != "double"]
    nb = taken(course, submitted)
    assert "raise NotImplementedError" in cell(nb, "double").source
    assert cell(nb, "double").metadata.autograder.note == MISSING
    assert cell(nb, "hypotenuse").metadata.autograder.note == ""


def test_an_answer_beside_its_untouched_stub_is_found(course):
    submitted = right(course)
    stub = nbformat.read(course.release("tiny"), as_version=4)
    cell(submitted, "double").source = cell(stub, "double").source
    submitted.cells.append(nbformat.v4.new_code_cell(RIGHT["double"]))
    nb = taken(course, submitted)
    assert cell(nb, "double").source == RIGHT["double"]
    assert "the function's name" in cell(nb, "double").metadata.autograder.note


def test_an_answer_in_two_cells_is_read_in_order(course):
    submitted = right(course)
    second = nbformat.from_dict(cell(submitted, "double"))
    cell(submitted, "double").source = "HALF = 0.5"
    submitted.cells.append(second)
    source = cell(taken(course, submitted), "double").source
    assert source == f"HALF = 0.5\n\n{RIGHT['double']}"


def test_of_two_answers_the_one_that_is_python_counts(course):
    submitted = right(course)
    second = nbformat.from_dict(cell(submitted, "double"))
    second.source = "def double(x:\n"
    submitted.cells.append(second)
    assert cell(taken(course, submitted), "double").source == RIGHT["double"]


def test_lone_surrogates_do_not_stop_nbgrader(course):
    submitted = right(course)
    text = json.dumps(submitted).replace("return 2 * x", "return 2 * x  # \\ud800")
    cell(taken(course, text), "double").source.encode()


def test_a_download_gets_its_name_back(course):
    path = hand_in(course, "ann", right(course), "tiny (1).ipynb")
    notebooks = [str(path)]
    settle_names("tiny", "ann", notebooks)
    assert notebooks == [str(path.with_name("tiny.ipynb"))]
    assert path.with_name("tiny.ipynb").exists()


def test_an_unreadable_timestamp_is_set_aside(course):
    path = hand_in(course, "ann", right(course))
    path.with_name("timestamp.txt").write_text("yesterday evening")
    settle_names("tiny", "ann", [str(path)])
    assert not path.with_name("timestamp.txt").exists()


def test_magics_become_comments_and_python_stays():
    source = "%%time\ndef f(x):\n    !nvidia-smi\n    return (x\n        % 2)"
    assert not parses(source)
    plain = without_magics(source)
    assert plain.splitlines()[0] == "pass  # %%time"
    assert plain.splitlines()[2] == "    pass  # !nvidia-smi"
    assert without_magics("y = (5\n% 2)") == "y = (5\n% 2)"
