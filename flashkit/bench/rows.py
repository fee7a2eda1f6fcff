"""The results: a row for each shape, implementation and measure, and the file that keeps them."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from flashkit.bench.machine import Ceilings, Machine
from flashkit.bench.shapes import Shape

SEPARATE, ROTATED = "call", "rotated"
"""One call behind a flushed cache; many calls on different inputs back to back, per call."""


@dataclass(frozen=True)
class Row:
    """What one implementation did on one shape; the numbers are None where it was skipped.

    ms, low, high: median and the 20 % and 80 % marks of a call. share: of the ceiling, 0 to 1
    (bytes for decode, operations otherwise). ratio: the fastest other peer's time over this one's.
    """

    shape: Shape
    implementation: str
    ours: bool
    measure: str
    status: str = "ok"  # or "wrong", "skipped"
    note: str = ""  # why it was skipped, or how it was run where that is not as usual
    ms: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    error: float | None = None
    share: float | None = None
    ratio: float | None = None

    @property
    def tflops(self) -> float | None:
        """Useful operations a second, 1e12."""
        return None if self.ms is None else self.shape.flops / self.ms / 1e9

    @property
    def gbs(self) -> float | None:
        """The fewest bytes a second, 1e9."""
        return None if self.ms is None else self.shape.bytes / self.ms / 1e6


def compared(rows: Sequence[Row], ceilings: Ceilings) -> list[Row]:
    """The rows with share and ratio filled in."""
    return [
        replace(row, share=_share(row, ceilings), ratio=_ratio(row, rows)) if row.ms else row
        for row in rows
    ]


def _share(row: Row, ceilings: Ceilings) -> float:
    if row.shape.decodes:
        return row.gbs / ceilings.copy_gbs
    return row.tflops / ceilings.tflops(row.shape.dtype)


def best_peer(row: Row, rows: Iterable[Row]) -> Row | None:
    """The fastest right row of somebody else's on the same shape by the same measure."""
    peers = [
        other
        for other in rows
        if (other.shape, other.measure, other.status) == (row.shape, row.measure, "ok")
        and not other.ours
        and other.implementation != row.implementation
    ]
    return min(peers, key=lambda peer: peer.ms, default=None)


def _ratio(row: Row, rows: Sequence[Row]) -> float | None:
    peer = best_peer(row, rows)
    return peer.ms / row.ms if peer and row.status == "ok" else None


SHAPE_FIELDS = [field.name for field in fields(Shape)]
OWN_FIELDS = [field.name for field in fields(Row) if field.name != "shape"]
FIELDS = [*SHAPE_FIELDS, *OWN_FIELDS, "tflops", "gbs"]
TEXTS = {"path", "dtype", "implementation", "measure", "status", "note"}


def written(machine: Machine, ceilings: Ceilings, rows: Iterable[Row]) -> str:
    """The file: comments that say where and how, the names of the columns, the rows."""
    out = io.StringIO()
    for line in (machine.line(), ceilings.line()):
        out.write(f"# {line}\n")
    table = csv.writer(out, lineterminator="\n")
    table.writerow(FIELDS)
    for row in rows:
        values = asdict(row.shape) | {name: getattr(row, name) for name in OWN_FIELDS}
        values |= {"tflops": row.tflops, "gbs": row.gbs}
        table.writerow(_cell(values[name]) for name in FIELDS)
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else value


def read(path: Path) -> tuple[list[str], Ceilings, list[Row]]:
    """The comments, the ceilings and the rows of a file that `written` made.

    Raises ValueError where the file is not one.
    """
    lines = Path(path).read_text().splitlines()
    comments = [line[2:] for line in lines if line.startswith("# ")]
    table = csv.DictReader(lines[len(comments) :])
    if len(comments) != 2 or table.fieldnames != FIELDS:
        raise ValueError(f"{path} is no file of flashkit bench: its columns must be {FIELDS}")
    return comments, Ceilings.parse(comments[1]), [_row(record) for record in table]


def _row(record: dict[str, str]) -> Row:
    values = {name: _value(name, text) for name, text in record.items()}
    shape = Shape(**{name: values[name] for name in SHAPE_FIELDS})
    return Row(shape, **{name: values[name] for name in OWN_FIELDS})


def _value(name: str, text: str) -> object:
    if name in TEXTS:
        return text
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    return int(text) if name in SHAPE_FIELDS or name == "samples" else float(text)
