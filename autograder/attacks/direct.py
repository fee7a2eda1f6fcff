"""The battery against the engine itself: no nbgrader, so that it runs wherever grading does."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from autograder.attacks import quick
from autograder.attacks.battery import LESSONS, Attack, Scene, cell_source, prelude, right_answer
from autograder.attacks.scene import leftovers, marked
from autograder.engine import SolutionCell
from flashkit.exercises import EXERCISES
from flashkit.exercises.model import Verdict


@dataclass(frozen=True)
class Result:
    """What came of one attack; it was held off where `broken` is empty."""

    name: str
    family: str
    aim: str
    points: float | None
    broken: tuple[str, ...]
    seconds: float


def attack_engine(attack: Attack, number: int, scene: Scene, secret: str, device: str) -> Result:
    """Run one attack on the engine, then see what must hold."""
    start, mark = time.monotonic(), marked(number)
    told = replace(scene, facts={**scene.facts, "MARK": mark})
    verdict = grade(attack.target, {attack.target: cell_source(attack, told)}, attack, device)
    broken = [*verdict_problems(attack, verdict), *leaks(verdict.to_json(), (secret,))]
    broken += leftovers(mark, Path(scene.facts["COURSE"]))
    seconds = time.monotonic() - start
    return Result(attack.name, attack.family, attack.aim, verdict.points, tuple(broken), seconds)


def honest(lesson: str, device: str) -> list[str]:
    """What is wrong with the marks of honest work on the targets; empty when all is well."""
    target = LESSONS[lesson][0]
    probe = Attack("honest", "work", "", lesson=lesson)
    verdict = grade(target, {target: right_answer(target)}, probe, device)
    full = verdict.points == verdict.max_points
    return [] if full else [f"honest work on {target} got {verdict.points:g}: {verdict.note}"]


def grade(exercise: str, sources: dict[str, str], attack: Attack, device: str) -> Verdict:
    """The engine's verdict on one exercise of the small lesson that is attacked."""
    cells = [SolutionCell(name, source) for name, source in sources.items()]
    options = {"prelude": prelude(attack.lesson), "device": device, "seed": 1}
    with tempfile.TemporaryDirectory(prefix="check-") as scratch:
        return quick.grade(exercise, cells, scratch=Path(scratch), **options)


def verdict_problems(attack: Attack, verdict: Verdict) -> list[str]:
    """What is wrong with the verdict on the exercise under attack."""
    most, found = EXERCISES[attack.target].points, []
    if attack.below and not verdict.points < most:
        found.append(f"it earned all {most} points")
    if not attack.below and verdict.points != attack.points:
        found.append(f"it earned {verdict.points:g} points, not {attack.points:g}")
    if verdict.status != "graded":
        found.append(f"it was not judged: {verdict.status}")
    if any("LOOT" in case.message for case in verdict.cases if case.kind != "unwritten"):
        found.append("its crime succeeded")
    return found


def leaks(text: str, secrets: tuple[str, ...]) -> list[str]:
    """Secrets that stand in a text which comes back."""
    return [f"a secret came back: {secret[:40]}" for secret in secrets if secret in text]
