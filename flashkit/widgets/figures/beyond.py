"""Two pictures of lesson 6: what overlapping buys on one SM, and who works when in a ring."""

from fractions import Fraction

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from flashkit.ring.placement import spans, visits
from flashkit.widgets.figures.style import BLUE, GREY, ORANGE, finished

CLOCKS_PER_EXP = 1 / 16
"""Of one score on one Hopper SM: 16 exponentials a clock."""
CLOCKS_PER_COLUMN = 1 / 1024
"""Of one score and column of D, both matmuls: 4 operations at 4096 a clock."""
KINDS = {"tensor cores": (BLUE, ""), "exponentials": (ORANGE, "/")}
ALONE = "in turn: one group"
Block = tuple[str, str, float, float]  # lane, kind, start, length


def busy_share(d: int) -> float:
    """The share of its time in which a lonely program keeps the tensor cores at work."""
    matmul = d * CLOCKS_PER_COLUMN
    return matmul / (matmul + CLOCKS_PER_EXP)


def timeline(d: int = 128, tiles: int = 4) -> go.Figure:
    """Two schedules of the same tiles on one SM: in turn, and two groups of warps overlapped."""
    matmul, softmax = d * CLOCKS_PER_COLUMN, CLOCKS_PER_EXP
    blocks = _blocks(matmul, softmax, tiles)
    figure = go.Figure()
    for kind, (colour, shape) in KINDS.items():
        own = [block for block in blocks if block[1] == kind]
        figure.add_bar(
            base=[start for _, _, start, _ in own], x=[length for *_, length in own],
            y=[lane for lane, *_ in own], orientation="h", name=kind, width=0.6,
            marker={"color": colour, "pattern": {"shape": shape}, "line": {"color": GREY}},
            hovertemplate="%{y}: " + kind + "<extra></extra>",
        )  # fmt: skip
    ends = [2 * tiles * (matmul + softmax), max(s + n for x, _, s, n in blocks if x != ALONE)]
    figure.update_xaxes(title_text="time of the same work", showticklabels=False, showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    title = "while one group waits for exponentials, the other multiplies"
    return finished(
        figure, f"D {d}: {title}: {ends[0] / ends[1]:.1f} times", height=300, barmode="overlay",
        legend={"orientation": "h", "y": -0.25, "x": 0},
        margin={"l": 150, "r": 20, "t": 60, "b": 90},
    )  # fmt: skip


def _blocks(matmul: float, softmax: float, tiles: int) -> list[Block]:
    """2 * tiles of them: by one group in turn, and by two groups that share the tensor cores."""
    turn, blocks = matmul + softmax, []
    step = max(turn, 2 * matmul)
    for i in range(2 * tiles):
        blocks += _round(ALONE, i * turn, matmul, softmax)
    for i in range(tiles):
        for group in range(2):
            start = i * step + group * matmul
            blocks += _round(f"overlapped: group {group}", start, matmul, softmax)
    return blocks


def _round(lane: str, start: float, matmul: float, softmax: float) -> list[Block]:
    """The matmuls of one tile and then its exponentials."""
    return [
        (lane, "tensor cores", start, matmul),
        (lane, "exponentials", start + matmul, softmax),
    ]


def ring_pairs(world: int, placement: str, size: int = 8) -> list[list[int]]:
    """Pairs of query and key that each rank (row) computes in each step (column), causal.

    size tokens are a chunk; every rank holds 2 of them.
    """
    t = 2 * world * size
    held = [spans(rank, world, t, placement) for rank in range(world)]
    return [
        [_pairs(held[rank], held[(rank - step) % world]) for step in range(world)]
        for rank in range(world)
    ]


def _pairs(queries, keys) -> int:
    """The visible pairs in the calls that a rank makes for these keys."""
    count = 0
    for visit in visits(queries, keys):
        rows, columns = (len(range(x.start, x.stop)) for x in (visit.rows, visit.keys))
        seen = (visit.offset + i + 1 for i in range(rows))
        count += sum(min(columns, max(0, n)) for n in seen) if visit.causal else rows * columns
    return count


def ring_work(world: int = 4) -> go.Figure:
    """Two maps of what each rank computes in each step, as a share of a tile of scores."""
    names, unit = ("contiguous", "zigzag"), (2 * 64) ** 2
    figure = make_subplots(cols=2, subplot_titles=names, horizontal_spacing=0.14)
    totals = []
    for column, name in enumerate(names, start=1):
        work = ring_pairs(world, name, size=64)
        totals.append(sum(max(step) for step in zip(*work, strict=True)) / unit)
        figure.add_heatmap(
            z=work, text=[[_share(n, unit) for n in row] for row in work], row=1, col=column,
            texttemplate="%{text}", textfont={"size": 15}, showscale=False, xgap=3, ygap=3,
            x=[f"step {i}" for i in range(world)], y=[f"rank {i}" for i in range(world)],
            colorscale=[[0, "rgba(86,180,233,0.08)"], [1, "rgba(86,180,233,0.75)"]], zmin=0,
            zmax=unit, hovertemplate="%{y}, %{x}: %{text} of a tile<extra></extra>",
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False)
    title = (
        f"Scores computed, as a share of (T / {world})²: the slowest ranks add up to "
        f"{totals[0]:.1f} in order, {totals[1]:.1f} in zigzag"
    )
    return finished(figure, title, height=330, margin={"l": 70, "r": 20, "t": 90, "b": 40})


def _share(pairs: int, unit: int) -> str:
    """0, ½ or 1: the diagonal's half a row of pairs is not worth showing."""
    halves = Fraction(round(2 * pairs / unit), 2)
    return {0: "0", Fraction(1, 2): "½", 1: "1"}[halves]
