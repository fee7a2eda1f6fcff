"""What a tile does to one row, as panels: scores, weights, l and a, and the formulas."""

import math

from flashkit.widgets.explorers.tile_run import Run, listed, number, same, short
from flashkit.widgets.scene import Bars

CROWDED = 8  # more bars than this leave no room for four decimals


def scores_panel(row: Run, i: int) -> Bars:
    """All scores with tile i lit, what comes later dim, and m as a line; i = -1 is before all."""
    finite = [score for score in row.scores if math.isfinite(score)] + [0.0]
    shown = min(max(i, -1), len(row.tiles) - 1)
    m = row.tiles[shown].m_new if i >= 0 else -math.inf
    line = {} if math.isinf(m) else {"line": m, "line_text": f"m = {short(m)}"}
    return Bars(
        title="scores s",
        labels=_keys(row),
        values=tuple(score if math.isfinite(score) else 0.0 for score in row.scores),
        kinds=_kinds(row, i),
        texts=tuple(map(short, row.scores)),
        low=min(finite),
        high=max(finite) if max(finite) > min(finite) else min(finite) + 1,
        **line,
    )


def weights_panel(row: Run, i: int) -> Bars:
    """exp(s - m) of every key seen so far, against the maximum of this moment."""
    m = row.tiles[i].m_new if i >= 0 else -math.inf
    stop = row.tiles[i].stop if i >= 0 else 0
    weights = tuple(
        0.0 if math.isinf(m) or j >= stop else math.exp(score - m)
        for j, score in enumerate(row.scores)
    )
    texts = _decimals(weights)[:stop] + ("",) * (len(weights) - stop)
    return Bars("p = exp(s − m)", _keys(row), weights, _kinds(row, i), texts, low=0.0, high=1.0)


def _keys(row: Run) -> tuple[str, ...]:
    return tuple(str(j) for j in range(len(row.scores)))


def _kinds(row: Run, i: int) -> tuple[str, ...]:
    """lit in tile i, plain before it, dim after it; all plain once the tiles are through."""
    if i == len(row.tiles):
        return ("plain",) * len(row.scores)
    start, stop = (row.tiles[i].start, row.tiles[i].stop) if i >= 0 else (0, 0)
    return tuple(
        "plain" if j < start else "lit" if j < stop else "dim" for j in range(len(row.scores))
    )


def _decimals(values) -> tuple[str, ...]:
    """Four decimals, or two where many bars share the width."""
    return tuple(number(x) if len(values) <= CROWDED else f"{x:.2f}" for x in values)


def sums_panels(row: Run, i: int) -> tuple[Bars, ...]:
    """l and a before and after tile i; beside them the right ones where something is forgotten."""
    l_panel = _moves_panel(row, i, "l", None)
    if row.scalar:
        return l_panel, _moves_panel(row, i, "a", 0)
    return l_panel, *_vectors(row, i)


def _moves_panel(row: Run, i: int, name: str, component: int | None) -> Bars:
    """One number as bars, on an axis that fits every tile."""
    bars = _moves(row, i, name, component)
    every = [_moves(row, tile, name, component) for tile in range(len(row.tiles))]
    span = [value for moves in every for _, value, _ in moves] + [0.0]
    labels, values, kinds = zip(*bars, strict=True)
    return Bars(name, labels, values, kinds, _marked(values, kinds),
                low=min(span), high=max(span) or 1.0)  # fmt: skip


def _moves(row: Run, i: int, name: str, component: int | None) -> list[tuple[str, float, str]]:
    """(label, value, kind): before, kept of it, added by the tile, after, and the right one."""
    before, after, right, alpha = _numbers(row, i, component)
    kept = before if row.forget in (name, "both") else alpha * before
    bars = [
        ("before", before, "plain"),
        ("kept", kept, "plain" if same([kept], [alpha * before]) else "wrong"),
        ("added", after - kept, "lit"),
        ("after", after, "plain" if same([after], [right]) else "wrong"),
    ]
    return bars if row.forget == "nothing" else [*bars, ("right", right, "good")]


def _marked(values, kinds) -> tuple[str, ...]:
    """Numbers, a wrong one with a sign: colour alone would not tell everybody."""
    pairs = zip(values, kinds, strict=True)
    return tuple(("✗ " if kind == "wrong" else "") + number(value) for value, kind in pairs)


def _numbers(row: Run, i: int, component: int | None) -> tuple[float, float, float, float]:
    """Before, after and right after tile i, of l or of a component of a, and alpha."""
    if i < 0:
        return 0.0, 0.0, 0.0, 1.0
    tile, (l_old, a_old), (l, a) = row.tiles[i], row.sums[i], row.sums[i + 1]
    if component is None:
        return l_old, l, tile.l_new, tile.alpha
    return a_old[component], a[component], tile.a_new[component], tile.alpha


def _vectors(row: Run, i: int) -> tuple[Bars, ...]:
    """a as a row of bars, before and after, and the right one where something is forgotten."""
    before, after = row.sums[max(i, 0)][1], row.sums[i + 1][1]
    right = row.tiles[i].a_new if i >= 0 else after
    plain = ("plain",) * len(after)
    pairs = zip(after, right, strict=True)
    kinds = tuple("plain" if same([x], [y]) else "wrong" for x, y in pairs)
    panels = [("a before", before, plain), ("a after", after, kinds)]
    if row.forget != "nothing":
        panels.append(("a, right", right, ("good",) * len(after)))
    every = [x for _, a in row.sums for x in a] + [x for tile in row.tiles for x in tile.a_new]
    return tuple(vector_bars(title, values, kinds, every) for title, values, kinds in panels)


def vector_bars(title: str, values, kinds, every) -> Bars:
    """A vector as bars on an axis that holds `every` number."""
    span = [*every, 0.0]
    labels = tuple(f"[{c}]" for c in range(len(values)))
    return Bars(title, labels, tuple(values), kinds, _marked(values, kinds),
                low=min(span), high=max(span) or 1.0)  # fmt: skip


def output_panels(got: tuple, right: tuple, kind: str) -> tuple[Bars, ...]:
    """O and the right output: two bars, or a row of bars each."""
    titles, kinds, every = ("O = a / l", "softmax(s) @ v"), (kind, "good"), (*got, *right)
    if len(got) > 1:
        rows = zip(titles, (got, right), kinds, strict=True)
        return tuple(vector_bars(t, values, (k,) * len(values), every) for t, values, k in rows)
    span = (*every, 0.0)
    return (Bars("output", titles, every, kinds, _marked(every, kinds),
                 low=min(span), high=max(span) or 1.0),)  # fmt: skip


def shares_panel(weights: tuple[float, ...]) -> Bars:
    """The softmax of the whole row."""
    names, kinds = tuple(str(j) for j in range(len(weights))), ("plain",) * len(weights)
    return Bars("softmax(s)", names, weights, kinds, _decimals(weights), low=0.0, high=1.0)


def formulas(row: Run, i: int) -> list[tuple[str, str]]:
    """(line, kind) of tile i: m, alpha, p, l and a with their numbers, wrong ones beside right."""
    tile = row.tiles[i]
    reference = 0.0 if math.isinf(tile.m_new) else tile.m_new
    against = f"({short(reference)})" if reference < 0 else short(reference)
    guard = "   (0 stands in for m = −∞)" if math.isinf(tile.m_new) else ""
    lines = [
        (f"m = max({', '.join(map(short, (tile.m_old, *tile.scores)))}) = {short(tile.m_new)}",
         "plain"),
        (f"α = exp({short(tile.m_old)} − {against}) = {number(tile.alpha)}{guard}", "plain"),
        (f"p = exp({listed(tile.scores, short)} − {against}) = {listed(tile.p)}", "plain"),
    ]  # fmt: skip
    return lines + _l_lines(row, i) + _a_lines(row, i)


def _l_lines(row: Run, i: int) -> list[tuple[str, str]]:
    tile, (old, _), (new, _) = row.tiles[i], row.sums[i], row.sums[i + 1]
    added = [number(p) for p in tile.p]
    right = _sum("l", number(tile.alpha), tile.l_old, added, tile.l_new)
    alpha = None if row.forget in ("l", "both") else number(tile.alpha)
    return _beside(_sum("l", alpha, old, added, new), right, "l" in row.wrong(i))


def _a_lines(row: Run, i: int) -> list[tuple[str, str]]:
    """One line a component of a."""
    tile, lines = row.tiles[i], []
    alpha = None if row.forget in ("a", "both") else number(tile.alpha)
    for c, (old, new) in enumerate(zip(row.sums[i][1], row.sums[i + 1][1], strict=True)):
        name = "a" if row.scalar else f"a[{c}]"
        values = [value[c] for value in row.values[tile.start : tile.stop]]
        added = [f"{number(p)} · {short(v)}" for p, v in zip(tile.p, values, strict=True)]
        right = _sum(name, number(tile.alpha), tile.a_old[c], added, tile.a_new[c])
        wrong = not same([new], [tile.a_new[c]])
        lines += _beside(_sum(name, alpha, old, added, new), right, wrong)
    return lines


def _sum(name: str, alpha: str | None, old: float, added: list[str], new: float) -> str:
    kept = number(old) if alpha is None else f"{alpha} · {number(old)}"
    return f"{name} = {' + '.join([kept, *added])} = {number(new)}"


def _beside(line: str, right: str, wrong: bool) -> list[tuple[str, str]]:
    """A wrong line is followed by the right one; a right line stands alone."""
    return [(f"✗ {line}", "wrong"), (f"✓ {right}", "good")] if wrong else [(line, "plain")]
