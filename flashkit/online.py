"""Online softmax: a running answer for the keys seen so far, fixed up when new keys arrive.

The state of a query row is (m, l, a): the largest score so far, the sum of exp(score - m), and
the sum of exp(score - m) * value, not yet normalised. Everything in this package is one rule for
joining two such states over disjoint keys: tile by tile (`update`), split by split (`merge`).

Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018), Algorithm 3;
Dao et al., FlashAttention (2022), section 3.1.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.contracts import Dims, check_positive, check_qkv, require
from flashkit.masks import positions, visible, weigh


class State(NamedTuple):
    """The partial softmax of each row: m and l (...), a (..., D)."""

    m: Tensor
    l: Tensor
    a: Tensor


EMPTY = State(torch.tensor(float("-inf")), torch.tensor(0.0), torch.tensor(0.0))
"""Nothing seen yet: merge(EMPTY, x) is x. Scalars, so that it fits any shape of rows."""


def _reference(m: Tensor) -> Tensor:
    """The exponent's reference: m, or 0 for a row that has seen nothing (-inf - -inf is NaN)."""
    return torch.where(m == float("-inf"), 0.0, m)


def step(state: State, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a tile of scores (..., N) changes: the new m (...), alpha (...) and p (..., N).

    alpha = exp(m_old - m_new) turns terms measured against the old maximum into terms measured
    against the new one; p = exp(scores - m_new) are the tile's own terms.
    """
    require(scores.shape[-1] > 0, "a tile must hold at least one key, got scores of length 0")
    m = torch.maximum(state.m, scores.amax(-1))
    reference = _reference(m)
    return m, torch.exp(state.m - reference), torch.exp(scores - reference[..., None])


def update(state: State, scores: Tensor, values: Tensor) -> State:
    """Add a tile: scores (..., N), hidden ones -inf, and values (..., N, D).

    >>> scores, values = torch.tensor([0.0, 1.0, 2.0, -1.0]), torch.tensor([[2.0], [4], [1], [3]])
    >>> state = update(EMPTY, scores[:2], values[:2])
    >>> finish(update(state, scores[2:], values[2:]))
    tensor([1.8619])
    """
    m, alpha, p = step(state, scores)
    a = alpha[..., None] * state.a + weigh(p, values, scores > float("-inf"))
    return State(m, alpha * state.l + p.sum(-1), a)


def merge(x: State, y: State) -> State:
    """Join two partial softmaxes over disjoint keys; associative, commutative, identity EMPTY."""
    m = torch.maximum(x.m, y.m)
    reference = _reference(m)
    wx, wy = torch.exp(x.m - reference), torch.exp(y.m - reference)
    return State(m, wx * x.l + wy * y.l, wx[..., None] * x.a + wy[..., None] * y.a)


def finish(state: State) -> Tensor:
    """The softmax-weighted mean a / l, (..., D). Raises ValueError for a row that saw no key."""
    require(not bool((state.l == 0).any()), "a query row has no visible key")
    return state.a / state.l[..., None]


def lse(state: State) -> Tensor:
    """log of the sum of exp(score), (...), natural log: m + log(l)."""
    return state.m + torch.log(state.l)


class _Problem(NamedTuple):
    """One attention problem, its query heads gathered by KV head so that K is never repeated."""

    dims: Dims
    rows: Tensor  # the scaled queries, (B, Hkv, group * T, D), in the working dtype
    k: Tensor
    v: Tensor
    query_positions: Tensor  # (B, group * T)
    key_positions: Tensor  # (B, S)
    window: int | None

    def nothing_seen(self) -> State:
        """EMPTY, spread out over the rows."""
        shape = self.rows.shape[:-1]
        m = self.rows.new_full(shape, float("-inf"))
        return State(m, torch.zeros_like(m), self.rows.new_zeros(*shape, self.dims.value_dim))

    def tile(self, start: int, size: int) -> tuple[Tensor, Tensor]:
        """Scores (B, Hkv, group * T, N), hidden ones -inf, and values (B, Hkv, N, Dv)."""
        keys = slice(start, start + size)
        k, v = (x[:, :, keys].to(self.rows.dtype) for x in (self.k, self.v))
        seen = visible(self.query_positions, self.key_positions[:, keys], self.window)
        return (self.rows @ k.transpose(-2, -1)).masked_fill(~seen, float("-inf")), v

    def output(self, state: State, return_lse: bool) -> Tensor | tuple[Tensor, Tensor]:
        """The finished rows, put back into heads."""
        shape = (self.dims.batch, self.dims.q_heads, self.dims.t)
        o = finish(state).reshape(*shape, self.dims.value_dim).to(self.k.dtype)
        return (o, lse(state).reshape(shape)) if return_lse else o


def _problem(q, k, v, query_positions, key_positions, window, scale) -> _Problem:
    dims = check_qkv(q, k, v)
    check_positive("window", window)
    qp = positions(query_positions, dims.batch, dims.t, dims.s - dims.t, q.device)
    kp = positions(key_positions, dims.batch, dims.s, 0, q.device)
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = 1.0 / math.sqrt(dims.d) if scale is None else scale
    rows = (q.to(work) * scale).reshape(dims.batch, dims.kv_heads, dims.group * dims.t, dims.d)
    return _Problem(dims, rows, k, v, qp.repeat(1, dims.group), kp, window)


def online_attention(
    q: Tensor, k: Tensor, v: Tensor,
    query_positions: Tensor | None = None, key_positions: Tensor | None = None,
    tile: int = 16, *,
    window: int | None = None, scale: float | None = None, return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """causal_attention, one tile of `tile` keys at a time: no (T, S) matrix is ever held.

    Shapes, positions, results and errors are those of `reference.causal_attention`; also raises
    ValueError for tile < 1. Memory beyond inputs and output: O(T (D + tile)) a head.
    """
    check_positive("tile", tile)
    problem = _problem(q, k, v, query_positions, key_positions, window, scale)
    state = problem.nothing_seen()
    for start in range(0, problem.dims.s, tile):
        state = update(state, *problem.tile(start, tile))
    return problem.output(state, return_lse)


def split_attention(
    q: Tensor, k: Tensor, v: Tensor,
    query_positions: Tensor | None = None, key_positions: Tensor | None = None,
    num_splits: int = 4, *,
    window: int | None = None, scale: float | None = None, return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """causal_attention with the keys cut into num_splits parts, each on its own, then merged.

    This is flash-decoding's arithmetic: the parts could run anywhere, in any order. Splits may
    outnumber keys. Shapes, results and errors are those of `reference.causal_attention`; also
    raises ValueError for num_splits < 1.
    """
    check_positive("num_splits", num_splits)
    problem = _problem(q, k, v, query_positions, key_positions, window, scale)
    size = max(1, -(-problem.dims.s // num_splits))
    starts = range(0, problem.dims.s, size)
    parts = [update(EMPTY, *problem.tile(start, size)) for start in starts]
    return problem.output(functools.reduce(merge, parts, problem.nothing_seen()), return_lse)
