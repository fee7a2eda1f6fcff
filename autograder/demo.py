"""`autograder demo` (`make grade`): three sample submissions of every lesson, graded at once.

It works in its own folder, autograder/work/demo/, with its own gradebook: real submissions and
marks are never touched.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import is_solution
from traitlets.config import Config

from autograder.build import write
from autograder.course import REPOSITORY, Course, CourseError
from autograder.feedback import feedback
from autograder.grading import Outcome, grade, prepare
from flashkit.exercises.model import Verdict

FOLDER = REPOSITORY / "autograder" / "work" / "demo"
CONFIG = """\
from pathlib import Path

from autograder.course import configure

c = get_config()
configure(c, work=Path(__file__).resolve().parent)
c.CourseDirectory.course_id = "demo"
"""
SAMPLES = ("right", "wrong", "untouched")


@dataclass(frozen=True)
class Slip:
    """A classic bug, made by replacing one text in the solution of `exercise`."""

    exercise: str
    old: str
    new: str
    fault: str  # its name in flashkit.faults


SLIPS = {
    "01_worked_example": Slip(
        "online_update", "alpha * a + p @ values", "a + p @ values", "acc_not_rescaled"
    ),
    "02_online_softmax": Slip(
        "online_attention", "alpha * l + p.sum(", "l + p.sum(", "l_not_rescaled"
    ),
    "03_triton_kernel": Slip(
        "flash_attention", "acc = acc * alpha[:, None] +", "acc = acc +", "acc_not_rescaled"
    ),
    "04_flash_decoding": Slip(
        "decode_merge",
        "l_all = tl.sum(weights * l, axis=0)",
        "l_all = tl.sum(l, axis=0)",
        "l_not_rescaled",
    ),
    "05_backward": Slip(
        "attention_backward", "(grad @ v_tile.mT - delta)", "(grad @ v_tile.mT)", "delta_forgotten"
    ),
    "06_beyond": Slip(
        "paged_decode", "acc = alpha * acc + p @ v", "acc = acc + p @ v", "acc_not_rescaled"
    ),
}


def set_up(folder: Path = FOLDER) -> Course:
    """A fresh demonstration course in `folder`, which reads this repository's lessons."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    return Course(folder)


def hand_in(course: Course, lesson: str, slip: Slip) -> None:
    """Write the three sample submissions of `lesson`. Raises CourseError where `slip` misses."""
    release = nbformat.read(course.release(lesson), as_version=4)
    solution = nbformat.read(course.source(lesson), as_version=4)
    answers = {c.id: _without_marks(c.source) for c in filter(is_solution, solution.cells)}
    spoilt = {**answers, slip.exercise: _spoil(answers, lesson, slip)}
    for student, sources in zip(SAMPLES, (answers, spoilt, {}), strict=True):
        target = course.path("submitted", student, lesson) / f"{lesson}.ipynb"
        target.parent.mkdir(parents=True)
        write(_filled(release, sources), target)


def _filled(release: NotebookNode, sources: dict[str, str]) -> NotebookNode:
    cells = [
        NotebookNode(cell, source=sources.get(cell.id, cell.source)) for cell in release.cells
    ]
    return NotebookNode(release, cells=cells)


def _without_marks(source: str) -> str:
    """`source` as a student would have written it: without the authors' delimiters."""
    return "\n".join(line for line in source.splitlines() if " SOLUTION" not in line)


def _spoil(answers: dict[str, str], lesson: str, slip: Slip) -> str:
    answer = answers.get(slip.exercise, "")
    if answer.count(slip.old) != 1:
        raise CourseError(
            f"demo: {slip.old!r} must stand once in the solution of {slip.exercise} in {lesson},"
            f" found {answer.count(slip.old)} times: mend SLIPS in autograder/demo.py"
        )
    return answer.replace(slip.old, slip.new)


def run(
    course: Course, lessons: list[str], overrides: Config, jobs: int, say: Callable[[str], None]
) -> list[Outcome]:
    """Hand in, grade and write feedback for every lesson; the outcomes by lesson and sample."""
    for lesson in lessons:
        say(f"{lesson}: entering it in the gradebook, writing three submissions")
        prepare(course, lesson)
        hand_in(course, lesson, SLIPS[lesson])
    pairs = [(lesson, student) for lesson in lessons for student in SAMPLES]
    outcomes = []
    for done in grade(course.folder, overrides, pairs, jobs=jobs):
        outcomes.append(done)
        what = f"{done.mark.score:g} of {done.mark.max_score:g}" if done.mark else done.reason
        say(f"[{len(outcomes)}/{len(pairs)}] {done.lesson} {done.student}: {what}")
    for lesson in lessons:
        say(f"{lesson}: writing the feedback pages")
        feedback(course, lesson, list(SAMPLES))
    return sorted(outcomes, key=lambda done: pairs.index((done.lesson, done.student)))


def named_bug(course: Course, lesson: str) -> str | None:
    """The classic bug in the report on the wrong submission: of the whole, else of most cases."""
    record = course.verdicts / "wrong" / lesson / f"{SLIPS[lesson].exercise}.json"
    verdict = Verdict.from_json(record.read_text(encoding="utf-8"))
    of_cases = Counter(case.bugs[0] for case in verdict.cases if len(case.bugs) == 1)
    return verdict.bug or next((bug for bug, _ in of_cases.most_common(1)), None)


def surprises(course: Course, outcomes: list[Outcome]) -> list[str]:
    """Where the demonstration did not go as it must; empty when all is well."""
    found = [f"{done.lesson} {done.student}: {done.reason}" for done in outcomes if not done.mark]
    for done in filter(lambda done: done.mark, outcomes):
        score, most, lesson = done.mark.score, done.mark.max_score, done.lesson
        if done.student == "right" and score != most:
            found.append(f"{lesson}: the right submission has {score:g} of {most:g}")
        if done.student == "untouched" and score != 0:
            found.append(f"{lesson}: the untouched submission has {score:g}")
        if done.student == "wrong" and not 0 < score < most:
            found.append(f"{lesson}: the wrong submission has {score:g} of {most:g}")
        if done.student == "wrong" and named_bug(course, lesson) != SLIPS[lesson].fault:
            found.append(f"{lesson}: the bug {SLIPS[lesson].fault} is not named")
    return found
