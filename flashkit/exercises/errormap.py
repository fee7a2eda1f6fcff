"""Where an output is wrong: the error by head and by tile of queries, as small whole numbers.

Source of the idea: the error of a tiled kernel lies in whole tiles, so its place names its cause.
"""

import math

import torch
from torch import Tensor

GLYPHS = "·oO#!"
MEANING = "· allowed, o up to 10 times what is allowed, O up to 1000 times, # more, ! not finite"
_BOUNDS = torch.tensor([1.0, 10.0, 1000.0])
_NOT_FINITE = 4
MAX_HEADS, MAX_TILES = 16, 64
_SHADES = ("transparent", "#D55E0026", "#D55E0059", "#D55E00A6", "#D55E00E6")
_CAPTION = "caption-side:bottom;text-align:left;white-space:nowrap;font:85% sans-serif"
_CELL = "border:1px solid #8886;text-align:center;width:1.3em;padding:0 .15em;background:{}"

Levels = tuple[tuple[int, ...], ...]


def error_map(got: Tensor, want: Tensor, limit: Tensor, block: int) -> Levels:
    """Levels of the largest error: one row for each head of o (B, Hq, T, D), one column a tile.

    limit spreads to want; block is the number of query rows in a tile. Empty for other shapes.
    """
    if want.ndim != 4 or not want.numel():
        return ()
    ratio = (got.double() - want).abs() / limit.expand(want.shape).clamp(min=1e-300)
    ratio = torch.where((got == want), 0.0, ratio).amax(-1).flatten(0, 1)
    finite = torch.isfinite(got).all(-1).flatten(0, 1)
    level = torch.bucketize(ratio.float().nan_to_num(math.inf), _BOUNDS)
    level = torch.where(finite, level, _NOT_FINITE)[:MAX_HEADS]
    tiles = [x.amax(-1) for x in level.split(block, dim=-1)][:MAX_TILES]
    return tuple(tuple(row) for row in torch.stack(tiles, -1).tolist())


def as_text(levels: Levels) -> list[str]:
    """The map as lines: a row for each head, a sign for each tile of queries."""
    rows = [f"head {n:2d}  {' '.join(GLYPHS[x] for x in row)}" for n, row in enumerate(levels)]
    return [f"error by tile of queries, left to right ({MEANING}):", *rows]


def as_html(levels: Levels) -> str:
    """The map as a table that reads in light and dark, and without colours."""
    rows = "".join(
        f'<tr><th style="font-weight:normal;padding-right:.5em">head {n}</th>{_cells(row)}</tr>'
        for n, row in enumerate(levels)
    )
    heads = "".join(f'<th style="font-weight:normal">{n}</th>' for n in range(len(levels[0])))
    return (
        '<table style="border-collapse:collapse;font-family:monospace;margin:.3em 0 .3em 1.6em">'
        f'<caption style="{_CAPTION}">{MEANING}</caption>'
        f"<tr><th>tile</th>{heads}</tr>{rows}</table>"
    )


def _cells(row: tuple[int, ...]) -> str:
    return "".join(f'<td style="{_CELL.format(_SHADES[x])}">{GLYPHS[x]}</td>' for x in row)
