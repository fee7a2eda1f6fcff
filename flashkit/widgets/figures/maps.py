"""A picture of the score matrix: which tiles a kernel visits."""

import math

import plotly.graph_objects as go

from flashkit.cost import tile_kind
from flashkit.widgets.figures.style import BLUE, ORANGE, finished

KINDS = ("skip", "partial", "full")
SIGNS = {"skip": "·", "partial": "◪", "full": "■"}
SHADES = ("rgba(128,128,128,0.12)", ORANGE, BLUE)
# A discrete colour scale: a third of the range for each kind.
KIND_SCALE = [[(i + end) / 3, shade] for i, shade in enumerate(SHADES) for end in (0, 1)]


def tile_map(
    t: int,
    s: int,
    offset: int,
    block_m: int,
    block_n: int,
    *,
    causal: bool = True,
    window: int | None = None,
) -> go.Figure:
    """Query tiles by key tiles, each with its kind (see cost.tile_kind) as a sign and a colour."""
    rows, columns = math.ceil(t / block_m), math.ceil(s / block_n)
    kinds = [
        [tile_kind(i, j, t, s, offset, block_m, block_n, causal, window) for j in range(columns)]
        for i in range(rows)
    ]
    said = {"skip": "are skipped", "partial": "need the mask", "full": "are full"}
    counted = [
        f"{sum(row.count(kind) for row in kinds)} {said[kind]} ({SIGNS[kind]})" for kind in KINDS
    ]
    figure = _signs(kinds)
    figure.update_xaxes(title_text=f"key tile of {block_n} keys", dtick=max(1, columns // 16))
    figure.update_yaxes(title_text=f"query tile of {block_m} rows", dtick=max(1, rows // 16))
    return finished(
        figure,
        f"Of {rows * columns} tiles {', '.join(counted)}",
        height=min(760, 150 + 44 * max(rows, 3)),
        margin={"l": 80, "r": 20, "t": 60, "b": 60},
    )


def _signs(kinds: list[list[str]]) -> go.Figure:
    """A grid of tile kinds, each in its colour and with its sign."""
    figure = go.Figure()
    figure.add_heatmap(
        z=[[KINDS.index(kind) for kind in row] for row in kinds],
        text=[[SIGNS[kind] for kind in row] for row in kinds],
        customdata=kinds, texttemplate="%{text}", textfont={"size": 18},
        hovertemplate="query tile %{y}, key tile %{x}: %{customdata}<extra></extra>",
        zmin=0, zmax=2, colorscale=KIND_SCALE, showscale=False, xgap=3, ygap=3,
    )  # fmt: skip
    figure.update_xaxes(showgrid=False, zeroline=False)
    return figure.update_yaxes(showgrid=False, zeroline=False, autorange="reversed")
