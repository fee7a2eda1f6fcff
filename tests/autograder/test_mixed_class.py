"""The class of thirty is what it says; `autograder attack --thirty FILE` grades it."""

import json

import nbformat
import pytest

from autograder.attacks import record
from autograder.attacks.mixed import DAMAGED, FULL, LESSON, REST, TARGET, Member, members
from autograder.attacks.mixed_run import result
from autograder.course import Course
from autograder.gradebook import Mark
from autograder.grading import Outcome
from autograder.intake import transplant
from flashkit.exercises import EXERCISES

THIRTY = {member.student: member for member in members(Course())}


def test_there_are_thirty_and_their_points_are_the_lessons():
    assert len(THIRTY) == 30
    points = {e.id: e.points for e in EXERCISES.values() if e.lesson == LESSON}
    assert sum(points.values()) == FULL
    assert FULL - points[TARGET] == REST


@pytest.mark.parametrize("number", range(len(DAMAGED)))
def test_a_damaged_file_holds_the_right_answers(number, tmp_path):
    release = nbformat.read(Course().release(LESSON), as_version=4)
    answers = []
    for student in ("right", f"damaged_{number}"):
        path = tmp_path / f"{student}.ipynb"
        path.write_bytes(THIRTY[student].content)
        nb = transplant(release, path)
        answers.append({c.id: c.source for c in nb.cells if c.id in EXERCISES})
    assert answers[0] == answers[1]


def outcome(points):
    mark = None if points is None else Mark("ann", LESSON, points, FULL, 0.0, False, {})
    return Outcome("ann", LESSON, "graded", mark=mark)


@pytest.mark.parametrize(
    ("least", "most", "got", "fits"),
    [
        (28, 28, 28.0, True),
        (28, 28, 27.9, False),
        (16, 27.9, 20.0, True),
        (16, 27.9, 28.0, False),
        (None, None, None, True),
        (None, None, 0.0, False),
        (0, 0, None, False),
    ],
)
def test_each_gets_what_the_work_deserves(least, most, got, fits):
    assert (result(Member("ann", "", b"", least, most), outcome(got)).broken == ()) is fits


def test_a_record_is_graded_again_and_equal_work_once(tmp_path, monkeypatch):
    student = {"prelude": "p", "cells": [["merge", "x"]], "marks": {"merge": 4.0}}
    other = {**student, "marks": {"merge": 3.0}}
    path = tmp_path / "record.json"
    kept = {"device": "cpu", "seed": 1, "students": {"ann": student, "bob": other}}
    path.write_text(json.dumps(kept))
    asked = []

    def each(function, tasks, jobs):
        asked.extend(tasks)
        return [(task, (4.0, 1.5)) for task in tasks]

    monkeypatch.setattr(record, "each", each)
    ann, bob = record.run_record(path, "cpu", 1, lambda text: None)
    assert len(asked) == 1
    assert (ann.points, ann.broken, ann.seconds) == (4.0, (), 1.5)
    assert bob.broken == ("merge got 4.0, recorded were 3",)
