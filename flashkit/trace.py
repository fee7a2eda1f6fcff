"""A run of the recurrence for one query row, tile by tile, as plain records to print or draw."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flashkit.contracts import check_positive, require
from flashkit.online import EMPTY, State, step, update


@dataclass(frozen=True)
class Tile:
    """One step: keys start to stop, their scores, and the state before and after."""

    start: int
    stop: int
    scores: tuple[float, ...]
    m_old: float
    m_new: float
    alpha: float
    p: tuple[float, ...]
    l_old: float
    l_new: float
    a_old: tuple[float, ...]
    a_new: tuple[float, ...]


def trace(scores: Tensor, values: Tensor, tile: int) -> list[Tile]:
    """Run online softmax over scores (S,) and values (S,) or (S, D), `tile` keys at a time.

    Scores of hidden keys are -inf. Returns one record a tile; a has D components, or one for
    scalar values. Raises ValueError for shapes that do not fit and for tile < 1.

    >>> [round(t.alpha, 4) for t in trace([0, 1, 2, -1], [2, 4, 1, 3], tile=2)]
    [0.0, 0.3679]
    """
    scores, values = (torch.as_tensor(x, dtype=torch.float64) for x in (scores, values))
    check_positive("tile", tile)
    require(scores.ndim == 1, f"scores must have shape (S,), got {tuple(scores.shape)}")
    require(
        values.ndim in (1, 2) and values.shape[0] == scores.shape[0],
        f"values must have shape (S,) or (S, D) with S = {len(scores)}, got {tuple(values.shape)}",
    )
    values = values[:, None] if values.ndim == 1 else values
    state = State(EMPTY.m.double(), EMPTY.l.double(), values.new_zeros(values.shape[1]))
    tiles = []
    for start in range(0, len(scores), tile):
        keys = slice(start, min(start + tile, len(scores)))
        tiles.append(_record(state, keys, scores[keys], values[keys]))
        state = update(state, scores[keys], values[keys])
    return tiles


def _record(old: State, keys: slice, scores: Tensor, values: Tensor) -> Tile:
    m, alpha, p = step(old, scores)
    new = update(old, scores, values)
    pairs = {
        "scores": scores, "m_old": old.m, "m_new": m, "alpha": alpha, "p": p,
        "l_old": old.l, "l_new": new.l, "a_old": old.a, "a_new": new.a,
    }  # fmt: skip
    return Tile(keys.start, keys.stop, **{name: _plain(x) for name, x in pairs.items()})


def _plain(x: Tensor) -> float | tuple[float, ...]:
    return x.item() if x.ndim == 0 else tuple(x.tolist())
