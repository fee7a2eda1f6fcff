"""The softmax state at work: the tiles one by one, the running state, the merge of parts."""

import math

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from flashkit.online import State, finish, merge
from flashkit.trace import Tile
from flashkit.widgets.figures.style import (
    BLUE,
    CLEAR,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILLION,
    finished,
)
from flashkit.widgets.wording import number

MOST_PANELS = 8


def _first(value) -> float:
    """The number itself, or the first component of a vector."""
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1)[0].item()


def _check_panels(name: str, count: int) -> None:
    if not 1 <= count <= MOST_PANELS:
        raise ValueError(f"{name} draws 1 to {MOST_PANELS} parts, got {count}")


def tile_steps(tiles: list[Tile]) -> go.Figure:
    """One panel per tile of a trace: all scores with this tile lit, the maximum m, and p below.

    tiles: 1 to 8 records of flashkit.trace.trace; under each panel stand alpha, l and a.
    """
    _check_panels("tile_steps", len(tiles))
    titles = [f"tile {i + 1}: m = {_short(tile.m_new)}" for i, tile in enumerate(tiles)]
    figure = make_subplots(
        2, len(tiles), shared_xaxes=True, shared_yaxes="rows", row_heights=[0.6, 0.4],
        subplot_titles=titles, vertical_spacing=0.08, horizontal_spacing=0.03,
    )  # fmt: skip
    label = _bar_label(tiles[-1].stop * len(tiles))
    for column, tile in enumerate(tiles, start=1):
        _scores_panel(figure, tiles, tile, column, label)
        _weights_panel(figure, tile, column, label)
    _steps_axes(figure, tiles)
    return finished(
        figure,
        "Each tile: raise m (dashed) if a score is larger, weigh with p = exp(score − m), "
        "shrink old l and a by α",
        height=560,
        showlegend=False,
        bargap=0.25,
        margin={"l": 70, "r": 20, "t": 90, "b": 130},
    )


def _bar_label(bars: int) -> dict:
    """How to write on the bars, given how many share the width: upright, turned, or not at all."""
    return {
        "textangle": 0 if bars <= 16 else -90,
        "textposition": "outside" if bars <= 64 else "none",
        "constraintext": "none",
        "textfont_size": 12,
        "cliponaxis": False,
    }


def _scores_panel(figure: go.Figure, tiles: list[Tile], tile: Tile, column: int, label: dict):
    """Bars of every score, this tile's in colour and with their value, and m as a dashed line."""
    scores = [score for each in tiles for score in each.scores]
    lit = [tile.start <= j < tile.stop for j in range(len(scores))]
    figure.add_bar(
        x=list(range(len(scores))),
        y=[score if math.isfinite(score) else 0 for score in scores],
        text=[_short(score) if on else "" for score, on in zip(scores, lit, strict=True)],
        marker_color=[BLUE if on else FAINT for on in lit],
        marker_line={"color": [BLUE if on else GREY for on in lit], "width": 1},
        row=1,
        col=column,
        **label,
    )
    if math.isfinite(tile.m_new):
        line = {"color": VERMILLION, "dash": "dash", "width": 2}
        figure.add_hline(tile.m_new, row=1, col=column, line=line)


def _weights_panel(figure: go.Figure, tile: Tile, column: int, label: dict) -> None:
    """Bars of p for this tile's keys, and the new state as text below them."""
    figure.add_bar(
        x=list(range(tile.start, tile.stop)), y=list(tile.p), text=[number(p) for p in tile.p],
        marker_color=GREEN, row=2, col=column, **label,
    )  # fmt: skip
    figure.add_annotation(
        text=_state_text(tile), x=0.5, y=-0.5, xref="x domain", yref="y domain", yanchor="top",
        showarrow=False, align="left", row=2, col=column,
    )  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.4g}".replace("-", "−").replace("inf", "∞")


def _state_text(tile: Tile) -> str:
    lines = (("α", tile.alpha), ("l", tile.l_new), ("a", _first(tile.a_new)))
    return "<br>".join(f"<b>{name} = {number(value)}</b>" for name, value in lines)


def _steps_axes(figure: go.Figure, tiles: list[Tile]) -> None:
    """One range for all panels of a row, with room for the numbers on the bars."""
    finite = [s for tile in tiles for s in tile.scores if math.isfinite(s)] + [0.0]
    room = 0.25 * (max(finite) - min(finite) or 1.0)
    figure.update_yaxes(row=1, range=[min(finite) - room, max(finite) + 1.5 * room])
    figure.update_yaxes(row=2, range=[0, 1.6])
    figure.update_yaxes(title_text="score", row=1, col=1)
    figure.update_yaxes(title_text="p", row=2, col=1)
    figure.update_xaxes(
        title_text="key", title_standoff=4, row=2, dtick=max(1, tiles[-1].stop // 8)
    )


def running_state(tiles: list[Tile]) -> go.Figure:
    """m, l and a (its first component) after each tile; l and a split into kept and added.

    tiles: 1 to 8 records of flashkit.trace.trace.
    """
    _check_panels("running_state", len(tiles))
    names = ["start"] + [f"tile {i + 1}" for i in range(len(tiles))]
    titles = ["m, the maximum so far", "l, the sum of weights", "a, the weighted sum of values"]
    figure = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.08)
    digits = 4 if len(tiles) <= 3 else 2
    _maxima_panel(figure, names, [tile.m_new for tile in tiles], digits)
    lows = [(tile.alpha, tile.l_old, tile.l_new) for tile in tiles]
    accs = [(tile.alpha, _first(tile.a_old), _first(tile.a_new)) for tile in tiles]
    for column, rows in ((2, lows), (3, accs)):
        _kept_and_added(figure, names, rows, column, digits)
    return finished(
        figure,
        "What was there is first multiplied by α; only then does the tile add its share",
        height=420,
        barmode="relative",
        legend={"orientation": "h", "y": -0.14, "x": 0.4},
        margin={"l": 50, "r": 20, "t": 90, "b": 80},
    )


def _maxima_panel(figure: go.Figure, names: list[str], maxima: list[float], digits: int) -> None:
    """m as steps that never fall; it starts at minus infinity, below the axis."""
    finite = [m for m in maxima if math.isfinite(m)] or [0.0]
    room = 0.4 * (max(finite) - min(finite) or 1.0)
    figure.add_scatter(
        x=names, y=[None, *(m if math.isfinite(m) else None for m in maxima)], row=1, col=1,
        mode="lines+markers+text", line={"color": VERMILLION, "shape": "hv"}, marker_size=9,
        text=["", *(number(m, digits) for m in maxima)], textposition="top center",
        showlegend=False, cliponaxis=False,
    )  # fmt: skip
    figure.add_annotation(
        text="−∞", x="start", y=0, yref="y domain", yanchor="bottom", showarrow=False, row=1, col=1
    )
    figure.update_yaxes(range=[min(finite) - room, max(finite) + room], row=1, col=1)


def _kept_and_added(
    figure: go.Figure, names: list[str], rows: list[tuple], column: int, digits: int
):
    """Bars of alpha * old and of what the tile added; the new total stands above."""
    kept = [0.0] + [alpha * old for alpha, old, _ in rows]
    total = [0.0] + [new for _, _, new in rows]
    added = [new - old for new, old in zip(total, kept, strict=True)]
    for label, values, colour, pattern in (
        ("kept: α × old", kept, BLUE, ""), ("added by the tile", added, ORANGE, "/"),
    ):  # fmt: skip
        figure.add_bar(
            x=names, y=values, name=label, marker_color=colour, marker_pattern_shape=pattern,
            row=1, col=column, showlegend=column == 2,
        )  # fmt: skip
    tops = [max(0.0, old) + max(0.0, new) for old, new in zip(kept, added, strict=True)]
    lowest = min(min(0.0, old) + min(0.0, new) for old, new in zip(kept, added, strict=True))
    room = 0.12 * (max(tops) - lowest or 1.0)
    figure.update_yaxes(range=[lowest - room, max(tops) + room], row=1, col=column)
    figure.add_scatter(
        x=names, y=tops, mode="text", text=[number(value, digits) for value in total],
        row=1, col=column, textposition="top center", showlegend=False, cliponaxis=False,
        hoverinfo="skip",
    )  # fmt: skip


def merge_tree(states: list[State]) -> go.Figure:
    """Partial results (m, l, a) as leaves, merged in pairs up to the whole; a's first component.

    states: 1 to 8 states of one row, m and l 0-dim, a (D,) or 0-dim.
    """
    _check_panels("merge_tree", len(states))
    level = [(state, float(i)) for i, state in enumerate(states)]
    figure, height = go.Figure(), 0
    for state, x in level:
        _node(figure, state, x, height, GREEN)
    while len(level) > 1:
        height += 1
        level = [_merged(figure, level[i : i + 2], height) for i in range(0, len(level), 2)]
    root = level[0][0]
    figure.update_xaxes(visible=False, range=[-0.6, len(states) - 0.4])
    figure.update_yaxes(visible=False, range=[-0.5, height + 0.5])
    output = number(_first(finish(root)))
    return finished(
        figure,
        f"Merged in any order, {len(states)} parts give one state: O = a / l = {output}",
        height=150 + 130 * (height + 1),
        showlegend=False,
        margin={"l": 20, "r": 20, "t": 60, "b": 20},
    )


def _merged(figure: go.Figure, pair: list, height: int) -> tuple[State, float]:
    """The parent of one or two nodes, drawn with its branches."""
    x = sum(place for _, place in pair) / len(pair)
    state = pair[0][0] if len(pair) == 1 else merge(pair[0][0], pair[1][0])
    for _, child in pair:
        figure.add_scatter(
            x=[child, x], y=[height - 0.72, height - 0.28], mode="lines", hoverinfo="skip",
            line={"color": GREY, "width": 2},
        )  # fmt: skip
    _node(figure, state, x, height, PURPLE)
    return state, x


def _node(figure: go.Figure, state: State, x: float, y: int, colour: str) -> None:
    parts = (("m", state.m), ("l", state.l), ("a", state.a))
    text = "<br>".join(f"{name} = {number(_first(value))}" for name, value in parts)
    figure.add_annotation(
        x=x, y=y, text=text, showarrow=False, align="left", bordercolor=colour, borderwidth=2,
        borderpad=6, bgcolor=CLEAR,
    )  # fmt: skip
