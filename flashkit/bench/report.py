"""The tables that the command prints."""

from collections.abc import Sequence

from flashkit.bench.machine import Ceilings, Machine
from flashkit.bench.modes import PATHS
from flashkit.bench.rows import ROTATED, SEPARATE, Row
from flashkit.bench.targets import Verdict

MEASURES = {
    SEPARATE: "one call at a time, behind a flushed cache",
    ROTATED: "calls on different inputs back to back",
}


def rendered(
    machine: Machine, ceilings: Ceilings, rows: Sequence[Row], verdicts: list[Verdict]
) -> str:
    """All of it as text."""
    parts = [machine.line(), ceilings.line()]
    for path in PATHS:
        for measure in MEASURES:
            chosen = [row for row in rows if (row.shape.path, row.measure) == (path, measure)]
            if chosen:
                parts.append(_speeds(path, measure, chosen))
    parts += [_notes(rows), _targets(verdicts)]
    return "\n\n".join(part for part in parts if part)


def _speeds(path: str, measure: str, rows: Sequence[Row]) -> str:
    """One line a shape, one column an implementation, and our best against their best."""
    names = list(dict.fromkeys(row.implementation for row in rows))
    unit = "GB/s" if rows[0].shape.decodes else "TFLOP/s"
    lines = [[f"{path}, {unit}", *names, "ours to best peer"]]
    for shape in dict.fromkeys(row.shape for row in rows):
        here = {row.implementation: row for row in rows if row.shape == shape}
        ratios = [row.ratio for row in here.values() if row.ours and row.ratio]
        best = f"{max(ratios):.2f}" if ratios else "-"
        lines.append([shape.label, *(_speed(here.get(name)) for name in names), best])
    return f"{path}: {MEASURES[measure]}\n" + columns(lines)


def _speed(row: Row | None) -> str:
    if row is None:
        return ""
    if row.status != "ok":
        return row.status
    return f"{row.gbs if row.shape.decodes else row.tflops:.0f}"


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as text, the first column to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _notes(rows: Sequence[Row]) -> str:
    """Each reason once, with whom and on how many rows it stands."""
    counts: dict[tuple[str, str, str], int] = {}
    for row in rows:
        if row.note:
            key = (row.implementation, row.status, row.note)
            counts[key] = counts.get(key, 0) + 1
    return "\n".join(
        f"{name}, {n} {'row' if n == 1 else 'rows'} {status}: {note}"
        for (name, status, note), n in counts.items()
    )


def _targets(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    lines = [["target", "times", "at least", "aim", "worst", "", "where"]]
    lines += [
        [
            verdict.target,
            verdict.bar.against,
            *(_number(value) for value in (verdict.bar.at_least, verdict.bar.aim, verdict.value)),
            verdict.word,
            verdict.where,
        ]
        for verdict in verdicts
    ]
    return columns(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
