"""The tile explorer: one row's m, l and a, tile by tile, right or with a rescale forgotten."""

import math

import torch

from flashkit.widgets.explorers.tile_panels import (
    formulas,
    output_panels,
    scores_panel,
    shares_panel,
    sums_panels,
    weights_panel,
)
from flashkit.widgets.explorers.tile_run import Run, number, run, same, short, vector
from flashkit.widgets.panel import Choice, Explorer, Number, Text, numbers
from flashkit.widgets.scene import Lines, Step

OPTIONS = (
    ("nothing", "nothing"),
    ("to rescale l", "l"),
    ("to rescale a", "a"),
    ("to rescale both", "both"),
)
FORGOT = {"l": "l", "a": "a", "both": "l and a"}
NONE = "–"


def tile_explorer(scores, values, tile: int = 2, *, name: str = "The tile explorer") -> Explorer:
    """Step through scores (S,) and values (S,) or (S, D), `tile` keys at a time.

    The reader changes scores, values and the tile size, and chooses what is forgotten. Explorers
    that stand together need different names.
    """
    rows = torch.as_tensor(values, dtype=torch.float64).tolist()
    vectors = bool(rows) and isinstance(rows[0], list)
    written = "; ".join(map(_written, rows)) if vectors else _written(rows)
    row = _written(torch.as_tensor(scores, dtype=torch.float64).tolist())
    controls = (
        Text("scores", "scores (-inf hides a key)", row),
        Text("values", "values (vectors: 1, 0; 0, 1)", written),
        Number("tile", "keys in a tile", tile, 1, 16),
        Choice("forget", "forget", OPTIONS, "nothing"),
    )
    return Explorer(name, _from_text, controls, step_label="step")


def _written(values: list[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _from_text(scores: str, values: str, tile: int, forget: str) -> list[Step]:
    return tile_steps(_scores(scores), _values(values), tile, forget)


def _scores(text: str) -> list[float]:
    """Numbers, and -inf for hidden keys."""
    entries = text.replace("−", "-").replace("∞", "inf").replace(",", " ").split()
    if not entries:
        raise ValueError("write at least one score, such as 0, 1, 2")
    return [-math.inf if entry.lower() == "-inf" else numbers(entry)[0] for entry in entries]


def _values(text: str) -> list:
    """Numbers, or vectors with semicolons between them."""
    rows = [numbers(part) for part in text.replace("−", "-").strip(" ;").split(";")]
    if ";" not in text:
        return rows[0]
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1:
        raise ValueError(
            f"all values must have the same number of components, got {widths[0]} and {widths[-1]}"
        )
    return rows


def tile_steps(scores, values, tile: int, forget: str = "nothing") -> list[Step]:
    """Steps of the recurrence: before the first tile, one a tile, and the division by l.

    scores (S,), -inf for hidden keys; values (S,) or (S, D); forget is "nothing", "l", "a" or
    "both": what is not rescaled when the maximum rises. Raises ValueError for what cannot be
    drawn, and for shapes that do not fit.
    """
    row = run(scores, values, tile, forget)
    return [_opening(row), *(_tile(row, i) for i in range(len(row.tiles))), _closing(row)]


def _opening(row: Run) -> Step:
    lines = ("m = −∞", "l = 0", "a = 0" if row.scalar else f"a = {vector(row.sums[0][1])}")
    sentence = "Nothing has been seen yet: m is −∞, l and a are 0."
    return Step(sentence, _facts(row, -1), (*_panels(row, -1), Lines("in numbers", lines)))


def _tile(row: Run, i: int) -> Step:
    lines, kinds = zip(*formulas(row, i), strict=True)
    sentence = f"tile {i + 1}: {_rise(row, i)}{_blame(row, i)}"
    return Step(sentence, _facts(row, i), (*_panels(row, i), Lines("in numbers", lines, kinds)))


def _panels(row: Run, i: int) -> tuple:
    return scores_panel(row, i), weights_panel(row, i), *sums_panels(row, i)


def _facts(row: Run, i: int, output: str = NONE, right: str = NONE) -> tuple:
    """m, alpha, p, l, a and O after tile i; the right l, a and O too if something is forgotten."""
    last = min(i, len(row.tiles) - 1)
    tile, (l, a) = row.tiles[last], row.sums[last + 1]
    inside = 0 <= i < len(row.tiles)
    facts = [
        ("m", short(tile.m_new) if i >= 0 else "−∞"),
        ("alpha", number(tile.alpha) if inside else NONE),
        ("p", ", ".join(map(number, tile.p)) if inside else NONE),
        ("l", number(l)),
        ("a", vector(a)),
        ("O", output),
    ]
    if row.forget != "nothing":
        right_l, right_a = (tile.l_new, tile.a_new) if i >= 0 else (l, a)
        facts += [("right l", number(right_l)), ("right a", vector(right_a)), ("right O", right)]
    return tuple(facts)


def _rise(row: Run, i: int) -> str:
    """What the tile does to the maximum, and so to l and a."""
    tile = row.tiles[i]
    old, new = short(tile.m_old), short(tile.m_new)
    if math.isinf(tile.m_new):
        return "all its keys are hidden and nothing has been seen yet: m stays −∞, l and a stay 0."
    if math.isinf(tile.m_old):
        return f"the first maximum is {new}; l and a were 0, so there is nothing to rescale."
    if max(tile.scores) == -math.inf:
        return f"all its keys are hidden: m stays {old}, and l and a stay as they were."
    if tile.m_old == tile.m_new:
        return f"the maximum stays {old}, nothing is rescaled."
    shrink = "shrink" if row.forget == "nothing" else "must shrink"
    return f"the maximum rises from {old} to {new}, so l and a {shrink} by {number(tile.alpha)}."


def _blame(row: Run, i: int) -> str:
    """What the forgotten rescale has done to the sums, if anything."""
    bad = row.wrong(i)
    if not bad:
        return ""
    (l, a), right = row.sums[i + 1], row.tiles[i]
    said = {"l": f"l is {number(l)}, not {number(right.l_new)}", "a": "a is wrong"}
    if row.scalar:
        said["a"] = f"a is {vector(a)}, not {vector(right.a_new)}"
    begin = "Here it first goes wrong" if i == row.first_wrong() else "Still wrong"
    return f" {begin}: {', and '.join(said[name] for name in bad)}."


def _closing(row: Run) -> Step:
    """O = a / l beside the softmax of the whole row."""
    end = len(row.tiles)
    if row.tiles[-1].l_new == 0:
        sentence = "No key was visible: l is 0, and a / l has no meaning."
        return Step(sentence, _facts(row, end), (scores_panel(row, end),))
    weights = torch.softmax(torch.tensor(row.scores, dtype=torch.float64), 0)
    right = tuple((weights @ torch.tensor(row.values, dtype=torch.float64)).tolist())
    l, a = row.sums[-1]
    got = tuple(x / l for x in a)
    kind = "plain" if row.first_wrong() is None or same(got, right) else "wrong"
    lines = (f"O = a / l = {vector(a)} / {number(l)} = {vector(got)}",
             f"softmax(s) @ v = {vector(right)}")  # fmt: skip
    shown = (f"✗ {lines[0]}", f"✓ {lines[1]}") if kind == "wrong" else lines
    # Vectors need the width for themselves.
    panels = (
        *([scores_panel(row, end)] if row.scalar else []),
        shares_panel(tuple(weights.tolist())),
        *output_panels(got, right, kind),
        Lines("in numbers", shown, (kind, "good")),
    )
    return Step(_verdict(row, kind, lines), _facts(row, end, vector(got), vector(right)), panels)


def _verdict(row: Run, kind: str, lines: tuple[str, str]) -> str:
    """Whether O is right and, if something was forgotten, where it began."""
    first, forgot = row.first_wrong(), FORGOT.get(row.forget)
    if kind == "wrong":
        verb = "were" if row.forget == "both" else "was"
        return (f"After the last tile {lines[0]}, but {lines[1]}: {forgot} {verb} not rescaled in "
                f"tile {first + 1}.")  # fmt: skip
    equal = f"After the last tile {lines[0]}, and {lines[1]}: the same."
    if forgot and first is None:
        return f"{equal} Forgetting to rescale {forgot} does not show: nothing had to be rescaled."
    return f"{equal} The wrong sums happen to cancel." if forgot else equal
