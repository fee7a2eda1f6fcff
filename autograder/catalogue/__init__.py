"""Answers to exercises whose fate is known: wrong ones that must die, right ones that must live.

Each file is one student's solution cell, complete, behind a header of comments:

    # exercise: flash_attention
    # dies by: the case that must kill it      (wrong only; "(gpu)" where the interpreter cannot)
    # bug: the id in flashkit.faults.FAULTS that it shows, or none       (wrong only)
    # differs: what is unlike the lesson's own answer                    (right only)
"""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
GPU = " (gpu)"
_FIELD = re.compile(r"# ([a-z ]+): (.+)")


@dataclass(frozen=True)
class Entry:
    """One answer. dies_by is "" for a right one; needs_gpu where the interpreter shows nothing."""

    name: str
    exercise: str
    source: str
    dies_by: str = ""
    bug: str | None = None
    differs: str = ""
    needs_gpu: bool = False

    @property
    def right(self) -> bool:
        """Whether it must pass every case."""
        return not self.dies_by

    @property
    def path(self) -> Path:
        """The file it was read from."""
        return FOLDER / ("right" if self.right else "wrong") / f"{self.name}.py"


def read(path: Path) -> Entry:
    """The entry of a file. ValueError for a header that is not as described above."""
    source = path.read_text(encoding="utf-8")
    header = source.partition("\n\n")[0].splitlines()
    fields = dict(m.groups() for m in map(_FIELD.fullmatch, header) if m)
    wanted = {"wrong": {"exercise", "dies by", "bug"}, "right": {"exercise", "differs"}}
    if set(fields) != wanted.get(path.parent.name) or len(fields) != len(header):
        raise ValueError(f"{path.name}: its header must be as {__name__} describes")
    dies_by, bug = fields.get("dies by", ""), fields.get("bug", "none")
    return Entry(
        name=path.stem,
        exercise=fields["exercise"],
        source=source,
        dies_by=dies_by.removesuffix(GPU),
        bug=None if bug == "none" else bug,
        differs=fields.get("differs", ""),
        needs_gpu=dies_by.endswith(GPU),
    )


def entries() -> list[Entry]:
    """All of them: the wrong ones by name, then the right ones."""
    return [
        read(path) for kind in ("wrong", "right") for path in sorted(FOLDER.glob(f"{kind}/*.py"))
    ]
