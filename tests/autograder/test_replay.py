"""Does a verdict come again from its record, and is a difference said?"""

from dataclasses import replace

import fake_engine
import pytest
from submissions import cell, hand_in, right

from autograder import replay
from autograder.cli import main
from autograder.engine import SolutionCell
from flashkit.exercises import EXERCISES
from flashkit.exercises.model import CaseResult, Verdict


@pytest.fixture
def graded(course, monkeypatch):
    """A graded submission of the tiny course, and its verdict on `double`."""
    known = {**EXERCISES, "double": EXERCISES["merge"], "hypotenuse": EXERCISES["merge"]}
    monkeypatch.setattr(replay, "EXERCISES", known)
    nb = right(course)
    cell(nb, "hypotenuse").source = "def hypotenuse(a, b):\n    return a + b"
    hand_in(course, "ada", nb)
    assert main(["--course", str(course.folder), "grade", "tiny", "--jobs", "1"]) == 0
    return course, course.verdicts / "ada" / "tiny"


def run(course, *arguments):
    return main(["--course", str(course.folder), "replay", *map(str, arguments)])


@pytest.mark.parametrize("exercise", ["double", "hypotenuse"])
def test_the_same_result_comes_again(graded, capsys, exercise):
    course, folder = graded
    assert run(course, folder / f"{exercise}.json") == 0
    out = capsys.readouterr().out
    assert "The same result came." in out
    assert "= the only case: " in out
    assert "changed since" not in out


def test_the_record_holds_the_hash_of_the_answer(graded):
    course, folder = graded
    verdict = Verdict.from_json((folder / "double.json").read_text())
    assert len(verdict.answer) == 64
    assert verdict.answer == Verdict.from_json((folder / "hypotenuse.json").read_text()).answer


def test_a_changed_submission_is_told_and_compared(graded, capsys):
    course, folder = graded
    nb = right(course)
    cell(nb, "double").source = "def double(x):\n    return 3 * x"
    hand_in(course, "ada", nb)
    assert run(course, folder / "double.json") == 1
    out = capsys.readouterr().out
    assert "it has been changed since" in out
    assert "≠ the only case: pass, now wrong" in out
    assert "DIFFERENT" in out


def test_another_notebook_can_be_named(graded, tmp_path, capsys):
    course, folder = graded
    moved = tmp_path / "moved.json"
    moved.write_text((folder / "double.json").read_text())
    notebook = course.path("submitted", "ada", "tiny") / "tiny.ipynb"
    assert run(course, folder / "double.json", "--submission", notebook) == 0
    assert run(course, folder / "double.json", "--submission", tmp_path / "none.ipynb") == 1
    assert "there is no notebook" in capsys.readouterr().err


def test_what_cannot_be_replayed_is_named(graded, tmp_path, capsys):
    course, folder = graded
    path = folder / "double.json"
    verdict = Verdict.from_json(path.read_text())
    for wrong, said in (
        ("{}", "holds no verdict"),
        (replace(verdict, exercise="gone").to_json(), "no exercise 'gone' any more"),
        (replace(verdict, status="infra").to_json(), "nothing was judged"),
        (replace(verdict, device="cuda").to_json(), "graded on a GPU"),
        (
            replace(verdict, cases=(CaseResult("other"),)).to_json(),
            "has changed since: other, the",
        ),
    ):
        path.write_text(wrong)
        assert run(course, path) == 1
        assert said in capsys.readouterr().err
    path.write_text(verdict.to_json())
    (course.path("submitted", "ada", "tiny") / "tiny.ipynb").unlink()
    assert run(course, path) == 1
    assert "the submission is gone" in capsys.readouterr().err


def test_points_and_bug_are_compared_too():
    then = fake_engine.grade("double", [SolutionCell("double", "double = abs")])
    lines, same = replay.compared(then, replace(then, bug="no_max"))
    assert not same
    assert "  ≠ bug: None, now no_max" in lines
