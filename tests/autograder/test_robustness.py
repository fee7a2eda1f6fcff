"""What lies in a folder can be anything: each gets its marks or a reason, and the next goes on."""

import json
import os

import nbformat
import pytest
from submissions import RIGHT, cell, hand_in, right

from autograder.cli import main
from autograder.feedback import feedback
from autograder.gradebook import marks
from autograder.handed_in import refusal
from autograder.intake import settle_names
from autograder.pool import each
from autograder.reading import MAX_SOURCE, Unreadable, read_cells

OUTPUT = "x" * 50_000_000


def grade(course, *options):
    return main(["--course", str(course.folder), "grade", "tiny", "--jobs", "1", *options])


def rows(capsys):
    return {row["student"]: row for row in json.loads(capsys.readouterr().out)}


def submitted(course, student):
    folder = course.path("submitted", student, "tiny")
    folder.mkdir(parents=True)
    return folder


def loud(course):
    """The right answers under 50 MB of outputs and a widget's stale state."""
    nb = json.loads(json.dumps(right(course)))
    nb["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": OUTPUT}]
    nb["metadata"]["widgets"] = {
        "application/vnd.jupyter.widget-state+json": {"state": OUTPUT[:9]}
    }
    return nb


def linked(course, target):
    (submitted(course, "linked") / "tiny.ipynb").symlink_to(target)


def linked_folder(course, target):
    course.path("submitted", "linked", "tiny").parent.mkdir()
    course.path("submitted", "linked", "tiny").symlink_to(target.parent)


def piped(course, target):
    os.mkfifo(submitted(course, "linked") / "tiny.ipynb")


def linked_beside(course, target):
    hand_in(course, "linked", right(course)).with_name("data.csv").symlink_to("/dev/zero")


@pytest.mark.parametrize("trick", [linked, linked_folder, piped, linked_beside])
def test_links_and_pipes_are_refused_and_the_next_is_graded(course, capsys, trick):
    trick(course, hand_in(course, "ann", right(course)))
    hand_in(course, "zoe", right(course))
    assert grade(course, "--json") == 1
    got = rows(capsys)
    assert got["linked"]["mark"] is None
    assert "link" in got["linked"]["reason"]
    assert got["ann"]["mark"]["score"] == got["zoe"]["mark"]["score"] == 5.0


def test_nbgraders_own_way_in_removes_links(course):
    path = hand_in(course, "ann", right(course))
    link = path.with_name("other.ipynb")
    link.symlink_to(path)
    names = [str(link), str(path)]
    settle_names("tiny", "ann", names)
    assert names == [str(path)]
    assert not link.is_symlink()


def test_folders_that_hold_no_notebook_say_what_they_hold(course):
    (submitted(course, "folder") / "tiny.ipynb").mkdir()
    assert "only tiny.ipynb/" in refusal(course.path("submitted", "folder", "tiny"))
    for n in range(5):
        hand_in(course, "many", b"", f"{n}.txt")
    assert "only 0.txt, 1.txt, 2.txt, ..." in refusal(course.path("submitted", "many", "tiny"))
    assert "the folder is empty" in refusal(submitted(course, "none"))


NAMES = ["Zoë Müller", "o'neil & co", "50%", "-n", ".hidden", "a.b+c@d", "'; drop table grade;"]


def test_names_of_all_kinds(course, capsys):
    for name in (*NAMES, "*", "[ab]", "{x}"):
        hand_in(course, name, right(course))
    assert grade(course, "--json") == 1
    got = rows(capsys)
    assert {name: got[name]["mark"]["score"] for name in NAMES} == dict.fromkeys(NAMES, 5.0)
    for name in ("*", "[ab]", "{x}"):
        assert got[name]["mark"] is None
        assert "takes for a pattern" in got[name]["reason"]


def test_the_table_names_who_needs_a_person_and_why(course, capsys):
    hand_in(course, "ann", right(course))
    hand_in(course, "bob", b"<<<<<<< HEAD\n")
    hand_in(course, "cleo", right(course))
    hand_in(course, "cleo", right(course), "tiny (1).ipynb")
    nb = right(course)
    for c in nb.cells:
        c.metadata, c.id = {}, f"x{c.id}"
    stub = nbformat.read(course.release("tiny"), as_version=4)
    source = cell(stub, "double").source.replace("def double", "def Double")
    cell(nb, "xdouble").source = f"{source}\n    return 2 * x"
    hand_in(course, "dora", nb)
    hand_in(course, "eve", b"", "notes.txt")
    assert grade(course) == 1
    table = capsys.readouterr().out.split("needs a person")[1]
    assert "ann" not in table
    assert (
        "bob             nothing could be read, so it got 0: The file is not a notebook" in table
    )
    assert "cleo            tiny.ipynb was graded, and not tiny (1).ipynb beside it" in table
    assert "dora            double was found by its text alone: is it the right cell?" in table
    assert (
        "eve             not graded: there is no notebook in the submission, only notes" in table
    )


def test_large_outputs_and_widget_state_cost_nothing(course, tmp_path):
    nb = loud(course)
    path = tmp_path / "tiny.ipynb"
    path.write_text(json.dumps(nb))
    assert RIGHT["double"] in [c.source for c in read_cells(path)]


def test_what_is_too_much_is_told(course, tmp_path):
    path = tmp_path / "tiny.ipynb"
    path.write_text(json.dumps({"cells": [{}] * 6000}))
    with pytest.raises(Unreadable, match="has 6000 cells, at most 5000"):
        read_cells(path)
    path.write_text(json.dumps({"cells": [{"source": "x" * (MAX_SOURCE + 1)}]}))
    (only,) = read_cells(path)
    with pytest.raises(ValueError, match="more than 100000 characters"):
        exec(only.source)


def test_a_task_that_kills_its_process_is_given_up_and_no_other():
    fatal = "__import__('os')._exit(1)"
    tasks = [("0",), ("1",), (fatal,), ("3",), ("4",)]
    assert dict(each(eval, tasks, jobs=2)) == {
        (text,): None if text == fatal else int(text) for (text,) in tasks
    }


def test_grading_goes_on_when_its_process_dies(course, capsys, monkeypatch):
    for student, source in (("ann", RIGHT["double"]), ("bob", "import os\nos._exit(1)")):
        nb = right(course)
        cell(nb, "double").source = source
        hand_in(course, student, nb)
    hand_in(course, "zoe", right(course))
    assert grade(course, "--json") == 1
    got = rows(capsys)
    assert "the grading process died" in got["bob"]["reason"]
    assert {mark.student: mark.score for mark in marks(course, "tiny") if mark.score} == {
        "ann": 5.0,
        "zoe": 5.0,
    }


def test_the_seed_stays_with_the_course(course):
    hand_in(course, "ann", right(course))
    grade(course)
    seed = json.loads((course.verdicts / "ann" / "tiny" / "double.json").read_text())["seed"]
    (page,) = feedback(course, "tiny", ["ann"])
    returned = course.path("autograded", "ann", "tiny") / "tiny.ipynb"
    assert seed > 0
    assert str(seed) not in page.read_text()
    assert str(seed) not in returned.read_text()


def test_a_cell_that_looks_for_the_grader_is_to_be_read(course, capsys):
    nb = right(course)
    cell(nb, "double").source = "import ctypes\n" + RIGHT["double"]
    hand_in(course, "ann", nb)
    hand_in(course, "bob", right(course))
    assert grade(course) == 0
    table = capsys.readouterr().out.split("needs a person")[1]
    assert "ann             double names ctypes, which no answer needs: read it" in table
    assert "bob" not in table
