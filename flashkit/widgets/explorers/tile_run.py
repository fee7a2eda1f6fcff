"""One row through the recurrence, right and with a rescale forgotten; its numbers as text."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flashkit.contracts import require
from flashkit.faults import faulty_update
from flashkit.online import EMPTY
from flashkit.trace import Tile, trace
from flashkit.widgets import wording

FORGET = {
    "nothing": None,
    "l": "l_not_rescaled",
    "a": "acc_not_rescaled",
    "both": "nothing_rescaled",
}
NOTHING = 1e-12  # what rounding leaves where a sum cancels
MOST_KEYS, MOST_COMPONENTS, LARGEST = 16, 6, 1e6
LIMITS = f"between {-LARGEST:.0f} and {LARGEST:.0f}"
Sums = tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class Run:
    """A row, its tiles as they should be, and the (l, a) that this run had."""

    scores: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    tiles: tuple[Tile, ...]
    sums: tuple[Sums, ...]  # one more than tiles: sums[0] is before the first
    forget: str

    @property
    def scalar(self) -> bool:
        """Whether a is one number."""
        return len(self.values[0]) == 1

    def wrong(self, i: int) -> tuple[str, ...]:
        """Which of l and a are not what they should be after tile i."""
        l, a = self.sums[i + 1]
        right = self.tiles[i]
        pairs = {"l": ([l], [right.l_new]), "a": (a, right.a_new)}
        return tuple(name for name, pair in pairs.items() if not same(*pair))

    def first_wrong(self) -> int | None:
        """The first tile after which l or a is wrong."""
        return next((i for i in range(len(self.tiles)) if self.wrong(i)), None)


def run(scores, values, tile: int, forget: str) -> Run:
    """Both runs of scores (S,) over values (S,) or (S, D); ValueError for what cannot be drawn."""
    require(forget in FORGET, f"forget must be one of {', '.join(FORGET)}, got {forget!r}")
    scores, values = (torch.as_tensor(x, dtype=torch.float64) for x in (scores, values))
    require(1 <= scores.numel() <= MOST_KEYS, f"there must be 1 to {MOST_KEYS} scores, "
            f"got {scores.numel()}")  # fmt: skip
    drawable = (scores.abs() <= LARGEST) | (scores == -math.inf)
    require(bool(drawable.all()), f"a score must be -inf or lie {LIMITS}")
    tiles = tuple(trace(scores, values, tile))
    values = values[:, None] if values.ndim == 1 else values
    require(1 <= values.shape[1] <= MOST_COMPONENTS, f"a value must have 1 to {MOST_COMPONENTS} "
            f"components, got {values.shape[1]}")  # fmt: skip
    require(bool((values.abs() <= LARGEST).all()), f"a value must lie {LIMITS}")
    sums = _sums(FORGET[forget], scores, values, tiles)
    return Run(tuple(scores.tolist()), _rows(values), tiles, sums, forget)


def _sums(fault: str | None, scores: Tensor, values: Tensor, tiles) -> tuple[Sums, ...]:
    """(l, a) before the first tile and after each, with the bug if there is one."""
    nothing = (0.0, (0.0,) * values.shape[1])
    if fault is None:
        return (nothing, *((tile.l_new, tile.a_new) for tile in tiles))
    state = (EMPTY.m.double(), EMPTY.l.double(), values.new_zeros(values.shape[1]))
    sums = [nothing]
    for tile in tiles:
        keys = slice(tile.start, tile.stop)
        state = faulty_update(fault, *state, scores[keys], values[keys])
        sums.append((state[1].item(), tuple(state[2].tolist())))
    return tuple(sums)


def _rows(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


def same(xs, ys) -> bool:
    """Equal up to rounding, which for values of a million reaches 1e-9."""
    return all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-8) for x, y in zip(xs, ys, strict=True))


def number(value: float) -> str:
    """Four decimals as the lessons print them; powers of ten where those would show nothing."""
    if abs(value) < NOTHING:
        return "0.0000"
    tiny = abs(value) < 5e-5
    return f"{value:.1e}".replace("-", "−") if tiny else wording.number(value)


def short(value: float) -> str:
    """A number that somebody typed: no more digits than it needs."""
    return f"{value:.4g}".replace("-", "−").replace("inf", "∞")


def vector(values) -> str:
    """The number itself, or (x, y, ...)."""
    texts = [number(value) for value in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def listed(values, text=number) -> str:
    """[x, y, ...]."""
    return f"[{', '.join(text(value) for value in values)}]"
