"""The commands say what is wrong and exit accordingly."""

import pytest
from submissions import hand_in, right

from autograder import cli, demo
from autograder.course import CourseError


def run(course, *arguments):
    return cli.main(["--course", str(course.folder), *arguments])


@pytest.fixture(autouse=True)
def _tiny_points(monkeypatch):
    monkeypatch.setattr(cli, "POINTS", {"double": 2, "hypotenuse": 3})


def test_an_unknown_lesson_is_named_with_those_there_are(course, capsys):
    assert run(course, "grade", "tinny") == 1
    assert "no lesson 'tinny'; there are: tiny" in capsys.readouterr().err


def test_a_wrong_command_line_exits_2(course):
    with pytest.raises(SystemExit) as stop:
        run(course, "grde")
    assert stop.value.code == 2


def test_no_submissions(course, capsys):
    assert run(course, "grade", "tiny") == 1
    assert "no submissions" in capsys.readouterr().err


def test_feedback_before_grading(course, capsys):
    assert run(course, "feedback", "tiny") == 1
    assert "nobody is graded" in capsys.readouterr().err


def test_check_passes_then_names_the_drift_and_the_cure(course, capsys):
    assert run(course, "release", "--check") == 0
    assert capsys.readouterr().out == ""
    course.release("tiny").write_text("{}")
    assert run(course, "release", "--check") == 1
    out = capsys.readouterr().out
    assert str(course.release("tiny")) in out
    assert "run `autograder build && autograder release`" in out


def test_build_then_release(course, capsys):
    source = course.source("tiny").with_suffix(".py")
    source.write_text(source.read_text().replace("Twice x.", "Two times x."))
    assert run(course, "release") == 1
    assert "autograder build tiny" in capsys.readouterr().err
    assert run(course, "build", "tiny") == 0
    assert run(course, "release") == 0
    assert "Two times x." in course.release("tiny").read_text()


def test_a_lesson_missing_from_the_gradebook_is_entered(course):
    (course.work / "gradebook.db").unlink()
    hand_in(course, "ann", right(course))
    assert run(course, "grade", "tiny") == 0


def test_export_to_a_file(course, tmp_path):
    hand_in(course, "ann", right(course))
    run(course, "grade", "tiny")
    assert run(course, "export", "--to", str(tmp_path / "marks.csv")) == 0
    assert "ann,tiny,5.0,5.0" in (tmp_path / "marks.csv").read_text()


def test_the_demo_says_so_when_its_bug_no_longer_fits(course):
    slip = demo.Slip("double", "text that is not there", "", "no_max")
    with pytest.raises(CourseError, match="must stand once in the solution of double in tiny"):
        demo.hand_in(course, "tiny", slip)


def test_the_demo_spoils_one_answer_and_leaves_the_others(course):
    demo.hand_in(course, "tiny", demo.Slip("double", "[x, x]", "[x]", "no_max"))
    assert run(course, "grade", "tiny", "--jobs", "1") == 0
    scores = {mark.student: mark.score for mark in cli.marks(course, "tiny")}
    assert scores == {"right": 5.0, "wrong": 3.0, "untouched": 0.0}
