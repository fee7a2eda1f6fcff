"""The softmax state at work: partial results, merged into the whole."""

import plotly.graph_objects as go
import torch

from flashkit.online import State, finish, merge
from flashkit.widgets.figures.style import CLEAR, GREEN, GREY, PURPLE, finished
from flashkit.widgets.wording import number

MOST_PANELS = 8


def _first(value) -> float:
    """The number itself, or the first component of a vector."""
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1)[0].item()


def merge_tree(states: list[State]) -> go.Figure:
    """Partial results (m, l, a) as leaves, merged in pairs up to the whole; a's first component.

    states: 1 to 8 states of one row, m and l 0-dim, a (D,) or 0-dim.
    """
    if not 1 <= len(states) <= MOST_PANELS:
        raise ValueError(f"merge_tree draws 1 to {MOST_PANELS} parts, got {len(states)}")
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
