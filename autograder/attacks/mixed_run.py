"""Grade the class of thirty by the pipeline, and see that each gets what the work deserves."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from traitlets.config import Config

from autograder.attacks.direct import Result
from autograder.attacks.mixed import LESSON, Member, graded_cells, hand_in_all
from autograder.attacks.run import summary
from autograder.course import Course
from autograder.grading import Outcome, grade, prepare

CONFIG = """\
from pathlib import Path

from autograder.course import configure

c = get_config()
configure(c, work=Path(__file__).resolve().parent)
c.CourseDirectory.course_id = "thirty"
"""


def run_thirty(device: str, jobs: int, say: Callable[[str], None], record: Path) -> list[Result]:
    """Grade the class; its answers and marks go to the file `record` for the engine alone."""
    with tempfile.TemporaryDirectory(prefix="thirty-") as name:
        folder = Path(name) / "course"
        folder.mkdir()
        (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
        course = Course(folder)
        prepare(course, LESSON)
        thirty = {member.student: member for member in hand_in_all(course)}
        start, outcomes = time.monotonic(), []
        overrides = Config({"EngineExecute": {"device": device}})
        pairs = [(LESSON, student) for student in thirty]
        for done in grade(course.folder, overrides, pairs, jobs=jobs):
            outcomes.append(done)
            say(f"[{len(outcomes)}/{len(pairs)}] {done.student}: {_got(done)}")
        spent = time.monotonic() - start
        record.write_text(json.dumps(_record(course, outcomes, device)), encoding="utf-8")
        outcomes.sort(key=lambda done: done.student)
        results = [result(thirty[done.student], done) for done in outcomes]
        say(f"{spent:.0f} s in all, {spent / len(pairs):.1f} s a submission, {jobs} at a time")
        return [*results, summary("the_class", "all thirty are graded", [])]


def _got(done: Outcome) -> str:
    return f"{done.mark.score:g}" if done.mark else done.reason


def result(member: Member, done: Outcome) -> Result:
    """Whether one student has what the work deserves."""
    points, aim = done.mark.score if done.mark else None, f"deserves {member.least}"
    if member.least != member.most:
        aim += f" to {member.most}"
    fits = points is None if member.least is None else points is not None
    if fits and points is not None:
        fits = member.least <= points <= member.most
    broken = () if fits else (f"it got {points}",)
    return Result(member.student, "class", aim, points, broken, done.seconds)


def _record(course: Course, outcomes: list[Outcome], device: str) -> dict:
    """What each student answered, as the engine was given it, and what each exercise earned."""
    seed = int((course.work / "seed").read_text(encoding="utf-8"))
    found = {}
    for done in (o for o in outcomes if o.mark and not o.attention):
        path = course.path("autograded", done.student, LESSON) / f"{LESSON}.ipynb"
        prelude, cells = graded_cells(path)
        marks = done.mark.exercises
        found[done.student] = {"prelude": prelude, "cells": cells, "marks": marks}
    return {"device": device, "seed": seed, "students": found}
