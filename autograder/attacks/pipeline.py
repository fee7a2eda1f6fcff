"""The battery through the whole pipeline: a throw-away course with its own gradebook.

Every attacker is a student, between honest ones; `autograder grade` marks them all, feedback is
written, and then everything that came back, and all that must not have changed, is looked at.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.utils import is_solution

from autograder.attacks import notebooks
from autograder.attacks.battery import LESSONS, Attack, Scene, cell_source, prelude, right_answer
from autograder.build import CHECK, read_lesson, write
from autograder.course import Course
from autograder.release import release
from flashkit.exercises import EXERCISES

CONFIG = """\
from pathlib import Path

from autograder.course import configure

c = get_config()
here = Path(__file__).resolve().parent
configure(c, here, here / "work")
c.EngineExecute.engine = "autograder.attacks.quick.grade"
c.CourseDirectory.course_id = "attacked"
"""
HEADER = """\
# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
"""
CANARY = "canary"  # a student nobody grades, whose name and work are secrets
POINTS = {name: EXERCISES[name].points for names in LESSONS.values() for name in names}


def set_up(folder: Path, secret: str) -> Course:
    """A fresh course of the lessons under attack, with `secret` where no student may look."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    course = Course(folder)
    for lesson in LESSONS:
        source = course.source(lesson).with_suffix(".py")
        source.parent.mkdir(parents=True)
        source.write_text(_lesson(lesson, secret), encoding="utf-8")
        write(read_lesson(source, POINTS), course.source(lesson))
    release(course, list(LESSONS), POINTS, say=lambda text: None)
    with Gradebook(course.directory.db_url, course.directory.course_id) as gradebook:
        gradebook.update_or_create_student(CANARY, first_name=secret, last_name=secret)
        for lesson in LESSONS:
            gradebook.update_or_create_submission(lesson, CANARY)
    for lesson in LESSONS:
        hand_in(course, CANARY, lesson, _answered(course, lesson, {LESSONS[lesson][0]: secret}))
    return course


def _lesson(lesson: str, secret: str) -> str:
    """The source of a lesson: the imports, then each exercise and its check."""
    cells = [f'# %% nbgrader={{"grade_id": "imports"}}\n{prelude(lesson)}\n']
    for name in LESSONS[lesson]:
        exercise = EXERCISES[name]
        head = exercise.signature.split(" -> ")[0]
        body = f'    ### BEGIN SOLUTION\n    return "{secret}"\n    ### END SOLUTION'
        flags = f'{{"grade_id": "{name}", "solution": true}}'
        cells.append(f"# %% nbgrader={flags}\ndef {head}:\n{body}\n")
        flags = f'{{"grade_id": "{CHECK}{name}", "grade": true, "points": {exercise.points}}}'
        cells.append(f'# %% nbgrader={flags}\ncheck("{name}", {exercise.function})\n')
    return "\n".join([HEADER, *cells])


def _answered(course: Course, lesson: str, answers: dict[str, str]) -> NotebookNode:
    """The released notebook with these answers written into it."""
    nb = nbformat.read(course.release(lesson), as_version=4)
    for cell in filter(is_solution, nb.cells):
        cell.source = answers.get(cell.id, cell.source)
    return nb


def hand_in(course: Course, student: str, lesson: str, content) -> None:
    """Put a notebook, a text or a link in the student's folder."""
    path = course.path("submitted", student, lesson) / f"{lesson}.ipynb"
    path.parent.mkdir(parents=True)
    if isinstance(content, Path):
        path.symlink_to(course.work / content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")


def hand_in_honest(course: Course, student: str, lesson: str) -> None:
    """Right answers to every exercise."""
    answers = {name: right_answer(name) for name in LESSONS[lesson]}
    hand_in(course, student, lesson, _answered(course, lesson, answers))


def hand_in_attack(course: Course, attack: Attack, mark: str, scene: Scene) -> None:
    """The attack on the target, beside right answers to the rest."""
    told = replace(scene, facts={**scene.facts, "MARK": mark})
    answers = {name: right_answer(name) for name in LESSONS[attack.lesson][1:]}
    if source := cell_source(attack, told):
        answers[attack.target] = source
    nb = _answered(course, attack.lesson, answers)
    damaged = getattr(notebooks, attack.notebook)(nb) if attack.notebook else nb
    hand_in(course, attack.name, attack.lesson, damaged)
