"""docs/attacks.md: what is tried against the grader, and what must hold afterwards."""

from pathlib import Path

from autograder.attacks.battery import FAMILIES, load

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"
TOP = """\
# Attacks

`autograder attack` runs every attack below against the real pipeline, in a throw-away course, as
a class of hostile students with honest ones between them. It exits with 1 if anything is broken.
`--only NAME` takes one attack or one family, `--engine` the engine alone (no nbgrader needed, as
on a GPU server), `--device cuda` a GPU. This page is written by `autograder attack --write`.

After each attack must hold:

- it has earned nothing, or exactly what the honest part of its work deserves;
- honest answers in the same notebook, and the students before and after, have their full marks;
- no other row of the gradebook has changed, and no mark was set but by the grader;
- no secret has come back in a verdict, a returned notebook or a feedback page: random canaries lie
  in the gradebook, in another submission, in the solutions, in the environment of the grader; the
  seed and the text of the hidden cases are looked for too;
- nothing has reached a server that listens on the same machine;
- no process and no file is left, and nobody has been given work by hand.

The attacks of the last family are refused by a watch in the student's own process. That is
evidence, not proof: code that is written against the watch can get past it (docs/grading.md says
more). So a cell that names the watch's machinery is put on the list of those whom a person should
read, whatever it earned. All other families rest on walls that the student's process cannot
reach: another process judges, and the jail is the kernel's.
"""


def page() -> str:
    """The page as Markdown: each family with its attacks and their aims."""
    attacks, parts = load(), [TOP]
    for family, aim in FAMILIES.items():
        rows = [(a.name.replace("_", " "), a.aim) for a in attacks if a.family == family]
        lines = [f"| {name} | {text} |" for name, text in rows]
        head = f"## {family.capitalize()}: {aim}\n\n| attack | aim |\n| --- | --- |"
        parts.append("\n".join([head, *lines, ""]))
    return "\n".join(parts)


def write() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
