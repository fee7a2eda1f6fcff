"""What an explorer shows, as plain data: a run is a list of steps, a step a few panels.

Nothing here draws. `stage.js` turns a step into a picture in the page and `fallback` into a table
where no script runs; both read the same `Step.to_json()`.
"""

import math
from dataclasses import dataclass, fields

# The colour of a mark comes from its kind. It is never told by colour alone: texts say it too.
KINDS = ("plain", "lit", "dim", "good", "wrong", "half")


@dataclass(frozen=True)
class Bars:
    """Vertical bars, one per label; `texts` are the numbers printed at them ("" for none)."""

    title: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    kinds: tuple[str, ...]
    texts: tuple[str, ...]
    line: float | None = None  # a horizontal line across all bars, such as m
    line_text: str = ""
    log: bool = False  # a log scale; values must be positive
    low: float | None = None  # an axis that stays the same over all steps
    high: float | None = None

    def __post_init__(self):
        count = len(self.labels)
        for name in ("values", "kinds", "texts"):
            _same_length(self, name, count)
        _known(self, self.kinds)


@dataclass(frozen=True)
class Cells:
    """A grid with named rows and columns: a map of tiles, or a matrix."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kinds: tuple[tuple[str, ...], ...]
    texts: tuple[tuple[str, ...], ...]
    shades: tuple[tuple[float, ...], ...] = ()  # 0 to 1; colours a plain cell by its value
    border: tuple[int, int] = (0, 0)  # a heavier line every so many rows and columns

    def __post_init__(self):
        for name in ("kinds", "texts") + (("shades",) if self.shades else ()):
            _same_length(self, name, len(self.rows))
            for row in getattr(self, name):
                if len(row) != len(self.columns):
                    raise ValueError(f"{self.title}: a row of {name} has {len(row)} entries")
        for row in self.kinds:
            _known(self, row)


@dataclass(frozen=True)
class Lines:
    """Lines of monospace text: a formula with its numbers, or code."""

    title: str
    lines: tuple[str, ...]
    kinds: tuple[str, ...] = ()

    def __post_init__(self):
        if self.kinds:
            _same_length(self, "kinds", len(self.lines))
        _known(self, self.kinds)


@dataclass(frozen=True)
class Tree:
    """Nodes (x, y in 0 to 1 from the top left, text, kind) and the edges between them."""

    title: str
    nodes: tuple[tuple[float, float, str, str], ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self):
        _known(self, [kind for *_, kind in self.nodes])
        if any(not 0 <= end < len(self.nodes) for edge in self.edges for end in edge):
            raise ValueError(f"{self.title}: an edge ends at a node that is not there")


@dataclass(frozen=True)
class Step:
    """One position of the slider: a full sentence, its numbers as facts, and the panels."""

    sentence: str
    facts: tuple[tuple[str, str], ...]
    panels: tuple[Bars | Cells | Lines | Tree, ...]

    def to_json(self) -> dict:
        """The step as dicts, lists, strings and finite numbers."""
        panels = [{"type": type(panel).__name__, **_fields(panel)} for panel in self.panels]
        return {"sentence": self.sentence, "facts": _plain(self.facts), "panels": panels}


def to_json(step: Step) -> dict:
    """The same as `step.to_json()`, as a function to map over steps."""
    return step.to_json()


def _fields(panel) -> dict:
    """The fields that say something, by name: the data of every step is sent to the page."""
    named = {field.name: _plain(getattr(panel, field.name)) for field in fields(panel)}
    return {name: value for name, value in named.items() if _says_something(value)}


def _plain(value):
    """Floats shortened to six digits; inf and nan, which JSON lacks, as their names."""
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))


def _says_something(value) -> bool:
    return value not in ("", []) and value is not None and value is not False


def _same_length(panel, name: str, count: int) -> None:
    found = len(getattr(panel, name))
    if found != count:
        raise ValueError(f"{panel.title}: {found} {name} for {count} entries")


def _known(panel, kinds) -> None:
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ValueError(f"{panel.title}: no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
