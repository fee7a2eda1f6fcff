"""Are the timed outputs right? Some rows or heads of each, against the definition in float64."""

import math
import random
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.bench.implementations import Inputs, Result, outputs
from flashkit.bench.shapes import Shape
from flashkit.cost import row_range
from flashkit.masks import visible

ROWS = 24
ENTRIES = 2**26  # of a score matrix that float64 may hold at once
TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-3}
"""Largest |out - want| / |want|. What cuts float32 inputs to TF32's 10 bits errs by 3e-4."""


class Exact(NamedTuple):
    """What one output must be: its shape, and its values at some places, in float64."""

    shape: tuple[int, ...]
    places: list[tuple[int, ...]]
    values: Tensor  # (places, ...)


def exact(shape: Shape, x: Inputs) -> tuple[Exact, ...]:
    """Of every output of a call: o, or dq, dk and dv on the backward path."""
    return _gradients(shape, x) if shape.path == "backward" else (_rows(shape, x),)


def error(result: Result, want: tuple[Exact, ...]) -> float:
    """The largest relative error of an output; infinite if any element of it is not finite."""
    return max(_error(o, part) for o, part in zip(outputs(result), want, strict=True))


def _error(o: Tensor, want: Exact) -> float:
    if o.shape != want.shape or not bool(o.isfinite().all()):
        return math.inf
    got = torch.stack([o[place].double() for place in want.places])
    return ((got - want.values).norm() / want.values.norm()).item()


def picks(shape: Shape) -> list[tuple[int, int, int]]:
    """(batch, head, row) of the rows that are compared: both corners, and some in between."""
    chance = random.Random(15)
    sizes = (shape.batch, shape.q_heads, shape.t)
    corners = [(0, 0, 0), tuple(size - 1 for size in sizes)]
    return corners + [tuple(chance.randrange(n) for n in sizes) for _ in range(ROWS - 2)]


def _rows(shape: Shape, x: Inputs) -> Exact:
    places = picks(shape)
    values = torch.stack([_exact_row(shape, x, *place) for place in places])
    return Exact((*x.q.shape[:3], shape.d), places, values)


def _exact_row(shape: Shape, x: Inputs, b: int, h: int, i: int) -> Tensor:
    offset = shape.s - shape.t
    first, stop = row_range(i, shape.t, shape.s, offset, shape.causal, shape.window)
    kv = h // (shape.q_heads // shape.kv_heads)
    k, v = (y[b, kv, first:stop].double() for y in (x.k, x.v))
    scores = k @ x.q[b, h, i].double() / math.sqrt(shape.d)
    return torch.softmax(scores, 0) @ v


def _gradients(shape: Shape, x: Inputs) -> tuple[Exact, ...]:
    """dq, dk, dv of the first and of the last KV head, with all query heads that read them.

    A gradient of a key needs every row that sees it, so whole heads are as cheap as rows.
    """
    group = shape.q_heads // shape.kv_heads
    heads = [(0, 0), (shape.batch - 1, shape.kv_heads - 1)]
    readers = [(b, kv * group + i) for b, kv in heads for i in range(group)]
    dq, dk, dv = zip(*(_exact_head(shape, x, b, kv) for b, kv in heads), strict=True)
    return (
        Exact(tuple(x.q.shape), readers, torch.cat(dq)),
        Exact(tuple(x.k.shape), heads, torch.stack(dk)),
        Exact(tuple(x.v.shape), heads, torch.stack(dv)),
    )


def _exact_head(shape: Shape, x: Inputs, b: int, kv: int) -> tuple[Tensor, Tensor, Tensor]:
    """dq (group, T, D), dk and dv (S, D) of one KV head, from the definition, rows by rows."""
    group, scale = shape.q_heads // shape.kv_heads, 1 / math.sqrt(shape.d)
    q, do = (y[b, kv * group : (kv + 1) * group].double() for y in (x.q, x.do))
    k, v = (y[b, kv].double() for y in (x.k, x.v))
    keys = torch.arange(shape.s, device=k.device)
    rows = shape.s - shape.t + torch.arange(shape.t, device=k.device)
    dq, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
    parts = (y.split(max(1, ENTRIES // (group * shape.s)), -2) for y in (q, do, rows[:, None]))
    for q_rows, do_rows, positions in zip(*parts, strict=True):
        scores = q_rows @ k.T * scale
        seen = visible(positions.T, keys[None], shape.window, shape.causal)[0]
        p, dp = torch.softmax(scores.masked_fill(~seen, -math.inf), -1), do_rows @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
        dq.append(ds @ k)
        dk += (ds.mT @ q_rows).sum(0)
        dv += (p.mT @ do_rows).sum(0)
    return torch.cat(dq, 1), dk, dv
