"""Calls that tell bugs apart: small, known to all, made only when a case has failed.

They are cases like any other, but their results are evidence and earn nothing. Each differs from
the others in what it can show: ragged ends, grouped heads, other strides, scores of every kind.
"""

import math
from collections.abc import Callable

from flashkit.exercises.model import Case

_GROUPED = {"B": 2, "Hq": 6, "Hkv": 2, "T": 5, "S": 37}
_TWO = {"Hq": 2, "Hkv": 2}
_NAMES = (
    ("T = 5, S = 37, three query heads to a KV head", _GROUPED),
    ("T = S = 40, wide scores", {**_TWO, "T": 40, "S": 40, "gain": 3.0}),
    ("scores that rise by 0.2 from key to key", {"T": 24, "S": 64, "pattern": "rising"}),
    ("scores that rise by 4 from key to key", {"T": 20, "S": 48, "pattern": "steep"}),
    ("scores that fall by 4 from key to key", {"T": 20, "S": 48, "pattern": "falling"}),
    ("scores around -200", {"T": 20, "S": 40, "pattern": "negative"}),
    ("scores in the hundreds", {"T": 20, "S": 40, "gain": 150.0}),
    ("one query", {**_TWO, "T": 1, "S": 41}),
    ("float16", {**_TWO, "T": 20, "S": 40, "dtype": "float16"}),
)
_STRIDES = (
    ("k is a transposed view", {"layout": {"k": "heads"}}),
    ("v is a transposed view", {"layout": {"v": "heads"}}),
    ("q is a transposed view", {"layout": {"q": "heads"}}),
    ("k is every second row of a buffer", {"layout": {"k": "rows"}}),
)


def attention(args: dict) -> tuple[Case, ...]:
    """For a PyTorch function, with these further arguments."""
    return tuple(_case(name, params, args) for name, params in _NAMES)


def kernel(blocks: Callable[..., dict], **first) -> tuple[Case, ...]:
    """For a kernel, whose further arguments blocks(block_m, block_n, query_offset, ...) makes."""
    strided = {**_TWO, "T": 18, "S": 35, "D": 32}
    return (
        *(_case(name, params, blocks(16, 16, **first)) for name, params in _NAMES),
        *(_case(name, {**strided, **p}, blocks(16, 16, **first)) for name, p in _STRIDES),
        _case("block_m = 32, block_n = 16", {**_TWO, "T": 40, "S": 40}, blocks(32, 16, **first)),
        _case("block_m = 16, block_n = 32", {**_TWO, "T": 40, "S": 50}, blocks(16, 32, **first)),
        _case("D = 32", {"T": 20, "S": 40, "D": 32}, blocks(16, 16, **first)),
        _case(
            "query_offset = 100, past every key",
            {**_TWO, "T": 20, "S": 37},
            blocks(16, 16, 100, **first),
        ),
        _case(
            "query_offset = -6: rows that see no key",
            {**_TWO, "T": 20, "S": 30},
            blocks(16, 16, -6, **first),
        ),
        _case("query_offset = 5", {**_TWO, "T": 20, "S": 50}, blocks(16, 16, 5, **first)),
    )


def windowed(blocks: Callable[..., dict]) -> tuple[Case, ...]:
    """For a kernel with a window."""
    plain = {**_TWO, "T": 48, "S": 48}
    return (
        *kernel(blocks, window=21),
        _case("a window of 1", plain, blocks(16, 16, window=1)),
        _case("a window of 17", plain, blocks(16, 16, window=17)),
        _case("a window of 12, T < S", {**plain, "S": 75}, blocks(32, 16, window=12)),
    )


def decode() -> tuple[Case, ...]:
    """For a split kernel, whose parts are merged before they are judged."""
    splits = {"num_splits": 3}
    long = {"T": 1, "S": 100}
    return (
        _case("B = 2, three query heads to a KV head", {**_GROUPED, "T": 1, "S": 50}, splits),
        _case("S = 100", {**_TWO, **long}, splits),
        _case("scores that rise by 0.2 from key to key", {**long, "pattern": "rising"}, splits),
        _case("scores that rise by 4 from key to key", {**long, "pattern": "steep"}, splits),
        _case("scores around -200", {**long, "pattern": "negative"}, splits),
        _case("scores in the hundreds", {**long, "gain": 150.0}, splits),
        _case("5 keys in 8 splits", {**_TWO, "T": 1, "S": 5}, {"num_splits": 8}),
        *(_case(name, {**_TWO, "T": 1, "S": 40, "D": 32, **p}, splits) for name, p in _STRIDES),
    )


def updates() -> tuple[Case, ...]:
    """For the update of one row."""
    return tuple(
        _case(name, params, {})
        for name, params in (
            ("a first tile", {"seen": 0}),
            ("scores that rise", {"level": 2.0}),
            ("scores that fall", {"level": -2.0}),
            ("scores around -200", {"level": -200.0, "old_level": -201.0}),
            ("scores around 300", {"level": 300.0, "old_level": 299.0}),
            ("scores that rise by 100", {"level": 100.0}),
            ("nothing visible", {"seen": 0, "level": -math.inf}),
        )
    )


def merges() -> tuple[Case, ...]:
    """For the merge of two parts."""
    return tuple(
        _case(name, params, {})
        for name, params in (
            ("the right part is larger", {"b_level": 2.0}),
            ("the left part is larger", {"a_level": 2.0}),
            ("scores around -200", {"a_level": -200.0, "b_level": -201.0}),
            ("scores around 300", {"a_level": 300.0, "b_level": 299.0}),
            ("an empty part", {"a_empty": "every second", "b_empty": "every third"}),
        )
    )


def decode_merges() -> tuple[Case, ...]:
    """For the merge of any number of parts."""
    return tuple(
        _case(name, params, {})
        for name, params in (
            ("four splits that rise", {"step": 0.7}),
            ("four splits that fall", {"step": -0.7}),
            ("three splits around -200", {"num_splits": 3, "level": -200.0}),
            ("four splits around -200", {"level": -200.0}),
            ("four splits around 300", {"level": 300.0}),
            ("every second split is empty", {"empty": 2}),
        )
    )


def backward_parts(parts: tuple[str, ...]) -> tuple[Case, ...]:
    """For the parts of a gradient, for one head."""
    plain = {"T": 7, "S": 13, "D": 8}
    kinds = (
        ("T = 7, S = 13", {}),
        ("scores around -200", {"pattern": "negative"}),
        ("v around 20", {"v_offset": 20.0, "do_gain": 0.5}),
    )
    return tuple(
        _case(f"{part}, {name}", {**plain, "part": part, **params}, {})
        for name, params in kinds
        for part in parts
    )


def backward_whole(args: Callable[..., dict]) -> tuple[Case, ...]:
    """For a whole backward, whose further arguments args(query_offset, window, tile) makes."""
    plain = {**_TWO, "T": 9, "S": 21}
    return (
        _case("T = 5, S = 37, three query heads to a KV head", _GROUPED, args()),
        _case("T = 9, S = 21", plain, args()),
        _case("scores around -200", {**plain, "pattern": "negative"}, args()),
        _case("query_offset = 5", plain, args(5)),
        _case("query_offset = 40, past every key", plain, args(40)),
        _case("query_offset = -4: rows that see no key", plain, args(-4)),
        _case("a window of 4", plain, args(window=4)),
        _case("a window of 1", plain, args(window=1)),
        _case("one query", {**_TWO, "T": 1, "S": 21}, args()),
    )


def gathers() -> tuple[Case, ...]:
    """For a gather from pages."""
    return (
        _case("three pages of 4, two heads", {"lengths": [12], "Hkv": 2}, {}),
        _case("pages of 32, three heads", {"lengths": [47], "page": 32, "Hkv": 3}, {}),
        _case("pages of 32, one head", {"lengths": [42], "page": 32}, {}),
    )


def paged() -> tuple[Case, ...]:
    """For a decode over pages."""
    plain = {"lengths": [29, 18], "page": 8}
    return (
        _case("three query heads to a KV head", {**plain, "Hq": 6, "Hkv": 2}, {}),
        _case("pages of 32", {"lengths": [47, 39], "page": 32, **_TWO}, {}),
        _case("whole pages", {"lengths": [32, 16], "page": 8, **_TWO}, {}),
        _case("scores that rise by 0.2 from key to key", {**plain, "pattern": "rising"}, {}),
        _case("scores that rise by 4 from key to key", {**plain, "pattern": "steep"}, {}),
        _case("scores around -200", {**plain, "pattern": "negative"}, {}),
        _case("scores in the hundreds", {**plain, **_TWO, "gain": 150.0}, {}),
        _case("64 columns", {**plain, "D": 64}, {}),
        _case("a sequence without keys", {"lengths": [0, 17], "page": 8, **_TWO}, {}),
    )


def _case(name: str, params: dict, args: dict) -> Case:
    return Case(name, "", params, args)
