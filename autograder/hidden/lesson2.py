"""Hidden cases of lesson 2."""

from flashkit.exercises.lesson2 import tiled
from flashkit.exercises.model import Case

_SQUARE = {"Hq": 2, "Hkv": 2, "T": 24, "S": 24}
_FAR = {"gain": 0.3, "v_gain": 500.0, "v_offset": 2000.0}

CASES = {
    "online_attention": (
        Case(
            "all scores far below 0",
            "a maximum that starts at 0 and not at -inf",
            {**_SQUARE, "pattern": "negative"},
            tiled(8),
        ),
        Case(
            "scores rise steeply from key to key",
            "a maximum that is frozen after the first tile",
            {"Hq": 2, "Hkv": 2, "T": 24, "S": 48, "pattern": "steep"},
            tiled(16),
        ),
        Case(
            "scores fall steeply from key to key",
            "old terms that are lost when later tiles are small",
            {**_SQUARE, "pattern": "falling"},
            tiled(8),
        ),
        Case(
            "scores in the hundreds",
            "exp without the maximum subtracted",
            {**_SQUARE, "gain": 150.0},
            tiled(8),
        ),
        Case(
            "three query heads to a KV head",
            "query heads that read the wrong KV head",
            {"Hq": 6, "Hkv": 2, "T": 10, "S": 19},
            tiled(8),
        ),
        Case(
            "one KV head",
            "heads that are assumed to be as many for q as for k",
            {"B": 2, "Hq": 3, "Hkv": 1, "T": 7, "S": 16},
            tiled(16),
        ),
        Case(
            "one query",
            "a causal mask that hides all keys but the first",
            {"Hq": 2, "Hkv": 1, "T": 1, "S": 37},
            tiled(16),
        ),
        Case(
            "a tile larger than S",
            "a last tile that is read past the end, or never visited",
            {"T": 5, "S": 5},
            tiled(16),
        ),
        Case("tiles of one key", "tiles that are assumed to be large", {"T": 6, "S": 9}, tiled(1)),
        Case(
            "another offset for each sequence",
            "positions that are assumed to be the same for the whole batch",
            {"B": 3, "Hq": 2, "Hkv": 1, "T": 4, "S": 20, "positions": "per_batch"},
            tiled(8),
        ),
        Case(
            "keys in reverse order, several heads",
            "key positions that are ignored, or NaN in rows that have seen no key yet",
            {"Hq": 4, "Hkv": 2, "T": 9, "S": 20, "positions": "reversed_keys"},
            tiled(8),
        ),
        Case(
            "float16",
            "statistics that are kept in float16, or an output of another dtype",
            {"Hq": 2, "Hkv": 2, "T": 16, "S": 40, "D": 32, "dtype": "float16"},
            tiled(16),
        ),
        Case(
            "values far from 0",
            "rows whose weights do not add up to 1",
            {**_SQUARE, "v_offset": 100.0},
            tiled(8),
        ),
        Case(
            "float16, values far from 0",
            "an a in float16, which ends at 65504",
            {**_FAR, "T": 3, "S": 100, "dtype": "float16"},
            tiled(16),
        ),
        Case(
            "ten columns, k and v stand for a batch",
            "a D that is assumed to be a power of two, or strides that are assumed",
            {"B": 2, "T": 5, "S": 12, "D": 10, "layout": {"k": "expanded", "v": "expanded"}},
            tiled(8),
        ),
        Case(
            "keys and their positions in another order",
            "a result that depends on where a key lies",
            {"T": 12, "S": 12, "positions": "reversed_keys", "relation": "shuffled"},
            tiled(4),
        ),
        Case(
            "later keys changed",
            "a row that is touched by keys of its future",
            {"T": 20, "S": 20, "relation": "other future"},
            tiled(8),
        ),
    ),
    "memory_saved": (
        Case("t = 512", "a number that does not depend on t", {}, {"t": 512}),
        Case("t = 1024", "a number that does not grow as it should", {}, {"t": 1024}),
    ),
    "question_3": (Case("the right letter", "a wrong answer to the question", {"right": "a"}),),
}

EXPLANATIONS = {
    "question_3": "Only the memory for intermediates goes down, from O(T^2) to O(T), and the "
    "traffic with it; the arithmetic is still O(T^2 d).",
}
