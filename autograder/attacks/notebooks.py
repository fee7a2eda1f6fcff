"""Hostile notebook files, one function each: what is handed in, made from an ordinary notebook.

Each gets the notebook with its answers and gives back a notebook, raw text, or the path that a
link is to point to, relative to the course's folder of work.
"""

import json
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.utils import is_grade, is_solution

from autograder.build import CHECK

SCRIPT = "<script>attack()</script>"


def skip_tags(nb: NotebookNode) -> NotebookNode:
    """Tags that tell a runner to pass over the cell."""
    for cell in filter(is_grade, nb.cells):
        cell.metadata["tags"] = ["skip-execution", "nbval-skip", "raises-exception"]
    return nb


def forged_outputs(nb: NotebookNode) -> NotebookNode:
    """Full marks as the outputs of each check cell."""
    for cell in filter(is_grade, nb.cells):
        points = {"text/plain": str(float(cell.metadata.nbgrader.points))}
        cell.outputs = [
            new_output("display_data", data={"text/html": "<b>all cases passed</b>"}),
            new_output("execute_result", data=points, execution_count=1),
        ]
    return nb


def flipped_flags(nb: NotebookNode) -> NotebookNode:
    """Every flag of nbgrader turned over."""
    for cell in nb.cells:
        mark = cell.metadata.get("nbgrader", {})
        mark.update({key: not value for key, value in mark.items() if isinstance(value, bool)})
    return nb


def doubled_checks(nb: NotebookNode) -> NotebookNode:
    """Each check cell a second time, with the same name."""
    nb.cells += [NotebookNode(cell) for cell in nb.cells if is_grade(cell)]
    return nb


def renamed_checks(nb: NotebookNode) -> NotebookNode:
    """The names of the first two checks exchanged, in cell ids too."""
    first, second = list(filter(is_grade, nb.cells))[:2]
    first.id, second.id = second.id, first.id
    first.metadata, second.metadata = second.metadata, first.metadata
    return nb


def forged_points(nb: NotebookNode) -> NotebookNode:
    """A thousand points a check, and scores that nobody gave."""
    for cell in filter(is_grade, nb.cells):
        cell.metadata.nbgrader.update(points=1000, score=1000, auto_score=1000, manual_score=1000)
    return nb


def forged_record(nb: NotebookNode) -> NotebookNode:
    """The metadata that the grader writes itself, with the best that it could say."""
    nb.metadata["autograder"] = {"unreadable": "", "points": 1000, "status": "graded"}
    for cell in nb.cells:
        cell.metadata["autograder"] = {"status": "graded", "points": 4.0, "note": SCRIPT}
    return nb


def own_check(nb: NotebookNode) -> NotebookNode:
    """Check cells that say what they are to give."""
    for cell in filter(is_grade, nb.cells):
        cell.source = str(float(cell.metadata.nbgrader.points))
    return nb


def extra_exercise(nb: NotebookNode) -> NotebookNode:
    """An exercise of one's own, answered and worth a hundred points."""
    flags = {"schema_version": 3, "locked": False, "task": False}
    answer = {**flags, "grade": False, "solution": True, "grade_id": "bonus"}
    check = {**flags, "grade": True, "solution": False, "grade_id": f"{CHECK}bonus", "points": 100}
    nb.cells.append(new_code_cell("bonus = 1", metadata={"nbgrader": answer}))
    nb.cells.append(new_code_cell("100.0", metadata={"nbgrader": check}))
    return nb


def evil_kernelspec(nb: NotebookNode) -> NotebookNode:
    """Another kernel, and a language whose name is a path."""
    spec = {"name": "../../evil", "display_name": SCRIPT, "language": "../evil", "argv": ["sh"]}
    nb.metadata["kernelspec"] = spec
    nb.metadata["language_info"] = {"name": "../evil", "file_extension": "/../../evil"}
    return nb


def link_to_other(nb: NotebookNode) -> Path:
    """A link to the notebook of a student with full marks."""
    return Path("submitted/before/row/row.ipynb")


def link_to_gradebook(nb: NotebookNode) -> Path:
    """A link to the gradebook."""
    return Path("gradebook.db")


def pit_of_brackets(nb: NotebookNode) -> NotebookNode:
    """Sources on which parsers run out of stack, one cell each."""
    pits = ["(" * 50_000, "-" * 200_000 + "1", "x" + ".a" * 200_000, "[" * 150 + "]" * 150]
    pits += ["if x:\n" + "".join(" " * n + "if x:\n" for n in range(1, 300)), "f(" * 5_000]
    stub = next(filter(is_solution, nb.cells))
    for pit in pits:
        nb.cells.append(NotebookNode(stub, source=pit, id=f"pit-{len(nb.cells)}"))
    return nb


def a_million_cells(nb: NotebookNode) -> str:
    """As many cells like the stub as a file of 9 MB holds, without a name."""
    stub = next(filter(is_solution, nb.cells)).source
    data = json.loads(json.dumps(nb))
    few = [{"cell_type": "code", "source": f"{stub} # {n}"} for n in range(9_000_000 // 400)]
    tiny = [{"source": "0"} for _ in range(200_000)]
    return json.dumps({**data, "cells": data["cells"] + few + tiny})


def script_everywhere(nb: NotebookNode) -> NotebookNode:
    """A program in texts, names and outputs."""
    nb.metadata["title"] = SCRIPT
    nb.cells.append(new_markdown_cell(SCRIPT))
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = [new_output("display_data", data={"text/html": SCRIPT})]
        elif cell.cell_type == "markdown":
            cell.source += SCRIPT
    return nb
