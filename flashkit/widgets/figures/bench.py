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
    chosen = [
        row
        for row in rows
        if (row.shape.path, row.shape.d, row.shape.causal) == ("forward", d, causal)
        and row.shape.q_heads == row.shape.kv_heads
    ]
    figure = _speeds(chosen, "TFLOP/s", ("matmul", ceilings.matmul))
    mask = "causal" if causal else "no mask"
    return _titled(figure, f"Forward, D {d}, {mask}", chosen, "tokens T")


def decode_speed(rows: Sequence[Row], ceilings: Ceilings) -> go.Figure:
    """GB/s over S of one sequence's decode step, one call at a time, under the copy rate."""
    chosen = [row for row in rows if (row.shape.path, row.shape.batch) == ("decode", 1)]
    figure = _speeds(chosen, "GB/s", ("copy", ceilings.copy_gbs))
    return _titled(figure, "Decode of one sequence", chosen, "keys S")


def _speed(row: Row) -> float:
    return round(row.gbs if row.shape.decodes else row.tflops, 1)


def _speeds(rows: list[Row], unit: str, ceiling: tuple[str, float]) -> go.Figure:
    """A line an implementation with two times or more, and the ceiling.

    Raises ValueError if there is no time at all.
    """
    figure = go.Figure()
    timed = [row for row in rows if (row.measure, row.status) == (SEPARATE, "ok")]
    if not timed:
        raise ValueError("the rows hold no time to draw: choose another mode of the bench")
    for name in dict.fromkeys(row.implementation for row in timed):
        own = sorted((r for r in timed if r.implementation == name), key=lambda r: r.shape.s)
        if len(own) == 1:
            continue
        colour, symbol, dash = STYLES.get(name, OTHER)
        figure.add_scatter(
            x=[row.shape.s for row in own], y=[_speed(row) for row in own], name=name,
            mode="lines+markers", line={"color": colour, "dash": dash},
            marker={"symbol": symbol, "size": 9}, cliponaxis=False,
            hovertemplate=f"%{{x:,}}: %{{y:,.0f}} {unit}",
        )  # fmt: skip
    what, rate = ceiling
    figure.add_hline(
        rate, line={"color": GREY, "dash": "longdash", "width": 2},
        annotation={"text": f"{what}: {rate:,.0f}", "font": {"color": GREY}},
    )  # fmt: skip
    lengths = sorted({row.shape.s for row in timed})
    ticks = {"tickvals": lengths, "ticktext": [short(n) for n in lengths]}
    figure.update_xaxes(type="log", **ticks)
    return figure.update_yaxes(title_text=unit, rangemode="tozero")


def _titled(figure: go.Figure, what: str, rows: list[Row], axis: str) -> go.Figure:
    """The look of the house, and a title with the fastest of ours beside cuDNN."""
    figure.update_xaxes(title_text=axis)
    timed = [row for row in rows if (row.measure, row.status) == (SEPARATE, "ok")]
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
    measured = {
        row.implementation: row
        for row in rows
        if (row.shape, row.measure, row.status) == (shape, SEPARATE, "ok")
    }
    own = [r for r in rungs if r.implementation.name in measured]
    if not own:
        raise ValueError(f"the rows hold no rung on {shape.label}: run flashkit bench --ladder")
    unit = "GB/s" if shape.decodes else "TFLOP/s"
    speeds = [_speed(measured[rung.implementation.name]) for rung in own]
    figure = go.Figure()
    figure.add_bar(
        x=speeds, y=[f"<b>{r.implementation.name}</b><br>{r.new}" for r in own], orientation="h",
        text=[f"{speed:,.0f}" for speed in speeds], textposition="inside", insidetextanchor="end",
        textfont={"color": "white", "size": 14}, marker_color=BLUE, width=0.7, hoverinfo="x",
    )  # fmt: skip
    if "cudnn" in measured:
        rate = _speed(measured["cudnn"])
        figure.add_vline(
            rate, line={"color": VERMILLION, "dash": "dash"},
            annotation={"text": f"cuDNN {rate:,.0f}", "font": {"color": VERMILLION}},
        )  # fmt: skip
    figure.update_xaxes(title_text=unit, rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return finished(
        figure,
        f"{shape.label}: from {speeds[0]:,.0f} to {speeds[-1]:,.0f} {unit}, "
        f"{speeds[-1] / speeds[0]:.1f} times",
        height=160 + 60 * len(own),
        showlegend=False,
        margin={"l": 420, "r": 40, "t": 70, "b": 60},
    )
