"""A class of submissions in every state: each gets its marks, none stops another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from submissions import FULL_MARKS, cell, hand_in, right

from autograder.cli import main
from autograder.feedback import feedback
from autograder.gradebook import marks

NBGRADER = Path(sys.executable).with_name("nbgrader")


def with_double(course, source):
    nb = right(course)
    cell(nb, "double").source = source
    return nb


def a_class(course):
    """Hand in for everybody; the marks they must get."""
    for damage in FULL_MARKS:
        hand_in(course, damage.__name__, damage(right(course)))
    hand_in(course, "renamed", right(course), "tiny (1).ipynb")
    hand_in(course, "untouched", course.release("tiny").read_bytes())
    hand_in(course, "empty", b"")
    hand_in(course, "merge", "<<<<<<< HEAD\n")
    hand_in(course, "utf16", json.dumps(right(course)).encode("utf-16"))
    hand_in(course, "loops", with_double(course, "def double(x):\n    while True: pass"))
    hand_in(course, "raises", with_double(course, "def double(x):\n    return x.no_such_thing"))
    nb = right(course)
    nb.cells = [c for c in nb.cells if c.id != "double"]
    hand_in(course, "missing", nb)
    full = {damage.__name__: 5.0 for damage in FULL_MARKS}
    none = {"untouched": 0.0, "empty": 0.0, "merge": 0.0}
    some = {"loops": 3.0, "raises": 3.0, "missing": 3.0}
    return full | none | some | {"renamed": 5.0, "utf16": 5.0}


def grade(course, *options):
    return main(["--course", str(course.folder), "grade", "tiny", "--jobs", "1", *options])


def scores(course):
    return {mark.student: mark.score for mark in marks(course, "tiny")}


def test_every_submission_gets_its_marks(course, capsys):
    wanted = a_class(course)
    assert grade(course, "--json") == 0
    assert scores(course) == wanted
    assert {row["student"] for row in json.loads(capsys.readouterr().out)} == set(wanted)


def test_plain_nbgrader_gives_the_same_marks(course):
    wanted = a_class(course)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [NBGRADER, "autograde", "tiny"]
    done = subprocess.run(command, cwd=course.folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert scores(course) == wanted


def test_a_folder_nothing_can_be_graded_from_fails_alone(course, capsys):
    hand_in(course, "ann", right(course))
    hand_in(course, "two", right(course), "a.ipynb")
    hand_in(course, "two", right(course), "b.ipynb")
    hand_in(course, "zip", b"PK", "tiny.zip")
    assert grade(course) == 1
    assert scores(course) == {"ann": 5.0}
    table = capsys.readouterr().out
    assert "2 notebooks, none of them called tiny.ipynb" in table
    assert "there is no notebook" in table


@pytest.mark.parametrize("text", ["grader bug", "NaN points"])
def test_our_own_failure_is_no_mark_and_is_flagged(course, capsys, text):
    hand_in(course, "ann", with_double(course, f"def double(x):\n    return 2 * x  # {text}"))
    assert grade(course) == 1
    (mark,) = marks(course, "tiny")
    assert mark.exercises == {"double": 0.0, "hypotenuse": 3.0}
    assert mark.needs_review
    assert "needs review" in capsys.readouterr().out
    record = json.loads((course.verdicts / "ann" / "tiny" / "double.json").read_text())
    assert record["status"] == "infra"


def test_unchanged_work_is_not_graded_again(course, capsys):
    hand_in(course, "ann", right(course))
    grade(course)
    capsys.readouterr()
    grade(course)
    assert "unchanged" in capsys.readouterr().err
    grade(course, "--force")
    assert "unchanged" not in capsys.readouterr().err
    hand_in(course, "ann", with_double(course, "def double(x):\n    return x"))
    grade(course)
    assert scores(course) == {"ann": 3.0}


def test_two_at_a_time(course):
    for student in ("ann", "bob", "cleo"):
        hand_in(course, student, right(course))
    assert main(["--course", str(course.folder), "grade", "tiny", "--jobs", "2"]) == 0
    assert scores(course) == {"ann": 5.0, "bob": 5.0, "cleo": 5.0}


def test_everybody_is_asked_the_same(course):
    for student in ("ann", "bob"):
        hand_in(course, student, right(course))
    grade(course)
    records = [course.verdicts / student / "tiny" / "double.json" for student in ("ann", "bob")]
    first, second = (json.loads(record.read_text())["seed"] for record in records)
    grade(course, "--force")
    assert first == second == json.loads(records[0].read_text())["seed"]


def test_each_check_cell_has_one_report_and_one_number(course):
    hand_in(course, "ann", with_double(course, "def double(x):\n    return x"))
    grade(course)
    nb = nbformat.read(course.path("autograded", "ann", "tiny") / "tiny.ipynb", as_version=4)
    outputs = {c.id: c.get("outputs", []) for c in nb.cells}
    assert not outputs["double"]
    report, points = outputs["check-double"]
    assert (report.output_type, points.output_type) == ("display_data", "execute_result")
    assert points.data["text/plain"] == "0.0"
    assert "wanted 4, got 2" in report.data["text/html"]


def test_feedback_shows_the_report_and_no_hidden_test(course):
    hidden = "def double(x):\n    return x\n### BEGIN HIDDEN TESTS\nmy_own_text = 1"
    hand_in(course, "ann", with_double(course, hidden))
    hand_in(course, "bob", b"")
    grade(course)
    path = course.path("autograded", "bob", "tiny") / "tiny.ipynb"
    path.chmod(0o644)
    nb = nbformat.read(path, as_version=4)
    cell(nb, "check-double").source += "\n### BEGIN HIDDEN TESTS\nsecret()\n### END HIDDEN TESTS"
    nbformat.write(nb, path)
    ann, bob = (page.read_text() for page in feedback(course, "tiny", ["ann", "bob"]))
    assert "wanted 4, got 2" in ann
    assert "The file is empty" in bob
    assert "secret" not in bob


def test_export(course, capsys):
    hand_in(course, "ann", right(course))
    grade(course)
    capsys.readouterr()
    assert main(["--course", str(course.folder), "export"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "student,lesson,score,max_score,late_penalty,needs_review"
    assert row == "ann,tiny,5.0,5.0,0.0,False"
    main(["--course", str(course.folder), "export", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["exercises"] == {"double": 2.0, "hypotenuse": 3.0}
