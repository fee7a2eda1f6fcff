"""What was measured and kept: the newest committed file of a kind that has what is asked for."""

import csv
from collections.abc import Callable
from pathlib import Path

from flashkit.bench.machine import Ceilings
from flashkit.bench.rows import Row, read

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def newest(
    kind: str, wanted: Callable[[Row], bool], folder: Path = RESULTS
) -> tuple[str, Ceilings, list[Row]] | None:
    """Where and how, the ceilings and the right rows that are wanted, or None.

    They come from the newest DATE-h200-<kind>.csv in which there is any.
    """
    for file in _files(kind, folder):
        comments, ceilings, rows = read(file)
        rows = [row for row in rows if row.status == "ok" and wanted(row)]
        if rows:
            return comments[0], ceilings, rows
    return None


def records(kind: str, folder: Path = RESULTS) -> tuple[str, list[dict[str, str]]] | None:
    """The comment and the rows, by column, of the newest file of a script of its own, or None."""
    for file in _files(kind, folder):
        lines = file.read_text(encoding="utf-8").splitlines()
        comments = [line[2:] for line in lines if line.startswith("# ")]
        return "; ".join(comments), list(csv.DictReader(lines[len(comments) :]))
    return None


def _files(kind: str, folder: Path) -> list[Path]:
    """The newest first: a name begins with its date."""
    return sorted(folder.glob(f"????-??-??-h200-{kind}.csv"), reverse=True)
