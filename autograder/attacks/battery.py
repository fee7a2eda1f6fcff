"""The attacks as data, and the hostile cells that they are made of.

Each table of attacks/*.toml is one attack. It either has `crime`, the body of a function that
raises unless the crime succeeds (the right answer is then given, so any point earned shows a
broken wall), or `code`, a whole cell; and it may have `notebook`, the name of a function in
`notebooks` that damages the file. Nothing here needs nbgrader.
"""

import re
import textwrap
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
SOLUTIONS = FOLDER.parents[1] / "solutions"
FAMILIES = {
    "verdict": "forge the mark inside the notebook, where nbgrader looks for it",
    "channel": "forge it on the way from the worker to the supervisor",
    "theft": "read what is not the student's",
    "machine": "kill, fill, hang or change the machine",
    "work": "let somebody else do the work",
}
LESSONS = {"row": ("online_update", "question_1"), "kernel": ("flash_attention",)}
"""The small lessons that are attacked, by their exercises; the first is the target."""
HONEST = """
def crime():
{crime}

{right}
honest_answer, loot, tried = {function}, [], []

def {function}(*given, **named):
    if not loot:
        if tried:
            raise RuntimeError("it failed before")
        tried.append(True)
        loot.append(crime())
        print("LOOT", loot)
        raise RuntimeError(f"LOOT {{str(loot[0])[:250]}}")
    return honest_answer(*given, **named)
"""
ANSWERS = (("online_update", "01_worked_example"), ("flash_attention", "03_triton_kernel"))
OTHER_ANSWERS = {"question_1": 'def answer_1():\n    return "b"\n'}


@dataclass(frozen=True)
class Attack:
    """One attack and what the target exercise must get.

    points: exactly these, or, with `below`, fewer than all. others: the points of the honest
    answers beside it. flagged: whatever it earns, a person is told to read it.
    """

    name: str
    family: str
    aim: str
    crime: str = ""
    code: str = ""
    notebook: str = ""
    lesson: str = "row"
    points: float = 0.0
    below: bool = False
    others: float | None = None
    flagged: bool = False

    @property
    def target(self) -> str:
        """The exercise under attack."""
        return LESSONS[self.lesson][0]


@dataclass(frozen=True)
class Scene:
    """What an attacker is told: where everything is. Values replace @NAME@ in hostile code."""

    facts: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """`text` with every @NAME@ replaced; KeyError for a fact that is not known."""
        return re.sub(r"@([A-Z]+)@", lambda hit: self.facts[hit[1]], text)


def load() -> tuple[Attack, ...]:
    """All attacks in the order of the families. Raises ValueError for one that is ill-formed."""
    found = []
    for family in FAMILIES:
        tables = tomllib.loads((FOLDER / f"{family}.toml").read_text(encoding="utf-8"))
        found += [Attack(name, family, **entry) for name, entry in tables.items()]
    for attack in found:
        if attack.lesson not in LESSONS or not (attack.crime or attack.code or attack.notebook):
            raise ValueError(f"{attack.name}: nothing to do, or an unknown lesson")
    return tuple(found)


def cell_source(attack: Attack, scene: Scene) -> str:
    """The hostile solution cell of an attack; "" where the cell stays as released."""
    if not attack.crime:
        return scene.fill(attack.code.replace("@RIGHT@", right_answer(attack.target))).strip("\n")
    crime = textwrap.indent(scene.fill(attack.crime).strip("\n"), "    ")
    right = right_answer(attack.target)
    return HONEST.format(crime=crime, right=right, function=attack.target).strip("\n")


def right_answer(exercise: str) -> str:
    """The course's own answer to an exercise of LESSONS, without the authors' delimiters."""
    if exercise in OTHER_ANSWERS:
        return OTHER_ANSWERS[exercise]
    lesson = dict(ANSWERS)[exercise]
    cell = _cell(lesson, f'"grade_id": "{exercise}"')
    return "\n".join(line for line in cell.splitlines() if " SOLUTION" not in line)


def prelude(lesson: str) -> str:
    """The imports of the lesson that LESSONS[lesson] was taken from."""
    return _cell(dict(ANSWERS)[LESSONS[lesson][0]], '"grade_id": "imports"')


def _cell(lesson: str, mark: str) -> str:
    """The source of the cell of solutions/ whose head holds `mark`."""
    text = (SOLUTIONS / lesson / f"{lesson}.py").read_text(encoding="utf-8")
    heads = re.split(r"^# %%(.*)$", text, flags=re.MULTILINE)
    pairs = zip(heads[1::2], heads[2::2], strict=True)
    return next(source for head, source in pairs if mark in head).strip("\n")
