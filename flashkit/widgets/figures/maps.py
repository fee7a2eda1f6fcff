"""Pictures of the score matrix: which tiles a kernel visits, and where two results differ."""

import math

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from flashkit.cost import tile_kind
from flashkit.widgets.figures.style import BLUE, GREY, ORANGE, VERMILLION, finished

KINDS = ("skip", "partial", "full")
SIGNS = {"skip": "·", "partial": "◪", "full": "■"}
SHADES = ("rgba(128,128,128,0.12)", ORANGE, BLUE)
# A discrete colour scale: a third of the range for each kind.
KIND_SCALE = [[(i + end) / 3, shade] for i, shade in enumerate(SHADES) for end in (0, 1)]
# Half strength at a quarter of the range, so that small weights show on a dark page as well.
BLUES, REDS = ("rgba(0,114,178,0.5)", BLUE), ("rgba(213,94,0,0.5)", VERMILLION)


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


def attention_matrix(got: Tensor, want: Tensor, block_m: int, block_n: int) -> go.Figure:
    """Two attention matrices (T, S) with tile borders, and their difference; the worst is marked.

    What is not finite counts as infinitely wrong and is left blank. Raises ValueError for other
    shapes.
    """
    if got.ndim != 2 or got.shape != want.shape:
        raise ValueError(
            f"got and want must both have shape (T, S), got {tuple(got.shape)} and "
            f"{tuple(want.shape)}"
        )
    error = (got.double() - want.double()).abs().nan_to_num(nan=math.inf)
    titles = ["yours", "right", "|yours − right|"]
    figure = make_subplots(1, 3, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04)
    top = max(float(want.max()), 1e-9)
    for column, matrix, shades, high in (
        (1, got, BLUES, top), (2, want, BLUES, top), (3, error, REDS, None),
    ):  # fmt: skip
        _matrix_panel(figure, column, matrix, shades, high)
        _tile_borders(figure, got.shape, block_m, block_n, column)
    row, column = divmod(int(error.argmax()), got.shape[1])
    worst = float(error[row, column])
    if worst > 0:
        _mark(figure, error, row, column, block_m, block_n)
    return finished(
        figure,
        _difference_title(worst, row, column, block_m, block_n),
        height=500,
        margin={"l": 60, "r": 20, "t": 90, "b": 130},
    )


def _matrix_panel(figure: go.Figure, column: int, matrix: Tensor, shades: tuple, high):
    """One heatmap; the two results share the colour bar of the second."""
    figure.add_heatmap(
        z=_finite(matrix), row=1, col=column, zmin=0, zmax=high, showscale=column > 1,
        colorscale=[[0, "rgba(128,128,128,0.08)"], [0.25, shades[0]], [1, shades[1]]],
        colorbar={"orientation": "h", "y": -0.38, "x": (column - 1) * 0.36 + 0.14, "len": 0.3,
                  "thickness": 12, "nticks": 4},
        xgap=1, ygap=1, hovertemplate="query %{y}, key %{x}: %{z:.4g}<extra></extra>",
    )  # fmt: skip


def _finite(matrix: Tensor) -> list[list[float | None]]:
    return [[x if math.isfinite(x) else None for x in row] for row in matrix.tolist()]


def _tile_borders(figure: go.Figure, shape: tuple[int, int], block_m: int, block_n: int, col: int):
    """Lines between the tiles of one panel."""
    line = {"color": GREY, "width": 1}
    rows, columns = shape
    for edge in range(0, rows + block_m, block_m):
        figure.add_hline(min(edge, rows) - 0.5, line=line, row=1, col=col)
    for edge in range(0, columns + block_n, block_n):
        figure.add_vline(min(edge, columns) - 0.5, line=line, row=1, col=col)
    figure.update_xaxes(title_text="key", showgrid=False, zeroline=False, row=1, col=col)
    figure.update_yaxes(
        range=[rows - 0.5, -0.5], showgrid=False, zeroline=False, row=1, col=col,
        title_text="query" if col == 1 else None,
    )  # fmt: skip


def _mark(figure: go.Figure, error: Tensor, row: int, column: int, block_m: int, block_n: int):
    """A thick frame around the worst tile and an arrow to the worst entry."""
    top, left = row // block_m * block_m, column // block_n * block_n
    bottom, right = min(top + block_m, error.shape[0]), min(left + block_n, error.shape[1])
    figure.add_shape(
        type="rect", x0=left - 0.5, x1=right - 0.5, y0=top - 0.5, y1=bottom - 0.5,
        line={"color": VERMILLION, "width": 4}, row=1, col=3,
    )  # fmt: skip
    figure.add_annotation(
        x=column, y=row, text="largest", ax=30, ay=-35, arrowcolor=GREY, arrowhead=2, row=1, col=3
    )


def _difference_title(worst: float, row: int, column: int, block_m: int, block_n: int) -> str:
    if worst == 0:
        return "The two agree everywhere"
    amount = f"{worst:.3g}" if math.isfinite(worst) else "not a finite number"
    return (
        f"Largest difference: {amount}, at query {row}, key {column} (arrow), in query tile "
        f"{row // block_m}, key tile {column // block_n}"
    )
