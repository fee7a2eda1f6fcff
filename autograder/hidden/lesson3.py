"""Hidden cases of lesson 3."""

from autograder.hidden.bounds import TILE_BOUNDS
from autograder.hidden.window import FAR, WINDOW
from flashkit.exercises.lesson3 import blocks
from flashkit.exercises.model import Case

_SQUARE = {"Hq": 2, "Hkv": 2, "T": 40, "S": 40}
_VIEWS = {"q": "heads", "k": "expanded", "v": "expanded"}

CASES = {
    "tile_bounds": TILE_BOUNDS,
    "flash_attention": (
        Case(
            "block_m is larger than block_n",
            "a loop bound that uses BLOCK_N where BLOCK_M belongs",
            _SQUARE,
            blocks(32, 16),
        ),
        Case(
            "block_n is larger than block_m",
            "tiles that are assumed to be square",
            {"Hq": 2, "Hkv": 2, "T": 33, "S": 50},
            blocks(16, 32),
        ),
        Case(
            "every key visible, ragged tail",
            "padded keys that are counted with score 0",
            {"Hq": 2, "Hkv": 2, "T": 18, "S": 37},
            blocks(16, 16, query_offset=100),
        ),
        Case(
            "an offset smaller than S - T",
            "an offset argument that is ignored",
            {"Hq": 2, "Hkv": 2, "T": 18, "S": 50},
            blocks(16, 16, query_offset=7),
        ),
        Case(
            "three query heads to a KV head",
            "a group that is assumed to be a power of two",
            {"Hq": 6, "Hkv": 2, "T": 9, "S": 25},
            blocks(16, 16),
        ),
        Case(
            "a batch with grouped heads",
            "a batch index taken for a head, or h % Hkv",
            {"B": 2, "Hq": 4, "Hkv": 2, "T": 16, "S": 20},
            blocks(16, 16),
        ),
        Case(
            "all scores far below 0",
            "a maximum that starts at 0 and not at -inf",
            {"T": 32, "S": 32, "pattern": "negative"},
            blocks(16, 16),
        ),
        Case(
            "scores rise steeply from key to key",
            "a maximum that is frozen after the first tile",
            {"T": 32, "S": 64, "pattern": "steep"},
            blocks(16, 16),
        ),
        Case(
            "scores rise gently from key to key",
            "l or acc that is not rescaled by alpha",
            {"T": 32, "S": 64, "pattern": "rising"},
            blocks(16, 16),
        ),
        Case(
            "scores in the hundreds",
            "exp without the maximum subtracted",
            {"Hq": 2, "Hkv": 2, "T": 32, "S": 32, "gain": 150.0},
            blocks(16, 16),
        ),
        Case(
            "float16",
            "an output of another dtype, or statistics in float16",
            {"Hq": 2, "Hkv": 2, "T": 32, "S": 48, "D": 32, "dtype": "float16"},
            blocks(16, 16),
        ),
        Case(
            "k is every second row of a buffer",
            "v's addresses computed from k's strides",
            {"Hq": 2, "Hkv": 2, "T": 20, "S": 33, "layout": {"k": "rows"}},
            blocks(16, 16),
        ),
        Case(
            "v is a transposed view",
            "k's strides used for v",
            {"Hq": 2, "Hkv": 2, "T": 20, "S": 33, "D": 32, "layout": {"v": "heads"}},
            blocks(16, 16),
        ),
        Case(
            "fewer keys than a tile",
            "a loop that never runs, or padded keys that are counted",
            {"Hq": 2, "Hkv": 2, "T": 3, "S": 5},
            blocks(16, 16, query_offset=9),
        ),
        Case(
            "one query, five heads to a KV head",
            "a last tile that is skipped in decoding",
            {"Hq": 5, "Hkv": 1, "T": 1, "S": 47, "D": 64},
            blocks(16, 16),
        ),
        Case(
            "scores fall steeply from key to key",
            "a maximum that is taken from the newest tile alone",
            {"T": 18, "S": 64, "pattern": "falling"},
            blocks(16, 16),
        ),
        Case(
            "a spike in the last tile",
            "a maximum that is not taken in the last, masked tile",
            {"T": 18, "S": 45, "pattern": "spike"},
            blocks(16, 16, query_offset=100),
        ),
        Case(
            "rows that see no key",
            "0 / 0, or a large negative number in place of -inf: such a row is 0",
            {"T": 20, "S": 20},
            blocks(16, 16, query_offset=-7),
        ),
        Case(
            "float16, values far from 0",
            "an acc in float16, which ends at 65504",
            {**FAR, "T": 3, "S": 100, "dtype": "float16"},
            blocks(16, 16),
        ),
        Case(
            "q is a transposed view, k and v stand for a batch",
            "o written with q's strides, or a stride of 0 that is taken for another",
            {"B": 2, "Hq": 2, "Hkv": 1, "T": 9, "S": 20, "layout": _VIEWS},
            blocks(16, 16),
        ),
        Case(
            "fresh data in the same shapes",
            "something that is remembered from the launch before",
            {"T": 5, "S": 16, "launches": 3},
            blocks(16, 16),
        ),
        Case(
            "later keys changed",
            "a row that is touched by keys of its future",
            {"T": 20, "S": 20, "relation": "other future"},
            blocks(16, 16),
        ),
        Case(
            "keys in another order",
            "a result that depends on where a key lies",
            {"T": 3, "S": 37, "relation": "shuffled"},
            blocks(16, 16, query_offset=90),
        ),
        Case(
            "every key twice",
            "weights that depend on the number of tiles",
            {"T": 3, "S": 18, "relation": "doubled"},
            blocks(16, 16, query_offset=90),
        ),
    ),
    "flash_attention_window": WINDOW,
}

EXPLANATIONS: dict[str, str] = {}
