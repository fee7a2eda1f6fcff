"""Hidden cases of lesson 6."""

from flashkit.exercises.model import Case

_INF = float("inf")

CASES = {
    "gather_pages": (
        Case("no key", "a page that is read although nothing was asked for", {"lengths": [0, 4]}),
        Case("one key", "a first page that is assumed full", {"lengths": [1], "Hkv": 2}),
        Case(
            "pages of one row",
            "a page size that is assumed to be larger",
            {"lengths": [9], "page": 1, "Hkv": 2},
        ),
        Case(
            "entries of the table that name no page",
            "a table that is read past the sequence's last page",
            {"lengths": [9, 30], "unused": 10**6, "Hkv": 2},
        ),
        Case(
            "K and V in one allocation",
            "addresses that are computed from the shape",
            {"lengths": [13], "layout": "together", "Hkv": 2},
        ),
        Case(
            "pages that keep a head together",
            "a reshape that takes the axes for others",
            {"lengths": [23], "layout": "heads first", "page": 8, "Hkv": 3},
        ),
        Case(
            "float16, free rows full of infinity",
            "another dtype, or arithmetic on rows that hold nothing",
            {"lengths": [14], "dtype": "float16", "stale": _INF, "Hkv": 2},
        ),
    ),
    "paged_decode": (
        Case(
            "free rows full of infinity",
            "0 * inf, which is NaN: what a mask hides is not to be multiplied at all",
            {"lengths": [13, 6], "page": 8, "Hq": 4, "Hkv": 2, "stale": _INF},
        ),
        Case(
            "entries of the table that name no page",
            "a table that is read past a sequence's last page",
            {"lengths": [30, 5], "page": 8, "Hq": 2, "unused": 10**6},
        ),
        Case(
            "three query heads to a KV head, pages of one row",
            "a group or a page that is assumed to be a power of two",
            {"lengths": [11, 17], "page": 1, "Hq": 6, "Hkv": 2},
        ),
        Case(
            "pages of 12, 40 columns",
            "sizes that are assumed to be powers of two",
            {"lengths": [40, 12], "page": 12, "Hq": 2, "Hkv": 2, "D": 40},
        ),
        Case(
            "all scores far below 0",
            "a maximum that starts at 0 and not at -inf",
            {"lengths": [20, 31], "page": 8, "pattern": "negative"},
        ),
        Case(
            "scores rise steeply from key to key",
            "a maximum that is frozen after the first page",
            {"lengths": [60], "page": 8, "pattern": "steep"},
        ),
        Case(
            "scores in the hundreds",
            "exp without the maximum subtracted",
            {"lengths": [33, 20], "page": 8, "Hq": 2, "Hkv": 2, "gain": 150.0},
        ),
        Case(
            "float16, values far from 0",
            "an acc in float16, which ends at 65504",
            {"lengths": [90, 70], "page": 16, "dtype": "float16", "gain": 0.3, "v_offset": 4000.0},
        ),
        Case(
            "K and V in one allocation, float16",
            "another dtype, or addresses that are computed from the shape",
            {"lengths": [25, 9], "page": 8, "Hq": 4, "Hkv": 2, "dtype": "float16", "D": 32}
            | {"layout": "together"},
        ),
        Case(
            "fresh data in the same shapes",
            "something that is remembered from the call before",
            {"lengths": [18], "page": 8, "launches": 2},
        ),
    ),
    "question_6": (Case("the right letter", "a wrong answer to the question", {"right": "c"}),),
}

EXPLANATIONS = {
    "question_6": "Partial results over disjoint keys merge exactly, in any order and grouping, "
    "so it does not matter where a key lies or when it comes: in the next tile, in another "
    "program's split, on a page somewhere, or on another GPU.",
}
