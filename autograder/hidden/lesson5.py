"""Hidden cases of lesson 5."""

from flashkit.exercises.lesson5 import whole
from flashkit.exercises.model import Case

_TWO = {"Hq": 2, "Hkv": 2}
_VIEWS = {"q": "heads", "k": "heads", "v": "rows", "do": "heads"}


def _part(name: str, reason: str, **params) -> Case:
    """The part that is named first."""
    part = name.partition(",")[0]
    return Case(name, reason, {"part": part, "T": 6, "S": 11, "D": 8, **params})


CASES = {
    "backward_parts": (
        _part(
            "p, scores far below 0",
            "a mask that is put on the scores: exp(0 - lse) overflows",
            pattern="negative",
        ),
        _part("p, scores in the hundreds", "an exp without the lse subtracted", gain=120.0),
        _part("p, one query", "a causal mask that hides all keys but the first", T=1, S=14),
        _part("dv, T = S", "a p that is not transposed, which fits here", T=9, S=9),
        _part("delta, v far from 0", "the sum of something else than do * o", v_offset=20.0),
        _part("ds, v far from 0", "a delta that is left out, or has the wrong sign", v_offset=5.0),
        _part(
            "ds, the gradient of o.sum()",
            "a gradient do that is one number, expanded",
            layout={"do": "constant"},
        ),
        _part("dq, six columns", "a scale that is a constant", D=6),
        _part("dk, T = S, 64 columns", "a scale that is a constant", T=9, S=9, D=64),
    ),
    "attention_backward": (
        Case(
            "scores far below 0, a ragged last tile",
            "a mask that is put on the scores: exp(0 - lse) overflows",
            {**_TWO, "T": 9, "S": 21, "pattern": "negative"},
            whole(),
        ),
        Case(
            "scores in the hundreds",
            "an exp without the lse subtracted",
            {**_TWO, "T": 12, "S": 20, "gain": 120.0},
            whole(),
        ),
        Case(
            "three query heads to a KV head, two batches",
            "a group that is summed over the wrong heads",
            {"B": 2, "Hq": 6, "Hkv": 2, "T": 6, "S": 13},
            whole(),
        ),
        Case(
            "one query, five heads to a KV head",
            "a mask that forgets the offset S - T",
            {"Hq": 5, "Hkv": 1, "T": 1, "S": 37},
            whole(tile=16),
        ),
        Case(
            "an offset smaller than S - T",
            "query_offset that is not used; keys that nobody sees have gradient 0",
            {**_TWO, "T": 8, "S": 30},
            whole(5),
        ),
        Case(
            "an offset past the end",
            "a mask that hides what is visible",
            {**_TWO, "T": 8, "S": 13},
            whole(50, tile=4),
        ),
        Case(
            "a window, T < S",
            "a window that is counted without the offset",
            {"Hq": 4, "Hkv": 2, "T": 10, "S": 40},
            whole(window=7),
        ),
        Case(
            "a window of one", "a window that is off by one", {"T": 20, "S": 20}, whole(window=1)
        ),
        Case(
            "a window past the end of k",
            "NaN in rows whose window holds no key",
            {**_TWO, "T": 12, "S": 10},
            whole(6, window=3, tile=4),
        ),
        Case(
            "more queries than keys, grouped heads",
            "NaN in rows before the first key",
            {"B": 2, "Hq": 4, "Hkv": 2, "T": 17, "S": 6},
            whole(tile=4),
        ),
        Case("a tile larger than S", "a tile that is assumed to fit", {"T": 5, "S": 5}, whole()),
        Case("tiles of one key", "tiles that are assumed large", {"T": 6, "S": 9}, whole(tile=1)),
        Case(
            "the gradient of o.sum()",
            "a do that is one number, expanded: its strides are 0",
            {**_TWO, "T": 8, "S": 12, "layout": {"do": "constant"}},
            whole(),
        ),
        Case(
            "transposed views, ten columns",
            "a D that is assumed to be a power of two, or strides that are assumed",
            {"B": 2, "Hq": 4, "Hkv": 2, "T": 9, "S": 14, "D": 10, "layout": _VIEWS},
            whole(),
        ),
        Case(
            "float16",
            "gradients of another dtype",
            {"Hq": 4, "Hkv": 2, "T": 24, "S": 40, "D": 32, "dtype": "float16"},
            whole(tile=4),
        ),
        Case(
            "float16, values far from 0",
            "a dp or delta in float16, which ends at 65504",
            {**_TWO, "T": 6, "S": 20, "dtype": "float16", "v_offset": 4000.0, "do_gain": 8.0},
            whole(),
        ),
        Case(
            "fresh data in the same shapes",
            "something that is remembered from the call before",
            {"T": 5, "S": 9, "launches": 2},
            whole(),
        ),
    ),
    "question_5": (Case("the right letter", "a wrong answer to the question", {"right": "b"}),),
}

EXPLANATIONS = {
    "question_5": "One of five matmuls is there only to compute S again, so the arithmetic grows "
    "by a quarter; P stored would cost T x S of memory, and more time to write and read than the "
    "matmul takes.",
}
