"""Puts a submission's answers into the released notebook, so that nbgrader sees a sound one.

Only the sources of solution cells are taken over. Whatever else a submission holds, deleted,
doubled, moved, retyped or invented, cannot reach the marks or stop the class.
"""

import ast
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.utils import is_solution, parse_utc
from rapidfuzz import fuzz

from autograder.reading import Submitted, Unreadable, read_cells

SIMILAR = 70  # per cent: a cell this close to a stub is that exercise's, even if the name changed
MISSING = "No cell with an answer to this exercise was found in the submission."
SEVERAL = "{n} cells answer this exercise: they were read in order, so the last definition counts."
MOVED = "The answer was found by {how}: its cell had lost the mark that ties it to the exercise."


@dataclass(frozen=True)
class Pool:
    """The cells of a submission beside what the release knows: cell ids and functions to write."""

    cells: list[Submitted]
    ids: set[str]
    functions: set[str]

    def tiers(self, stub: NotebookNode) -> Iterator[tuple[list[Submitted], str]]:
        """The cells that may answer `stub`, by one rule after the other, and the rule's name."""
        yield [c for c in self.cells if c.grade_id == stub.id], ""
        unmarked = [c for c in self.cells if c.grade_id not in self.ids]
        yield [c for c in unmarked if c.cell_id == stub.id], "its cell id"
        loose = [c for c in unmarked if c.cell_id not in self.ids]
        names = functions(stub.source)
        yield [c for c in loose if functions(c.source) & names], "the function's name"
        rest = [c for c in loose if not functions(c.source) & self.functions]
        yield [c for c in rest if fuzz.ratio(c.source, stub.source) >= SIMILAR], "its likeness"


def transplant(release: NotebookNode, path: Path) -> NotebookNode:
    """A copy of `release` with the answers found in the submitted file `path`.

    Never raises for what the file holds. Cell metadata `autograder.note` says how an answer was
    found, where that is worth a word; notebook metadata `autograder.unreadable` why none was.
    """
    nb, cells, why = deepcopy(release), [], ""
    try:
        cells = read_cells(path)
    except Unreadable as reason:
        why = str(reason)
    nb.metadata["autograder"] = NotebookNode(unreadable=why)
    stubs = list(filter(is_solution, nb.cells))
    pool = Pool(
        cells, {c.id for c in nb.cells}, set().union(*(functions(c.source) for c in stubs))
    )
    for stub in stubs:
        stub.source, note = find_answer(stub, pool)
        stub.metadata["autograder"] = NotebookNode(note=why or note)
    return nb


def find_answer(stub: NotebookNode, pool: Pool) -> tuple[str, str]:
    """The answer to the released cell `stub`, and a note on how it was found ("" if as usual)."""
    tiers = [tier for tier in pool.tiers(stub) if tier[0]]
    if not tiers:
        return stub.source, MISSING
    for cells, how in tiers:
        answers = list(dict.fromkeys(c.source for c in cells if not same(c.source, stub.source)))
        if answers:
            sound = [a for a in answers if parses(without_magics(a))] or answers[-1:]
            several = SEVERAL.format(n=len(answers)) if len(answers) > 1 else ""
            moved = MOVED.format(how=how) if how else ""
            return "\n\n".join(sound), f"{several} {moved}".strip()
    return stub.source, ""


def same(source: str, stub: str) -> bool:
    """Whether nothing was written: `source` is blank, or the stub but for spaces."""
    return source.split() in ([], stub.split())


def functions(source: str) -> set[str]:
    """The names of the functions that `source` defines at its left margin."""
    return set(re.findall(r"^def +(\w+)", source, re.MULTILINE))


def parses(source: str) -> bool:
    """Whether `source` is Python."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def without_magics(source: str) -> str:
    """`source` as plain Python: a line of IPython's (%timeit, !nvidia-smi) becomes a comment."""
    if parses(source):
        return source
    return re.sub(r"^([ \t]*)([%!])", r"\1pass  # \2", source, flags=re.MULTILINE)


class SubmissionExporter(NotebookExporter):
    """nbgrader's way in: replaces the submitted notebook by the released one with its answers."""

    def from_filename(self, filename, resources=None, **kw):
        """Convert a notebook file; a submission is transplanted before nbgrader looks at it."""
        directory, ids = self.parent.coursedir, resources["nbgrader"]
        handed_in = directory.format_path(
            directory.submitted_directory, ids["student"], ids["assignment"]
        )
        if Path(filename).parent != Path(handed_in):
            return super().from_filename(filename, resources=resources, **kw)
        folder = directory.format_path(directory.release_directory, ".", ids["assignment"])
        release = nbformat.read(Path(folder) / f"{ids['notebook']}.ipynb", as_version=4)
        nb = transplant(release, Path(filename))
        return self.from_notebook_node(nb, resources=resources, **kw)


def settle_names(assignment: str, student: str, notebooks: list[str]) -> None:
    """nbgrader's hook before a submission: a single notebook under another name gets its own.

    Downloads are called "lesson (1).ipynb". Links are removed: they hold no work, and nbgrader
    would follow them. Also sets aside a timestamp.txt nbgrader cannot read.
    """
    folder = Path(notebooks[0]).parent
    for link in filter(Path.is_symlink, folder.rglob("*")):
        link.unlink()
    notebooks[:] = [name for name in notebooks if Path(name).is_file()]
    if not notebooks:
        return
    wanted = folder / f"{folder.name}.ipynb"
    if len(notebooks) == 1 and not wanted.exists():
        Path(notebooks[0]).rename(wanted)
        notebooks[:] = [str(wanted)]
    stamp = folder / "timestamp.txt"
    if stamp.exists():
        try:
            parse_utc(stamp.read_text().strip())
        except (ValueError, OverflowError):
            stamp.rename(folder / "timestamp.txt.unreadable")
