"""The release gate: what must not reach a student. Every violation is one sentence."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

MAX_BYTES = 500_000
DELIMITERS = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TEST", "BEGIN MARK SCHEME")
NOTEBOOK_METADATA = {"kernelspec", "language_info"}
CELL_METADATA = {"nbgrader", "tags", "deletable", "editable"}
TAGS = {"raises-exception"}
SOLUTION = re.compile(r"BEGIN SOLUTION.*?\n(.*?)^[^\n]*END SOLUTION", re.DOTALL | re.MULTILINE)


def inspect_folder(folder: Path, source: NotebookNode) -> list[str]:
    """What is wrong with the released lesson in `folder`; `source` is its solution notebook."""
    expected = folder / f"{folder.name}.ipynb"
    problems = [
        f"{path}: only {expected.name} may be released"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != expected and ".ipynb_checkpoints" not in path.parts
    ]
    if not expected.exists():
        return [*problems, f"{expected}: the notebook is missing"]
    return problems + inspect_notebook(expected, source)


def inspect_notebook(path: Path, source: NotebookNode) -> list[str]:
    """What is wrong with one released notebook."""
    size = path.stat().st_size
    nb = nbformat.read(path, as_version=4)
    found = [f"weighs {size} bytes, at most {MAX_BYTES}"] if size > MAX_BYTES else []
    found += [
        f"has notebook metadata {key!r}" for key in nb.metadata if key not in NOTEBOOK_METADATA
    ]
    secret = secret_lines(source)
    for cell in nb.cells:
        found += [f"cell {cell.id} {problem}" for problem in _cell_problems(cell, secret)]
    return [f"{path}: {problem}" for problem in found]


def dead_links(page: NotebookNode, folder: Path) -> list[str]:
    """One sentence for each notebook that the start page links to and that is not in `folder`."""
    targets = [t for c in page.cells for t in re.findall(r"[\w/.-]+\.ipynb", c.source)]
    return [
        f"the start page links to {t}: no such file" for t in targets if not (folder / t).exists()
    ]


def _cell_problems(cell: NotebookNode, secret: set[str]) -> Iterator[str]:
    if cell.get("outputs"):
        yield "has outputs"
    if cell.get("execution_count") is not None:
        yield "has an execution count"
    if cell.get("attachments"):
        yield "has attachments"
    for key in sorted(set(cell.metadata) - CELL_METADATA):
        yield f"has metadata {key!r}"
    for tag in sorted(set(cell.metadata.get("tags", [])) - TAGS):
        yield f"has the tag {tag!r}"
    for delimiter in DELIMITERS:
        if delimiter.lower() in cell.source.lower():
            yield f"holds the text {delimiter!r}"
    for line in cell.source.splitlines():
        if normal(line) in secret:
            yield f"holds a line of the solution: {line.strip()!r}"
    if is_solution(cell) and "raise NotImplementedError(" not in cell.source:
        yield "is a solution cell without its stub"
    if is_grade(cell) and cell.metadata.get("editable", True):
        yield "is a check cell that can be edited"


def secret_lines(source: NotebookNode) -> set[str]:
    """The normalised lines that stand in solution regions and nowhere in the lesson's public text.

    A line of fewer than 12 characters without spaces (`else:`, `return o`) gives nothing away.
    """
    hidden, public = set(), set()
    for cell in source.cells:
        regions, shown = SOLUTION.findall(cell.source), SOLUTION.sub("", cell.source)
        if is_solution(cell) and not regions:  # nbgrader clears the whole cell
            regions, shown = [cell.source], ""
        hidden.update(normal(line) for region in regions for line in region.splitlines())
        public.update(normal(line) for line in shown.splitlines())
    return {line for line in hidden - public if len(line) >= 12}


def normal(line: str) -> str:
    """`line` without spaces, comment and case, so that a reformatted copy is still found."""
    code = line if line.lstrip().startswith("#") else line.split(" #")[0]
    return re.sub(r"\s+", "", code).strip("#").lower()
