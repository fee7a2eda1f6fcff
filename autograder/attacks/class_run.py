"""The battery as a class of students, graded by the real pipeline."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from traitlets.config import Config

from autograder.attacks.aftermath import attack_problems, secrets_of, set_by_hand, untouchable
from autograder.attacks.battery import FAMILIES, LESSONS, Attack
from autograder.attacks.direct import Result
from autograder.attacks.pipeline import POINTS, hand_in_attack, hand_in_honest, set_up
from autograder.attacks.run import network, summary
from autograder.attacks.scene import leftovers, marked, stage
from autograder.course import Course
from autograder.feedback import feedback
from autograder.grading import Outcome, grade, prepare
from autograder.pool import each

BEFORE = "before"  # an honest student with known marks, whose work others try to hand in


@dataclass(frozen=True)
class Roll:
    """The class in the order it is graded: honest students before and after each family."""

    honest: tuple[tuple[str, str], ...]
    attackers: dict[tuple[str, str], tuple[Attack, str]]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All (lesson, student), honest ones between the families."""
        after = {student: (lesson, student) for lesson, student in self.honest}
        pairs = [pair for pair in self.honest if pair[1] == BEFORE]
        for family in FAMILIES:
            pairs += [pair for pair, (a, _) in self.attackers.items() if a.family == family]
            pairs += [after[f"after_{family}"]] if f"after_{family}" in after else []
        return pairs


def enrol(attacks: Sequence[Attack]) -> Roll:
    """A class of these attackers and the honest students beside them."""
    families = dict.fromkeys(attack.family for attack in attacks)
    lesson = {family: [a.lesson for a in attacks if a.family == family][-1] for family in families}
    honest = ((next(iter(LESSONS)), BEFORE), *((lesson[f], f"after_{f}") for f in families))
    attackers = {(a.lesson, a.name): (a, marked(n)) for n, a in enumerate(attacks)}
    return Roll(honest, attackers)


def run_on_class(
    attacks: Sequence[Attack], device: str, jobs: int, say: Callable[[str], None]
) -> list[Result]:
    """Attack the whole pipeline, and see what must hold."""
    roll = enrol(attacks)
    with tempfile.TemporaryDirectory(prefix="attacked-") as name, stage(Path(name)) as told:
        scene, secret, listener = told
        course = set_up(Path(name), secret)
        for lesson, student in roll.honest:
            hand_in_honest(course, student, lesson)
        for attack, mark in roll.attackers.values():
            hand_in_attack(course, attack, mark, scene)
        for lesson in LESSONS:
            prepare(course, lesson)
        graded = _grade(course, device, roll.pairs, jobs)
        first = next(graded)
        untouched = untouchable(course, [BEFORE])
        outcomes, left = {(first.lesson, first.student): first}, {}
        for done in graded:
            pair = done.lesson, done.student
            outcomes[pair] = done
            if pair in roll.attackers:
                left[pair] = leftovers(roll.attackers[pair][1], course.folder)
            say(f"[{len(outcomes)}/{len(roll.pairs)}] {done.student}: {done.status}")
        _write_feedback(course, outcomes, jobs)
        results = list(_results(course, roll, outcomes, left, secrets_of(course, secret)))
        changed = [
            key for key, rows in untouchable(course, [BEFORE]).items() if rows != untouched[key]
        ]
        return [*results, _honest(roll, outcomes), _gradebook(course, changed), network(listener)]


def _grade(course: Course, device: str, pairs: list, jobs: int) -> Iterator[Outcome]:
    """The outcomes, the honest student's before all others."""
    overrides = Config({"EngineExecute": {"device": device}})
    yield from grade(course.folder, overrides, pairs[:1])
    yield from grade(course.folder, overrides, pairs[1:], jobs=jobs)


def _write_feedback(course: Course, outcomes: dict, jobs: int) -> None:
    tasks = [(course.folder, *pair) for pair, done in outcomes.items() if done.mark]
    for (_, lesson, student), page in each(write_page, tasks, jobs):
        if page is None:
            raise RuntimeError(f"no feedback page for {student} in {lesson}")


def write_page(folder: Path, lesson: str, student: str) -> bool:
    """Write the feedback page of one student of the course in `folder`."""
    return bool(feedback(Course(folder), lesson, [student]))


def _results(
    course: Course, roll: Roll, outcomes: dict, left: dict, secrets: list[str]
) -> Iterator[Result]:
    for pair, (attack, _) in roll.attackers.items():
        done = outcomes[pair]
        broken = attack_problems(course, attack, done, secrets) + left[pair]
        points = done.mark.exercises[attack.target] if done.mark else None
        yield Result(attack.name, attack.family, attack.aim, points, tuple(broken), done.seconds)


def _honest(roll: Roll, outcomes: dict) -> Result:
    broken = []
    for lesson, student in roll.honest:
        done, most = outcomes[lesson, student], sum(POINTS[name] for name in LESSONS[lesson])
        if not done.mark or done.mark.score != most:
            broken.append(f"{student} got {done.mark.score if done.mark else done.reason}")
    return summary("honest_students", "honest work beside the attacks gets full marks", broken)


def _gradebook(course: Course, changed: list[str]) -> Result:
    broken = [f"{what} changed" for what in changed]
    broken += [f"the mark {grade} was set by hand" for grade in set_by_hand(course)]
    return summary("gradebook", "nothing but grading has written to the gradebook", broken)
