"""Who computes what in backward: one program of a kernel at a time, over the map of tiles."""

import math
from typing import NamedTuple

from flashkit.contracts import check_positive, require
from flashkit.cost import BACKWARD_MATMULS, tile_kind
from flashkit.widgets.explorers.learner import listed
from flashkit.widgets.panel import Choice, Explorer, Number
from flashkit.widgets.scene import Cells, Lines, Step

MOST = 12
BLOCKS = (4, 8, 16)
SHOWN = {"skip": "dim", "partial": "half", "full": "lit"}


class Kernel(NamedTuple):
    """What a program owns ("key" or "query" tiles), and which products it needs in each tile."""

    owns: str
    products: tuple[str, ...]
    writes: str


_S, _DP, _DV, _DK, _DQ = BACKWARD_MATMULS
KERNELS = {
    "dk and dv": Kernel("key", (_S, _DP, _DV, _DK), "writes dk and dv"),
    "dq": Kernel("query", (_S, _DP, _DQ), "writes dq"),
    "fused": Kernel("key", (_S, _DP, _DV, _DK, _DQ), "writes dk and dv"),
}
"""The first two together are the split design."""


def backward_map_steps(
    t: int, s: int, block: int, kernel: str = "dk and dv", window: int | None = None
) -> list[Step]:
    """One step per program: the tiles it visits, in order, and what it writes. Offset S - T."""
    for name, value in (("t", t), ("s", s), ("window", window)):
        check_positive(name, value)
    rows, columns = math.ceil(t / block), math.ceil(s / block)
    require(max(rows, columns) <= MOST, f"{rows} x {columns} tiles: at most {MOST} x {MOST} fit")
    kinds = [
        [tile_kind(i, j, t, s, s - t, block, block, True, window) for j in range(columns)]
        for i in range(rows)
    ]
    programs, length = (columns, s) if KERNELS[kernel].owns == "key" else (rows, t)
    return [_step(n, kinds, kernel, block, length) for n in range(programs)]


def _step(n: int, kinds: list[list[str]], kernel: str, block: int, length: int) -> Step:
    owns, products, writes = KERNELS[kernel]
    line = [row[n] for row in kinds] if owns == "key" else kinds[n]
    visited = [place for place, kind in enumerate(line) if kind != "skip"]
    other = "query" if owns == "key" else "key"
    what = "keys" if owns == "key" else "rows"
    mine = f"{what} {n * block} to {min((n + 1) * block, length) - 1}"
    if visited:
        walk = f"It walks over {other} {listed(visited)} and {writes} of {mine}."
    else:
        walk = f"Nothing is visible in its tiles: it {writes} of {mine}, which are 0."
    if kernel == "fused" and visited:
        walk += " It adds its part of dq to memory, where other programs add at the same time."
    every = sum(kind != "skip" for row in kinds for kind in row)
    facts = (
        ("tiles of this program", str(len(visited))),
        ("matmuls a tile", str(len(products))),
        ("matmuls of this kernel", f"{len(products)} × {every} = {len(products) * every}"),
    )
    grid = _grid(n, kinds, owns, visited)
    done = Lines("In each of its tiles", products)
    return Step(f"Program {n} owns {owns} tile {n}. {walk}", facts, (grid, done))


def _grid(n: int, kinds: list[list[str]], owns: str, visited: list[int]) -> Cells:
    """The map of tiles; those of program n carry the order of the visit."""
    line = [row[n] for row in kinds] if owns == "key" else kinds[n]
    masks = {place: "◪" for place, kind in enumerate(line) if kind == "partial"}
    order = {x: f"{step}{masks.get(x, '')}" for step, x in enumerate(visited, start=1)}
    texts, shades = [], []
    for i, row in enumerate(kinds):
        mine = [(j if owns == "key" else i) == n for j in range(len(row))]
        places = [i if owns == "key" else j for j in range(len(row))]
        texts.append(tuple(
            "·" if kind == "skip" else order[place] if own else ""
            for kind, own, place in zip(row, mine, places, strict=True)
        ))  # fmt: skip
        shades.append(tuple(
            SHOWN[kind] if own or kind == "skip" else "plain"
            for kind, own in zip(row, mine, strict=True)
        ))  # fmt: skip
    return Cells(
        "query tiles by key tiles, in order of the visit (◪ masked)",
        rows=_names(len(kinds), n if owns == "query" else None),
        columns=_names(len(kinds[0]), n if owns == "key" else None),
        kinds=tuple(shades),
        texts=tuple(texts),
    )


def _names(count: int, own: int | None) -> tuple[str, ...]:
    return tuple(f"▶ {i}" if i == own else str(i) for i in range(count))


def backward_map_explorer(
    t: int = 24, s: int = 32, block: int = 4, kernel: str = "dk and dv"
) -> Explorer:
    """The programs of a backward kernel; the reader sets sizes, window and kernel."""

    def compute(kernel, t, s, window, block):
        return backward_map_steps(t, s, block, kernel, window or None)

    controls = [
        Choice("kernel", "kernel", tuple(KERNELS), kernel),
        Number("t", "T", t, 1, 192),
        Number("s", "S", s, 1, 192),
        Number("window", "window (0: none)", 0, 0, 192),
        Choice("block", "tile", [(str(n), n) for n in BLOCKS], block),
    ]
    return Explorer("backward map", compute, controls, step_label="program")
