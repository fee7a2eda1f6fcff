"""Submissions in every state, made from the tiny lesson's release."""

import json
from pathlib import Path

import nbformat

from autograder.course import Course

RIGHT = {
    "double": "def double(x):\n    return 2 * x",
    "hypotenuse": "def hypotenuse(a, b):\n    return math.sqrt(a * a + b * b)",
}


def right(course: Course) -> nbformat.NotebookNode:
    """The release with both answers written, as JupyterLab would save it."""
    nb = nbformat.read(course.release("tiny"), as_version=4)
    for cell in nb.cells:
        cell.source = RIGHT.get(cell.id, cell.source)
    return nb


def cell(nb: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The cell called `name`."""
    return next(c for c in nb.cells if c.id == name)


def hand_in(course: Course, student: str, content, name: str = "tiny.ipynb") -> Path:
    """Put `content` (a notebook, text or bytes) into the student's folder."""
    path = course.path("submitted", student, "tiny") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def stripped(nb):
    """All metadata gone, as after a trip through another editor."""
    for c in nb.cells:
        c.metadata = {}
    nb.metadata = {}
    return nb


def anonymous(nb):
    """Metadata and cell ids gone."""
    stripped(nb)
    for c in nb.cells:
        del c["id"]
    return nb


def without_check_cells(nb):
    """The check cells deleted, and a cell of the student's own added."""
    nb.cells = [c for c in nb.cells if not c.id.startswith("check-")]
    nb.cells.append(nbformat.v4.new_code_cell("print('my notes')"))
    return nb


def doubled(nb):
    """Every cell twice."""
    nb.cells = [c for c in nb.cells for _ in range(2)]
    return nb


def markdown(nb):
    """The answer's cell turned into text."""
    cell(nb, "double").cell_type = "markdown"
    return nb


def skipped(nb):
    """Tags that tell nbclient to pass over the check cells: full marks in stock nbgrader."""
    for c in nb.cells:
        c.metadata["tags"] = ["skip-execution"]
    return nb


def flipped(nb):
    """Flags and points turned over."""
    for c in nb.cells:
        mark = c.metadata.get("nbgrader", {})
        mark.update({k: not v for k, v in mark.items() if isinstance(v, bool)})
        mark["points"] = 1000
    return nb


def old_format(nb):
    """Format 3: worksheets, and `input` for `source`."""
    cells = [{**c, "input": c.source} for c in nb.cells]
    for c in cells:
        del c["source"]
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}


def wrong_types(nb):
    """Nonsense where dictionaries and strings belong."""
    nb = json.loads(json.dumps(nb))
    nb["metadata"] = {"widgets": {"application/vnd.jupyter.widget-state+json": 3}}
    nb["cells"][0] = "not a cell"
    nb["cells"][1]["metadata"] = ["a", "list"]
    nb["cells"].append({"cell_type": "code", "source": 5, "id": {}, "metadata": {"nbgrader": 7}})
    return nb


FULL_MARKS = [
    stripped,
    anonymous,
    without_check_cells,
    doubled,
    markdown,
    skipped,
    flipped,
    old_format,
    wrong_types,
]
