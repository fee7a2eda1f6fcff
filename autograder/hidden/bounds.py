"""Hidden cases of the loop bounds in lesson 3."""

from flashkit.exercises.lesson3 import bounds
from flashkit.exercises.model import Case

TILE_BOUNDS = (
    Case("ragged", "a last tile rounded down", {}, bounds(50, 50, 0, 16, 16)),
    Case(
        "block_m is larger than block_n",
        "a bound that uses BLOCK_N where BLOCK_M belongs",
        {},
        bounds(70, 90, 20, 32, 16),
    ),
    Case(
        "block_n is larger than block_m",
        "a bound that uses BLOCK_M where BLOCK_N belongs",
        {},
        bounds(70, 90, 20, 16, 32),
    ),
    Case("one query", "a bound from row 0 alone", {}, bounds(1, 65, 64, 16, 16)),
    Case("offset past the end", "a bound beyond S", {}, bounds(20, 33, 500, 16, 16)),
    Case("rows before key 0", "an empty range with keys in it", {}, bounds(64, 40, -24, 16, 16)),
    Case("window of one", "an off-by-one first tile", {}, bounds(96, 96, 0, 16, 16, window=1)),
    Case(
        "window with an offset",
        "a first tile without the offset",
        {},
        bounds(40, 200, 150, 16, 32, window=37),
    ),
    Case(
        "window past the end of k",
        "a window that has left the keys behind",
        {},
        bounds(64, 30, 10, 16, 16, window=8),
    ),
    Case(
        "window without causality",
        "a window that is taken for causal",
        {},
        bounds(64, 100, 30, 16, 16, causal=False, window=24),
    ),
    Case(
        "a window and rows before key 0",
        "a first tile with a negative number",
        {},
        bounds(48, 40, -20, 16, 16, window=24),
    ),
    Case(
        "the last query tile is short",
        "rows past T that are taken for queries",
        {},
        bounds(18, 100, 30, 16, 16),
    ),
)
