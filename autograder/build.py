"""`autograder build`: a lesson's .py (py:percent) -> the executed notebook beside it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from traitlets.config import Config

from autograder.course import CourseError

FLAGS = ("grade", "solution", "locked", "task")
CHECK = "check-"  # a check cell is named after its exercise: check-online_update
CELL_TIMEOUT_S = 120
# Text that differs by run or by machine must not be stored. Values: what to tell the author.
VARYING = {
    r"0x[0-9a-f]{6,}": "a memory address",
    r"/tmp/|/var/folders/|\\Temp\\": "a temporary path",
    r"^stderr:": "on stderr (a warning?)",
}
KERNEL_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",  # stored outputs are the interpreter's, whatever machine builds
    "TRITON_INTERPRET": "1",
    "PLOTLY_RENDERER": "plotly_mimetype",
}


def read_lesson(source: Path, points: Mapping[str, float]) -> NotebookNode:
    """The unexecuted notebook of one source: nbgrader metadata complete, cell ids stable.

    `points` holds every exercise's points. Raises CourseError naming the cell that breaks a rule.
    """
    nb = jupytext.read(source, fmt="py:percent")
    nb.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    nb.nbformat, nb.nbformat_minor = 4, 5
    for number, cell in enumerate(nb.cells):
        _complete(cell, number, source)
    _check_cells(nb, points, source)
    nbformat.validate(nb)
    return nb


def _complete(cell: NotebookNode, number: int, source: Path) -> None:
    given = cell.metadata.get("nbgrader")
    if given is None:
        cell.id = f"cell-{number:02d}"
        return
    if not given.get("grade_id"):
        raise CourseError(f"{source}: cell {number} has nbgrader metadata without a grade_id")
    if unknown := set(given) - {*FLAGS, "grade_id", "points"}:
        raise CourseError(
            f"{source}: cell {given['grade_id']}: unknown key {sorted(unknown)[0]!r}"
        )
    filled = {flag: bool(given.get(flag, False)) for flag in FLAGS}
    filled["locked"] = not filled["solution"]  # checks and fixed cells belong to the course
    cell.metadata["nbgrader"] = NotebookNode(given, schema_version=3, **filled)
    cell.id = given["grade_id"]


def _check_cells(nb: NotebookNode, points: Mapping[str, float], source: Path) -> None:
    ids = [cell.id for cell in nb.cells]
    if twice := [name for name in ids if ids.count(name) > 1]:
        raise CourseError(f"{source}: grade_id {twice[0]!r} is used twice")
    marks = {cell.id: cell.metadata.get("nbgrader", {}) for cell in nb.cells}
    solutions = {name for name, mark in marks.items() if mark.get("solution")}
    checks = {name: mark for name, mark in marks.items() if mark.get("grade")}
    for name, mark in checks.items():
        exercise = name.removeprefix(CHECK)
        if exercise not in solutions:
            raise CourseError(f"{source}: check cell {name!r} has no solution cell {exercise!r}")
        if points.get(exercise) != mark.get("points"):
            raise CourseError(
                f"{source}: check cell {name!r} must carry the exercise's points"
                f" {points.get(exercise)}, got {mark.get('points')}"
            )
    if bare := sorted(solutions - {name.removeprefix(CHECK) for name in checks}):
        raise CourseError(f"{source}: solution cell {bare[0]!r} has no check cell")


def execute(nb: NotebookNode, folder: Path) -> None:
    """Run every cell of `nb` in place, in `folder`, in the interpreter; outputs repeat."""
    client = NotebookClient(
        nb,
        kernel_name="python3",
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,  # how a stream is cut into messages depends on the clock
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, **KERNEL_ENVIRONMENT})
    nb.metadata.language_info = NotebookNode(name="python")
    nb.metadata.pop("widgets", None)
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)


def varying(nb: NotebookNode, root: Path) -> list[str]:
    """One sentence for each stored output whose text would differ on another run or machine."""
    patterns = {**VARYING, re.escape(str(root)): "a path of this machine"}
    return [
        f"cell {cell.id} prints {what}: that changes from run to run"
        for cell in nb.cells
        for pattern, what in patterns.items()
        if any(re.search(pattern, text) for text in map(_text, cell.get("outputs", [])))
    ]


def _text(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return f"{output.name}:{output.text}"
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return "\n".join(str(output.data.get(kind, "")) for kind in ("text/plain", "text/html"))


def build(source: Path, points: Mapping[str, float], root: Path) -> Path:
    """Build one lesson; the notebook's path. Raises CourseError if a cell fails or varies."""
    nb = read_lesson(source, points)
    try:
        execute(nb, source.parent)
    except CellExecutionError as error:
        raise CourseError(f"{source} fails when run:\n{error}") from None
    if problems := varying(nb, root):
        raise CourseError("\n".join(f"{source}: {problem}" for problem in problems))
    target = source.with_suffix(".ipynb")
    write(nb, target)
    return target


def write(nb: NotebookNode, target: Path) -> None:
    """Write `nb` as nbformat does, replacing `target` in one step."""
    nbformat.validate(nb)
    scratch = target.with_name(f".{target.name}.new")
    scratch.write_text(nbformat.writes(nb) + "\n", encoding="utf-8")
    scratch.replace(target)


def bare(nb: NotebookNode) -> list[tuple[str, str, str, dict]]:
    """What drift is judged by: each cell's id, type, source and metadata, without outputs."""
    return [(cell.id, cell.cell_type, cell.source, dict(cell.metadata)) for cell in nb.cells]
