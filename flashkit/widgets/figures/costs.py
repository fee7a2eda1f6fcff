"""What attention costs: traffic, the roofline, and peaks of memory.

On a logarithmic axis plotly places lines by value but annotations by the logarithm of it.
"""

import math

import plotly.graph_objects as go

from flashkit import cost
from flashkit.widgets.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    byte_ticks,
    finished,
)
from flashkit.widgets.wording import size

MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star")


def _marked_line(figure: go.Figure, xs: list, ys: list, name: str, colour: str, symbol: str):
    """A line of bytes with markers, its name, and its last value as text."""
    texts = [""] * (len(ys) - 1) + [size(ys[-1])]
    figure.add_scatter(
        x=xs, y=ys, name=name, mode="lines+markers+text", text=texts, textposition="top center",
        cliponaxis=False, line_color=colour, marker={"symbol": symbol, "size": 9},
        customdata=[size(y) for y in ys], hovertemplate="T = %{x:,}: %{customdata}",
    )  # fmt: skip


def _length_axis(figure: go.Figure, ts: list[int]) -> None:
    ticks = {"tickvals": list(ts), "ticktext": [f"{t:,}" for t in ts]}
    figure.update_xaxes(type="log", title_text="tokens T", **ticks)


def traffic(t: int, d: int, block_m: int, *, itemsize: int = 2) -> go.Figure:
    """Bytes moved for one head, T = S = t: the unfused passes stacked, and the tiled kernel."""
    scores = cost.score_entries(t, t) * itemsize
    unfused = cost.unfused_bytes(t, t, d, itemsize=itemsize)
    tiled = cost.flash_bytes(t, t, d, block_m, itemsize=itemsize)
    keys = cost.flash_kv_reads(t, t, d, block_m) * itemsize
    rows = ["unfused", f"tiled, BLOCK_M = {block_m}"]
    pieces = (
        ("write S", scores, 0, BLUE, ""), ("read S", scores, 0, SKY, "/"),
        ("write P", scores, 0, GREEN, ""), ("read P", scores, 0, ORANGE, "\\"),
        ("read K and V, once per query tile", 0, keys, PURPLE, "x"),
        ("the rest: Q, O, and K, V once", unfused - 4 * scores, tiled - keys, GREY, "."),
    )  # fmt: skip
    figure = _stacked(rows, pieces, [unfused, tiled])
    return finished(
        figure,
        f"T = {t:,}, d = {d}: unfused attention moves {unfused / tiled:.1f} times the bytes of "
        "the tiled kernel,<br>which never moves a score",
        height=400,
        barmode="stack",
        legend={"orientation": "h", "y": -0.28, "x": 0, "traceorder": "normal"},
        margin={"l": 150, "r": 20, "t": 75, "b": 120},
    )


def _stacked(rows: list[str], pieces: tuple, totals: list[int]) -> go.Figure:
    """Horizontal bars of bytes, one a row, each a stack of (name, *bytes, colour, pattern)."""
    figure = go.Figure()
    for name, *values, colour, pattern in pieces:
        figure.add_bar(
            y=rows, x=values, name=name, orientation="h", marker_color=colour, width=0.5,
            marker_pattern={"shape": pattern, "size": 7, "solidity": 0.2, "fillmode": "overlay"},
            customdata=[size(value) for value in values], hovertemplate="%{customdata}",
        )  # fmt: skip
    for row, total in zip(rows, totals, strict=True):
        figure.add_annotation(
            x=total, y=row, text=f"<b>{size(total)}</b>", xanchor="left", showarrow=False, xshift=6
        )
    longest = max(totals)
    step = 2 ** max(0, longest.bit_length() - 3)
    ticks = list(range(0, longest + step, step))
    figure.update_xaxes(
        title_text="bytes between memory and chip, one head", range=[0, 1.15 * longest],
        tickvals=ticks, ticktext=[size(tick) for tick in ticks],
    )  # fmt: skip
    return figure.update_yaxes(autorange="reversed", showgrid=False)


def roofline(points: dict[str, tuple[float, float]], device: cost.Device) -> go.Figure:
    """Where each (FLOPs, bytes) stands under the device's roof, on log-log axes.

    points: name -> (flops, bytes), both > 0. A point lies on the roof: the best it could reach.
    """
    ridge = device.flops / device.bandwidth
    intensity = {name: flops / n_bytes for name, (flops, n_bytes) in points.items()}
    figure = _roof(device, list(intensity.values()))
    for i, (name, x) in enumerate(intensity.items()):
        bound = "memory-bound" if x < ridge else "compute-bound"
        figure.add_scatter(
            x=[x], y=[min(device.flops, x * device.bandwidth)], mode="markers",
            name=f"{name}: {x:.3g} FLOPs a byte, {bound}", hoverinfo="name",
            marker={"size": 14, "symbol": MARKERS[i % 6], "color": (BLUE, ORANGE, GREEN)[i % 3]},
        )  # fmt: skip
    slow = sum(x < ridge for x in intensity.values())
    return finished(
        figure,
        f"{device.name}: {slow} of {len(points)} stand left of the ridge and wait for memory",
        height=460,
        showlegend=True,
        legend={"orientation": "h", "y": -0.2, "x": 0, "entrywidth": 390},
        margin={"l": 90, "r": 30, "t": 60, "b": 140},
    )


def _roof(device: cost.Device, intensities: list[float]) -> go.Figure:
    """The roof: bandwidth times intensity up to the ridge, the peak from there on."""
    ridge = device.flops / device.bandwidth
    low, high = min(1.0, *intensities) / 2, 4 * max(ridge, *intensities)
    figure = go.Figure()
    figure.add_scatter(
        x=[low, ridge, high], y=[low * device.bandwidth, device.flops, device.flops], mode="lines",
        line={"color": GREY, "width": 3}, name=f"roof of {device.name}", hoverinfo="skip",
    )  # fmt: skip
    figure.add_vline(ridge, line={"color": VERMILLION, "dash": "dot"})
    figure.add_annotation(
        text=f"ridge: {ridge:.3g}", font_color=VERMILLION, showarrow=False, xanchor="left",
        x=math.log10(ridge), y=0, yref="y domain", yanchor="bottom",
    )  # fmt: skip
    figure.update_xaxes(type="log", title_text="FLOPs per byte moved", dtick=1)
    return figure.update_yaxes(
        type="log", title_text="FLOP/s at best", dtick=1, exponentformat="power"
    )


def peak_memory(rows: list[tuple[int, int, int]]) -> go.Figure:
    """Measured peaks against T on log-log axes; rows of (t, exact_bytes, online_bytes)."""
    ts, exact, online = (list(column) for column in zip(*rows, strict=True))
    figure = go.Figure()
    _marked_line(figure, ts, exact, "exact: holds S and P", VERMILLION, "square")
    _marked_line(figure, ts, online, "online: one tile at a time", BLUE, "circle")
    figure.data[1].update(textposition="bottom center", line_dash="dash")
    _length_axis(figure, ts)
    values = [value for value in exact + online if value > 0]
    figure.update_yaxes(title_text="peak bytes", **byte_ticks(min(values), max(values)))
    return finished(
        figure,
        f"At T = {ts[-1]:,} the exact version holds {exact[-1] / online[-1]:.0f} times as much "
        "as the online one",
        height=440,
        legend={"x": 0.02, "y": 0.98},
        margin={"l": 90, "r": 40, "t": 60, "b": 60},
    )
