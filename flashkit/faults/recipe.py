"""Attention by tiles, as data: every default of a `Recipe` is right, a bug changes one of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

INF = math.inf


class Call(NamedTuple):
    """What the tiles of one call share; given is the query_offset argument, offset what it means.

    skip says whether tiles before the window are skipped, d is the head dimension, dtype that of
    the inputs.
    """

    t: int
    s: int
    d: int
    given: int | None
    offset: int
    window: int | None
    block_m: int
    block_n: int
    skip: bool
    dtype: torch.dtype
    bounded: bool  # whether the loop ends where causality does; it cannot with other positions


def spread(x: Tensor, q_heads: int) -> Tensor:
    """x (B, Hkv, S, D) with one KV head for each query head: h // group."""
    return x[:, torch.arange(q_heads, device=x.device) // (q_heads // x.shape[1])]


def padded(x: Tensor, rows: int) -> Tensor:
    """x (B, H, S, D) with zeros up to `rows` keys, as a masked load gives them."""
    return torch.nn.functional.pad(x, (0, 0, 0, rows - x.shape[2]))


def read(q: Tensor, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, and k and v as a right kernel loads them: (B, Hq, rows, D)."""
    return q, *(padded(spread(x, q.shape[1]), rows) for x in (k, v))


def first_key(call: Call, first: int) -> int:
    """A key that the query tile from row `first` on must not miss: its tile is the first."""
    skips = call.window is not None and call.skip
    return max(0, call.offset + first - call.window + 1) if skips else 0


def end_of_keys(call: Call, first: int) -> int:
    """The end of the loop over keys for the query tile from row `first` on."""
    return min(call.offset + first + call.block_m, call.s) if call.bounded else call.s


def alpha(old: Tensor, new: Tensor) -> Tensor:
    """exp(m_old - m_new); 0 where nothing was seen before."""
    return torch.exp(old - new)


def weights(scores: Tensor, new: Tensor) -> Tensor:
    """p = exp(s - m_new)."""
    return torch.exp(scores - new[..., None])


def divided(acc: Tensor, l: Tensor) -> Tensor:
    """acc / l; 0 for a row that has seen nothing."""
    return acc / torch.where(l == 0, 1.0, l)[..., None]


def same(x):
    """The identity."""
    return x


@dataclass(frozen=True)
class Recipe:
    """How each part of the computation is done. In one step: scores (..., N), m and l (...)."""

    first_m: float = -INF
    top: Callable[[Tensor, Tensor], Tensor] = lambda scores, raw: scores.amax(-1)
    maximum: Callable[[Tensor, Tensor], Tensor] = torch.maximum
    kept: Callable[[Tensor, Tensor], Tensor] = lambda old, new: new
    guard: bool = True
    alpha: Callable[[Tensor, Tensor], Tensor] = alpha
    weights: Callable[[Tensor, Tensor], Tensor] = weights
    l_alpha: Callable[[Tensor], Tensor] = same
    acc_alpha: Callable[[Tensor], Tensor] = same
    p_factor: Callable[[Tensor], Tensor] = torch.ones_like  # of alpha, on the new terms
    l_of: Callable[[Tensor, Tensor], Tensor] = lambda p, raw_p: p.sum(-1)
    after: Callable[[Tensor, Tensor], Tensor] = lambda l, acc: acc
    own_softmax: bool = False
    finish: Callable[[Tensor, Tensor], Tensor] = divided
    dot_p: Callable[[Tensor, Tensor], Tensor] = torch.matmul
    dot_k: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.mT
    keep: Callable[[Tensor, torch.dtype], Tensor] = lambda acc, dtype: acc  # from tile to tile

    scale: Callable[[int], float] = lambda d: d**-0.5
    hidden: float = -INF
    ahead: float = 0  # keys of the future that are seen
    sees_padding: bool = False
    positions: Callable[..., tuple[Tensor, Tensor]] = lambda qp, kp, call: (qp, kp)
    offset: Callable[[Call], int] = lambda call: call.offset
    window: Callable[[int], int | None] = same
    window_offset: Callable[[Call], int] = lambda call: call.offset

    first_key: Callable[[Call, int], int] = first_key
    exact: tuple[bool, bool] = (
        False,
        False,
    )  # nothing before the first key, past the end, is read
    end: Callable[[Call, int], int] = end_of_keys
    tiles: Callable[[list[int]], list[int]] = same
    k_tile: Callable[[int], int] = same
    v_tile: Callable[[int], int] = same

    read: Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]] = read
    write: Callable[[Tensor, Tensor], Tensor] = lambda q, o: o
    rows: Callable[[Call], int] = lambda call: call.t  # rows of o that are written
    columns: Callable[[Call], int] = lambda call: call.d  # columns that are read and written
    unwritten: float = math.nan


RIGHT = Recipe()
