"""The look that all figures share: colours, one layout, and an axis of bytes."""

import math

import plotly.graph_objects as go

from flashkit.widgets.wording import size

# Okabe and Ito's colours, safe for colour-blind readers; text or a pattern always says it too.
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE = "#D55E00", "#CC79A7"
GREY = "#7b7b7b"  # contrast 4.2 on white and 4.5 on JupyterLab's dark page
FAINT = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"
WIDTH = 860


def finished(figure: go.Figure, title: str, height: int, **layout) -> go.Figure:
    """The figure in the house's layout: fixed size, transparent, a title that says what to see."""
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(fixedrange=True, gridcolor=FAINT, zerolinecolor=FAINT, linecolor=GREY)
        axes(title_standoff=8, title_font_size=13, tickcolor=GREY)
    figure.update_annotations(font_size=13)
    defaults = {
        "template": "none",
        "title": {"text": title, "x": 0.01, "xanchor": "left", "font": {"size": 16}},
        "font": {"color": GREY, "size": 13},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "width": WIDTH,
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 70, "b": 55},
        "dragmode": False,
        "hovermode": "closest",
    }
    return figure.update_layout(defaults | layout)


def byte_ticks(low: float, high: float) -> dict:
    """A logarithmic axis of bytes whose ticks are powers of two with their unit."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    powers = range(first, last + 1, max(1, math.ceil((last - first) / 8)))
    values = [2**power for power in powers]
    return {"type": "log", "tickvals": values, "ticktext": [size(value) for value in values]}
