"""Who holds which tokens, and what the rows of one rank see of the keys of another.

Plain integers: nothing here communicates or computes, so that all of it can be tested, and drawn,
in one process. With causal attention the token at the end has most to do. "contiguous" gives it
all to the last rank; "zigzag" cuts T into 2 n chunks and gives rank r the chunks r and
2 n - 1 - r, one early and one late, so that each rank has the same work in each step.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.contracts import require

# Rank and number of ranks -> the chunks it holds; all ranks hold equally many of equal length.
PLACEMENTS = {
    "zigzag": lambda rank, world: (rank, 2 * world - 1 - rank) if world > 1 else (rank,),
    "contiguous": lambda rank, world: (rank,),
}


class Span(NamedTuple):
    """A run of tokens at positions start to stop - 1, held from index `local` of a shard on."""

    start: int
    stop: int
    local: int


class Visit(NamedTuple):
    """One call of attention: rows of a shard of queries against keys of a shard of keys.

    Row i of the call stands at position offset + i, key j at j.
    """

    rows: slice
    keys: slice
    offset: int
    causal: bool
    window: int | None


def spans(rank: int, world: int, t: int, placement: str = "zigzag") -> list[Span]:
    """The runs of T = t tokens that a rank of `world` holds, in order.

    >>> spans(0, 2, 8)
    [Span(start=0, stop=2, local=0), Span(start=6, stop=8, local=2)]

    Chunks that touch are one run. Raises ValueError for a T that the chunks do not divide.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
    held = PLACEMENTS[placement](rank, world)
    count = world * len(held)
    require(t % count == 0, f"{placement} on {world} ranks needs T a multiple of {count}, got {t}")
    size, runs = t // count, []
    for index, chunk in enumerate(held):
        start = chunk * size
        if runs and runs[-1].stop == start:
            runs[-1] = runs[-1]._replace(stop=start + size)
        else:
            runs.append(Span(start, start + size, index * size))
    return runs


def take(x: Tensor, runs: list[Span], dim: int) -> Tensor:
    """The shard of x that these runs make: their tokens, along dim."""
    return torch.cat([x.narrow(dim, run.start, run.stop - run.start) for run in runs], dim)


def visits(
    queries: list[Span], keys: list[Span], *, causal: bool = True, window: int | None = None
) -> list[Visit]:
    """The calls of attention that cover what queries see of keys, each pair of tokens once.

    What nobody sees is skipped, and what all see is one call without a mask: past its own shard,
    a zigzag rank needs one of half the size in each step.
    """
    pairs = [pair for pair in _pairs(queries, keys) if _sees_some(*pair, causal, window)]
    if pairs and all(_sees_all(*pair, causal, window) for pair in _pairs(*_sides(pairs))):
        rows, columns = (_hull(side) for side in _sides(pairs))
        return [Visit(rows, columns, 0, False, None)]
    return [Visit(_hull([a]), _hull([b]), a.start - b.start, causal, window) for a, b in pairs]


def _pairs(queries: list[Span], keys: list[Span]) -> Iterator[tuple[Span, Span]]:
    return ((a, b) for a in queries for b in keys)


def _sides(pairs: list[tuple[Span, Span]]) -> tuple[list[Span], list[Span]]:
    """The query spans and the key spans that occur, in order: all of a shard or one."""
    return tuple(list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))


def _hull(runs: list[Span]) -> slice:
    last = runs[-1]
    return slice(runs[0].local, last.local + last.stop - last.start)


def _sees_some(a: Span, b: Span, causal: bool, window: int | None) -> bool:
    """Whether any row of a sees any key of b."""
    held = a.start < a.stop and b.start < b.stop
    begun = not causal or b.start < a.stop
    return held and begun and (window is None or b.stop - 1 > a.start - window)


def _sees_all(a: Span, b: Span, causal: bool, window: int | None) -> bool:
    """Whether every row of a sees every key of b."""
    past = not causal or b.stop - 1 <= a.start
    return past and (window is None or b.start > a.stop - 1 - window)
