"""A class of thirty for the lesson of kernels: right, wrong, untouched, hostile, broken files.

`hand_in_all` makes it; graded once by the pipeline, its answers and marks are kept as a record,
which the engine alone can grade again, on another machine or device (see `record`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import is_solution

from autograder.attacks.battery import load as attacks
from autograder.attacks.notebooks import flipped_flags, own_check, skip_tags
from autograder.catalogue import entries
from autograder.course import Course

LESSON = "03_triton_kernel"
TARGET = "flash_attention"
FULL, REST = 28.0, 16.0
"""The points of the lesson, and those of the other exercises."""
VARIANTS = ("keys_backwards", "persistent_grid", "split_loops", "two_passes")
WRONG = ("acc_not_rescaled", "no_max", "causal_top_left", "gqa_modulo", "last_tile_skipped")
HOSTILE = (
    "the_libraries_attention",
    "a_kernel_for_show",
    "a_kernel_that_copies",
    "numpy_behind_the_kernel",
    "the_courses_kernel",
)
DEADLY = {
    "leaves": "import os\n\n\ndef flash_attention(*given, **named):\n    os._exit(0)\n",
    "crashes": "import ctypes\n\ndef flash_attention(*given, **named):\n    ctypes.string_at(0)\n",
    "talks": "def flash_attention(*given, **named):\n    print('x' * 10**7)\n    return None\n",
}


@dataclass(frozen=True)
class Member:
    """One student: the file handed in, and the least and the most points it deserves.

    A file from which nothing can be chosen has no points at all: None.
    """

    student: str
    file: str
    content: bytes
    least: float | None
    most: float | None


def renamed(nb: NotebookNode) -> bytes:
    """As it is; the name of the file is what is odd."""
    return json.dumps(nb).encode()


def in_utf16(nb: NotebookNode) -> bytes:
    """As an old editor saves it."""
    return json.dumps(nb).encode("utf-16")


def with_bom(nb: NotebookNode) -> bytes:
    """With a byte order mark."""
    return json.dumps(nb).encode("utf-8-sig")


def stripped(nb: NotebookNode) -> bytes:
    """No metadata anywhere, as after a trip through another editor."""
    for cell in nb.cells:
        cell.metadata = NotebookNode()
    return json.dumps({**nb, "metadata": {}}).encode()


def doubled_and_reversed(nb: NotebookNode) -> bytes:
    """Every cell twice, the last first."""
    return json.dumps({**nb, "cells": [c for c in reversed(nb.cells) for _ in range(2)]}).encode()


def without_checks(nb: NotebookNode) -> bytes:
    """The check cells and all text deleted."""
    return json.dumps({**nb, "cells": list(filter(is_solution, nb.cells))}).encode()


DAMAGED: tuple[Callable[[NotebookNode], bytes], ...] = (
    renamed,
    in_utf16,
    with_bom,
    stripped,
    doubled_and_reversed,
    without_checks,
    lambda nb: json.dumps(flipped_flags(skip_tags(own_check(nb)))).encode(),
)
BROKEN = {"empty": b"", "picture": b"\x89PNG\r\n", "merge": b'{"cells": [\n<<<<<<< HEAD\n'}


def members(course: Course) -> list[Member]:
    """The thirty, in the order of the alphabet of their names."""
    release = nbformat.read(course.release(LESSON), as_version=4)
    solution = nbformat.read(course.source(LESSON), as_version=4)
    right = {c.id: _without_marks(c.source) for c in filter(is_solution, solution.cells)}
    catalogue = {(e.right, e.name): e.source for e in entries()}
    hostile = {a.name: a.code for a in attacks() if a.name in HOSTILE}

    def member(student: str, answer: str, least: float, most: float) -> Member:
        content = json.dumps(_filled(release, {**right, TARGET: answer})).encode()
        return Member(student, f"{LESSON}.ipynb", content, least, most)

    found = [member("right", right[TARGET], FULL, FULL)]
    found += [member(f"right_{v}", catalogue[True, v], FULL, FULL) for v in VARIANTS]
    found += [member(f"wrong_{w}", catalogue[False, w], REST, FULL - 0.1) for w in WRONG]
    found += [member(name, source, REST, REST) for name, source in (hostile | DEADLY).items()]
    for number, damage in enumerate(DAMAGED):
        name = f"{LESSON} (1).ipynb" if damage is renamed else f"{LESSON}.ipynb"
        content = damage(_filled(release, right))
        found.append(Member(f"damaged_{number}", name, content, FULL, FULL))
    found += [Member(name, f"{LESSON}.ipynb", raw, 0, 0) for name, raw in BROKEN.items()]
    found.append(Member("untouched", f"{LESSON}.ipynb", json.dumps(release).encode(), 0, 0))
    found.append(Member("zipped", f"{LESSON}.zip", b"PK", None, None))
    return sorted(found, key=lambda m: m.student)


def hand_in_all(course: Course) -> list[Member]:
    """Hand in for all thirty."""
    found = members(course)
    for one in found:
        path = course.path("submitted", one.student, LESSON) / one.file
        path.parent.mkdir(parents=True)
        path.write_bytes(one.content)
    return found


def _filled(release: NotebookNode, sources: dict[str, str]) -> NotebookNode:
    cells = [NotebookNode(c, source=sources.get(c.id, c.source)) for c in release.cells]
    return NotebookNode(release, cells=cells)


def _without_marks(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if " SOLUTION" not in line)


def graded_cells(path: Path) -> tuple[str, list[list[str]]]:
    """The imports and the [id, source] of the solution cells of a graded notebook."""
    nb = nbformat.read(path, as_version=4)
    prelude = next(c.source for c in nb.cells if c.cell_type == "code")
    return prelude, [[c.id, c.source] for c in filter(is_solution, nb.cells)]
