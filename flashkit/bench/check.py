"""Are the timed outputs right? Some rows of each, against the definition in float64."""

import math
import random

import torch
from torch import Tensor

from flashkit.bench.implementations import Inputs
from flashkit.bench.shapes import Shape
from flashkit.cost import row_range

ROWS = 24
TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-3}
"""Largest |out - want| / |want|. What cuts float32 inputs to TF32's 10 bits errs by 3e-4."""


def picks(shape: Shape) -> list[tuple[int, int, int]]:
    """(batch, head, row) of the rows that are compared: both corners, and some in between."""
    chance = random.Random(15)
    sizes = (shape.batch, shape.q_heads, shape.t)
    corners = [(0, 0, 0), tuple(size - 1 for size in sizes)]
    return corners + [tuple(chance.randrange(n) for n in sizes) for _ in range(ROWS - 2)]


def exact_rows(shape: Shape, x: Inputs) -> Tensor:
    """The picked rows of the result, (ROWS, D) float64."""
    return torch.stack([_exact_row(shape, x, *pick) for pick in picks(shape)])


def _exact_row(shape: Shape, x: Inputs, b: int, h: int, i: int) -> Tensor:
    offset = shape.s - shape.t
    first, stop = row_range(i, shape.t, shape.s, offset, shape.causal, shape.window)
    kv = h // (shape.q_heads // shape.kv_heads)
    k, v = (y[b, kv, first:stop].double() for y in (x.k, x.v))
    scores = k @ x.q[b, h, i].double() / math.sqrt(shape.d)
    return torch.softmax(scores, 0) @ v


def error(shape: Shape, o: Tensor, want: Tensor) -> float:
    """Relative error of the picked rows of o; infinite if any element of o is not finite."""
    if o.shape[:3] != (shape.batch, shape.q_heads, shape.t) or not bool(o.isfinite().all()):
        return math.inf
    got = torch.stack([o[pick].double() for pick in picks(shape)])
    return ((got - want).norm() / want.norm()).item()
