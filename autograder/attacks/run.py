"""Run the battery on the engine alone. `class_run` runs it through the whole pipeline.

No nbgrader is needed here: this is what a machine with a GPU runs.
"""

import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from autograder.attacks.battery import Attack
from autograder.attacks.direct import Result, attack_engine, honest
from autograder.attacks.scene import Listener, stage
from autograder.pool import each
from autograder.tables import aligned

DIED = "it killed the process that grades"
PLANTED = {
    "work/seed": "12345678",
    "work/submitted/canary/row/row.ipynb": "",
    "solutions/row/row.py": "",
}


def run_on_engine(
    attacks: Sequence[Attack], device: str, jobs: int, say: Callable[[str], None]
) -> list[Result]:
    """Attack the engine; honest work is graded before and after."""
    attacks = [a for a in attacks if not a.notebook and not a.flagged]
    with tempfile.TemporaryDirectory(prefix="attacked-") as name, stage(Path(name)) as told:
        scene, secret, listener = told
        plant(Path(name), secret)
        before = _honest(attacks, device, "before")
        tasks = [(a, number, scene, secret, device) for number, a in enumerate(attacks)]
        results = []
        for (attack, *_), result in each(attack_engine, tasks, jobs):
            results.append(result or died(attack))
            say(f"[{len(results)}/{len(tasks)}] {attack.name}: {outcome(results[-1])}")
        results.sort(key=lambda r: [a.name for a in attacks].index(r.name))
        return [before, *results, _honest(attacks, device, "after"), network(listener)]


def plant(folder: Path, secret: str) -> None:
    """What there is to steal in a course, with `secret` in it, where there is no real course."""
    for name, text in PLANTED.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or secret, encoding="utf-8")
    (folder / "work" / "verdicts").mkdir()
    with closing(sqlite3.connect(folder / "work" / "gradebook.db")) as db:
        db.execute("create table student (id text, last_name text)")
        db.execute("create table grade (manual_score real)")
        db.execute("insert into student values ('canary', ?)", (secret,))
        db.commit()


def _honest(attacks: Sequence[Attack], device: str, when: str) -> Result:
    lessons = dict.fromkeys(attack.lesson for attack in attacks)
    broken = [problem for lesson in lessons for problem in honest(lesson, device)]
    return summary(f"honest_{when}", f"honest work gets full marks {when} the attacks", broken)


def summary(name: str, aim: str, broken: list[str]) -> Result:
    """A line about the class as a whole."""
    return Result(name, "class", aim, None, tuple(broken), 0.0)


def network(listener: Listener) -> Result:
    """Whether a server of this machine has heard from any attacker."""
    broken = [f"{listener.heard} messages got out"] if listener.heard else []
    return summary("silence", "nothing reaches the network", broken)


def died(attack: Attack) -> Result:
    """The result of an attack that has taken its grader with it, twice."""
    return Result(attack.name, attack.family, attack.aim, None, (DIED,), 0.0)


def outcome(result: Result) -> str:
    """held, or BROKEN and why."""
    return f"BROKEN: {'; '.join(result.broken)}" if result.broken else "held"


def table(results: Sequence[Result]) -> str:
    """One row an attack, and what came of it."""
    rows = [["attack", "aim", "points", "seconds", ""]]
    for result in results:
        points = "" if result.points is None else f"{result.points:g}"
        seconds = f"{result.seconds:.0f}" if result.seconds else ""
        rows.append([result.name, result.aim, points, seconds, outcome(result)])
    held = sum(not result.broken for result in results)
    return f"{aligned(rows)}\n{held} of {len(results)} held"
