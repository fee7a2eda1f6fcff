"""The steps of an explorer where no script runs: one sentence a step, or a plain HTML table.

An untrusted notebook shows neither widgets nor SVG, but it does show a sanitised table.
"""

from html import escape

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDEST = 16  # a bar chart or grid with more columns than this says nothing as characters


def text(name: str, steps, label: str = "step", error: str = "") -> str:
    """One line a step, for a terminal, a screen reader or an output that is compared."""
    count = len(steps)
    lines = [f"{label} {i} of {count}: {step.sentence}" for i, step in enumerate(steps, 1)]
    return "\n".join([f"{name}:", *lines, *filter(None, [error])])


def html(name: str, steps, label: str = "step", error: str = "") -> str:
    """A table with a row per step: its sentence, its facts, and its bars as block characters."""
    rows = "".join(_row(i, step) for i, step in enumerate(steps, 1))
    head = "".join(f"<th>{escape(title)}</th>" for title in (label, "what happens", "numbers"))
    return (
        f"<p>{escape(name)}: run this cell to move through these steps. {escape(error)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _row(i: int, step) -> str:
    facts = "<br>".join(f"{escape(name)} = {escape(value)}" for name, value in step.facts)
    drawn = "".join(_drawn(panel) for panel in step.panels)
    return f"<tr><td>{i}</td><td>{escape(step.sentence)}{drawn}</td><td>{facts}</td></tr>"


def _drawn(panel) -> str:
    """A panel in characters, or nothing where the sentence and facts say all of it."""
    draw = {"Bars": _bars, "Cells": _cells, "Lines": _lines}.get(type(panel).__name__)
    lines = draw(panel) if draw else []
    if not lines:
        return ""
    return f"<br><em>{escape(panel.title)}</em><pre>{escape(chr(10).join(lines))}</pre>"


def _bars(panel) -> list[str]:
    if len(panel.labels) > WIDEST:
        return []
    pairs = zip(panel.labels, panel.texts, strict=True)
    printed = [f"{label} {text}".strip() for label, text in pairs]
    width = max((len(entry) for entry in printed), default=0)
    blocks = [block * 2 for block in _blocks(panel)]
    line = [panel.line_text] if panel.line_text else []
    columns = zip(blocks, printed, strict=True)
    return [f"{entry:<{width}}  {block}" for block, entry in columns] + line


def _blocks(panel) -> list[str]:
    """The eight block characters, lowest value to highest; a space for what is not finite."""
    finite = [value for value in panel.values if abs(value) != float("inf") and value == value]
    low = min([0.0, *finite]) if panel.low is None else panel.low
    high = max([0.0, *finite]) if panel.high is None else panel.high
    span = high - low or 1.0
    shares = [max(0.0, min((value - low) / span, 1.0)) for value in finite]
    drawn = iter(BLOCKS[1 + round(7 * share)] for share in shares)
    return [next(drawn) if value in finite else BLOCKS[0] for value in panel.values]


def _cells(panel) -> list[str]:
    if len(panel.columns) > WIDEST or len(panel.rows) > WIDEST:
        return []
    if not any(text for row in panel.texts for text in row):
        return []
    table = [["", *panel.columns]]
    table += [[name, *row] for name, row in zip(panel.rows, panel.texts, strict=True)]
    widths = [max(len(entry) for entry in column) for column in zip(*table, strict=True)]
    return ["  ".join(f"{x:>{w}}" for x, w in zip(row, widths, strict=True)) for row in table]


def _lines(panel) -> list[str]:
    return list(panel.lines)
