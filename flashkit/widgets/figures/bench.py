"""What a run of `flashkit bench` measured: speed over length, and the ladder of techniques.

Every line has its own marker and dash, and every bar its value as text: colour is never alone.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from flashkit.bench.ladder import Rung
from flashkit.bench.machine import Ceilings
from flashkit.bench.rows import SEPARATE, Row
from flashkit.bench.shapes import Shape, short
from flashkit.widgets.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    finished,
)

STYLES = {
    "hopper": (BLUE, "circle", "solid"),
    "triton": (GREEN, "square", "solid"),
    "teaching": (ORANGE, "diamond", "solid"),
    "teaching 32x32": (ORANGE, "diamond-open", "solid"),
    "teaching 128x64": (ORANGE, "diamond", "solid"),
    "cudnn": (VERMILLION, "triangle-up", "dash"),
    "flash": (PURPLE, "x", "dot"),
    "flex": (SKY, "cross", "dashdot"),
    "efficient": (GREY, "triangle-down", "dot"),
    "xformers": (PURPLE, "x-open", "dashdot"),
}
"""Colour, marker and dash of an implementation; peers are broken lines."""
OTHER = (GREY, "star", "dashdot")
LEGEND = {"orientation": "h", "y": -0.2, "x": 0}
MARGIN = {"l": 75, "r": 40, "t": 60, "b": 100}


def forward_speed(
    rows: Sequence[Row], ceilings: Ceilings, d: int, *, causal: bool = True
) -> go.Figure:
    """TFLOP/s over T of every implementation at one head dim, under the measured matmul rate."""
    return _speed_over_t("forward", rows, ceilings, d, causal)


def backward_speed(
    rows: Sequence[Row], ceilings: Ceilings, d: int, *, causal: bool = True
) -> go.Figure:
    """The same of the whole backward pass, which is worth five matmuls."""
    return _speed_over_t("backward", rows, ceilings, d, causal)


def _speed_over_t(
    path: str, rows: Sequence[Row], ceilings: Ceilings, d: int, causal: bool
) -> go.Figure:
    chosen = [
        row
        for row in rows
        if (row.shape.path, row.shape.d, row.shape.causal) == (path, d, causal)
        and row.shape.q_heads == row.shape.kv_heads
    ]
    chosen = [row for row in chosen if row.implementation != "auto"]  # lies on the one it chose
    figure = _speeds(chosen, "TFLOP/s", ("matmul", ceilings.matmul))
    mask = "causal" if causal else "no mask"
    return _titled(figure, f"{path.capitalize()}, D {d}, {mask}", chosen, "tokens T")


def decode_speed(rows: Sequence[Row], ceilings: Ceilings) -> go.Figure:
    """GB/s over S of one sequence's decode step, one call at a time, under the copy rate."""
    chosen = [row for row in rows if (row.shape.path, row.shape.batch) == ("decode", 1)]
    figure = _speeds(chosen, "GB/s", ("copy", ceilings.copy_gbs))
    return _titled(figure, "Decode of one sequence", chosen, "keys S")


def _speed(row: Row) -> float:
    return round(row.gbs if row.shape.decodes else row.tflops, 3)


def _timed(rows: Sequence[Row]) -> list[Row]:
    """Rows of single calls with a right result. Raises ValueError if there is none."""
    timed = [row for row in rows if (row.measure, row.status) == (SEPARATE, "ok")]
    if not timed:
        raise ValueError("the rows hold no time to draw: choose another mode of the bench")
    return timed


def _speeds(rows: Sequence[Row], unit: str, ceiling: tuple[str, float]) -> go.Figure:
    """A line an implementation with times at two lengths or more, and the ceiling."""
    figure = go.Figure()
    timed = _timed(rows)
    for name in dict.fromkeys(row.implementation for row in timed):
        own = sorted((r for r in timed if r.implementation == name), key=lambda r: r.shape.s)
        if len(own) > 1:
            _line(figure, name, own, unit)
    what, rate = ceiling
    figure.add_hline(
        rate, line={"color": GREY, "dash": "longdash", "width": 2},
        annotation={"text": f"{what}: {rate:,.0f}", "font": {"color": GREY}},
    )  # fmt: skip
    lengths = sorted({row.shape.s for row in timed})
    figure.update_xaxes(type="log", tickvals=lengths, ticktext=[short(n) for n in lengths])
    return figure.update_yaxes(title_text=unit, rangemode="tozero")


def _line(figure: go.Figure, name: str, rows: list[Row], unit: str) -> None:
    colour, symbol, dash = STYLES.get(name, OTHER)
    figure.add_scatter(
        x=[row.shape.s for row in rows], y=[_speed(row) for row in rows], name=name,
        mode="lines+markers", line={"color": colour, "dash": dash}, cliponaxis=False,
        marker={"symbol": symbol, "size": 9}, hovertemplate=f"%{{x:,}}: %{{y:,.0f}} {unit}",
    )  # fmt: skip


def _titled(figure: go.Figure, what: str, rows: list[Row], axis: str) -> go.Figure:
    """The look of the house, and a title with the fastest of ours beside cuDNN."""
    figure.update_xaxes(title_text=axis)
    timed = _timed(rows)
    longest = max(row.shape.s for row in timed)
    there = [row for row in timed if row.shape.s == longest]
    fastest = max(there, key=_speed)
    title = f"{what}: {fastest.implementation} is the fastest at {short(longest)}"
    others = [row for row in there if row.ours != fastest.ours]
    if others:
        second = max(others, key=_speed)
        title += f", {_speed(fastest) / _speed(second):.2f} times {second.implementation}"
    return finished(figure, title, height=440, legend=LEGEND, margin=MARGIN)


def ladder(rungs: Sequence[Rung], shape: Shape, rows: Sequence[Row]) -> go.Figure:
    """Horizontal bars, one a rung, from the chapter's kernel down to the fastest; cuDNN a line."""
    timed = {row.implementation: row for row in _timed(rows) if row.shape == shape}
    speeds = {
        f"<b>{rung.implementation.name}</b><br>{rung.new}": _speed(timed[rung.implementation.name])
        for rung in rungs
        if rung.implementation.name in timed
    }
    if not speeds:
        raise ValueError(f"the rows hold no rung on {shape.label}: run flashkit bench --ladder")
    figure = _bars(speeds)
    if "cudnn" in timed:
        rate = _speed(timed["cudnn"])
        figure.add_vline(
            rate, line={"color": VERMILLION, "dash": "dash"},
            annotation={"text": f"cuDNN {rate:,.0f}", "font": {"color": VERMILLION}},
        )  # fmt: skip
    unit = "GB/s" if shape.decodes else "TFLOP/s"
    figure.update_xaxes(title_text=unit, rangemode="tozero")
    values = list(speeds.values())
    return finished(
        figure,
        f"{shape.label}: from {values[0]:,.0f} to {values[-1]:,.0f} {unit}, "
        f"{values[-1] / values[0]:.1f} times",
        height=160 + 60 * len(speeds),
        showlegend=False,
        margin={"l": 420, "r": 40, "t": 70, "b": 60},
    )


def _bars(speeds: dict[str, float]) -> go.Figure:
    figure = go.Figure()
    figure.add_bar(
        x=list(speeds.values()), y=list(speeds), orientation="h", width=0.7, hoverinfo="x",
        text=[f"{speed:,.0f}" for speed in speeds.values()], marker_color=BLUE,
        textposition="auto", insidetextanchor="end", insidetextfont={"color": "white"},
    )  # fmt: skip
    return figure.update_yaxes(autorange="reversed", showgrid=False)
