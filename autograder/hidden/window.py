"""Hidden cases of the sliding window, in lesson 3."""

from flashkit.exercises.lesson3 import blocks
from flashkit.exercises.model import Case

FAR = {"gain": 0.3, "v_gain": 500.0, "v_offset": 2000.0}
"""Values whose sum over a row's keys does not fit float16."""

WINDOW = (
    Case(
        "a window of one",
        "a window that is off by one: every row is the value of its own key",
        {"Hq": 2, "Hkv": 2, "T": 33, "S": 33},
        blocks(16, 16, window=1),
    ),
    Case(
        "a window of two tiles less one key",
        "a first tile that is rounded the wrong way",
        {"Hq": 2, "Hkv": 2, "T": 64, "S": 64},
        blocks(16, 16, window=31),
    ),
    Case(
        "the first tile lies outside the window",
        "NaN in rows that have seen no key yet",
        {"T": 64, "S": 64},
        blocks(32, 16, window=7),
    ),
    Case(
        "T < S",
        "a window that is counted without the offset",
        {"Hq": 2, "Hkv": 1, "T": 20, "S": 60},
        blocks(16, 16, window=18),
    ),
    Case(
        "an explicit offset past the end",
        "padded keys inside the window that are counted",
        {"Hq": 2, "Hkv": 2, "T": 12, "S": 37},
        blocks(16, 16, query_offset=30, window=40),
    ),
    Case(
        "one query",
        "a window that hides all keys or none",
        {"Hq": 3, "Hkv": 1, "T": 1, "S": 50},
        blocks(16, 16, window=10),
    ),
    Case(
        "all scores far below 0",
        "a maximum that starts at 0 and not at -inf",
        {"T": 40, "S": 40, "pattern": "negative"},
        blocks(16, 16, window=12),
    ),
    Case(
        "scores in the hundreds",
        "exp without the maximum subtracted",
        {"T": 40, "S": 40, "gain": 150.0},
        blocks(16, 16, window=25),
    ),
    Case(
        "scores rise steeply from key to key",
        "a maximum that is frozen after the first tile",
        {"T": 48, "S": 48, "pattern": "steep"},
        blocks(16, 16, window=45),
    ),
    Case(
        "block_n is larger than block_m",
        "tiles that are assumed to be square",
        {"Hq": 2, "Hkv": 2, "T": 40, "S": 40, "D": 32},
        blocks(16, 32, window=9),
    ),
    Case(
        "block_m is larger than block_n",
        "a loop bound that uses BLOCK_N where BLOCK_M belongs",
        {"T": 40, "S": 40},
        blocks(32, 16, window=33),
    ),
    Case(
        "float16, grouped heads",
        "an output of another dtype, or the wrong KV head",
        {"Hq": 4, "Hkv": 2, "T": 20, "S": 40, "dtype": "float16"},
        blocks(16, 16, window=21),
    ),
    Case(
        "rows that see no key",
        "NaN in rows before the first key, or whose window lies past the last: they are 0",
        {"T": 40, "S": 20},
        blocks(16, 16, query_offset=-5, window=8),
    ),
    Case(
        "keys outside the window changed",
        "a row that is touched by keys of its future",
        {"T": 20, "S": 20, "relation": "other future"},
        blocks(16, 16, window=6),
    ),
    Case(
        "a batch of transposed views",
        "a batch that is left out, or addresses computed from another tensor's strides",
        {"B": 2, "Hq": 4, "Hkv": 2, "T": 16, "S": 20, "layout": {"v": "heads", "k": "rows"}},
        blocks(16, 16, window=9),
    ),
    Case(
        "float16, values far from 0",
        "an acc in float16, which ends at 65504",
        {**FAR, "T": 3, "S": 100, "dtype": "float16"},
        blocks(16, 16, window=90),
    ),
)
