"""Hidden cases of lesson 4."""

from autograder.hidden.window import FAR
from flashkit.exercises.model import Case

CASES = {
    "merge": (
        Case("the left part is empty", "NaN from exp(-inf - m)", {"a_empty": "all"}),
        Case(
            "both parts are empty",
            "NaN from exp(-inf - -inf)",
            {"a_empty": "all", "b_empty": "all"},
        ),
        Case(
            "scores far apart",
            "exp without the maximum subtracted",
            {"a_level": 200.0, "b_level": 40.0},
        ),
        Case(
            "all scores far below 0",
            "a maximum that starts at 0",
            {"a_level": -300.0, "b_level": -302.0},
        ),
        Case("the left part is larger", "only one side is rescaled", {"a_level": 2.0}),
        Case("one row", "a shape that is guessed", {"T": 1, "D": 16, "b_level": 1.0}),
        Case(
            "the two sides exchanged",
            "a merge in which one side counts more",
            {"a_level": 1.0, "b_empty": "every third", "relation": "exchanged"},
        ),
    ),
    "split_attention": (
        Case("one split", "a merge that needs two parts", {"T": 8, "S": 16}, {"num_splits": 1}),
        Case(
            "a number of splits that does not divide S",
            "a last split that is lost",
            {"Hq": 2, "Hkv": 2, "T": 6, "S": 37},
            {"num_splits": 5},
        ),
        Case(
            "one query",
            "a causal mask that hides all keys but the first",
            {"B": 2, "Hq": 3, "Hkv": 1, "T": 1, "S": 40},
            {"num_splits": 4},
        ),
        Case(
            "T = S",
            "NaN in rows that see no key of a split",
            {"Hq": 2, "Hkv": 2, "T": 24, "S": 24},
            {"num_splits": 3},
        ),
        Case(
            "all scores far below 0",
            "a maximum that starts at 0 and not at -inf",
            {"T": 8, "S": 32, "pattern": "negative"},
            {"num_splits": 4},
        ),
        Case(
            "scores rise steeply from key to key",
            "a maximum that is frozen after the first split",
            {"T": 4, "S": 48, "pattern": "steep"},
            {"num_splits": 3},
        ),
        Case(
            "scores in the hundreds",
            "exp without the maximum subtracted",
            {"T": 8, "S": 32, "gain": 150.0},
            {"num_splits": 4},
        ),
        Case(
            "float16, grouped heads",
            "an output of another dtype, or the wrong KV head",
            {"Hq": 4, "Hkv": 2, "T": 5, "S": 40, "D": 32, "dtype": "float16"},
            {"num_splits": 4},
        ),
        Case(
            "float16, values far from 0",
            "an acc in float16, which ends at 65504",
            {**FAR, "T": 3, "S": 100, "dtype": "float16"},
            {"num_splits": 2},
        ),
        Case(
            "six columns, however the keys are cut",
            "a D that is assumed to be a power of two, or a cut that changes the result",
            {"T": 5, "S": 23, "D": 6, "relation": "whole"},
            {"num_splits": 4},
        ),
    ),
    "decode_split": (
        Case(
            "one split",
            "a split number that is taken for a tile",
            {"T": 1, "S": 40},
            {"num_splits": 1},
        ),
        Case(
            "three query heads to a KV head",
            "a group that is assumed to be a power of two",
            {"B": 2, "Hq": 6, "Hkv": 2, "T": 1, "S": 45},
            {"num_splits": 4},
        ),
        Case(
            "more splits than keys",
            "a split without keys that is not m = -inf, l = 0, acc = 0",
            {"Hq": 2, "Hkv": 1, "T": 1, "S": 5},
            {"num_splits": 8},
        ),
        Case(
            "all scores far below 0",
            "a maximum that starts at 0, or padded keys that are counted with score 0",
            {"Hq": 2, "Hkv": 2, "T": 1, "S": 50, "pattern": "negative"},
            {"num_splits": 3},
        ),
        Case(
            "scores rise steeply from key to key",
            "a maximum that is frozen after the first tile",
            {"T": 1, "S": 100, "pattern": "steep"},
            {"num_splits": 2},
        ),
        Case(
            "scores rise gently from key to key",
            "l or acc that is not rescaled from one tile to the next",
            {"T": 1, "S": 100, "pattern": "rising"},
            {"num_splits": 2},
        ),
        Case(
            "scores in the hundreds",
            "exp without the maximum subtracted",
            {"Hq": 2, "Hkv": 2, "T": 1, "S": 64, "gain": 150.0},
            {"num_splits": 2},
        ),
        Case(
            "float16, D = 32",
            "partial results that are kept in float16",
            {"Hq": 4, "Hkv": 2, "T": 1, "S": 60, "D": 32, "dtype": "float16"},
            {"num_splits": 3},
        ),
        Case(
            "k and v with other strides",
            "v's addresses computed from k's strides",
            {"Hq": 2, "Hkv": 2, "T": 1, "S": 33, "layout": {"k": "rows", "v": "heads"}},
            {"num_splits": 2},
        ),
        Case(
            "five query heads to a KV head, however the keys are cut",
            "heads that are lost, or a cut that changes the result",
            {"Hq": 5, "Hkv": 1, "T": 1, "S": 37, "relation": "whole"},
            {"num_splits": 3},
        ),
        Case(
            "every key twice",
            "an l or m that is not what it is called: the log-sum-exp must grow by ln 2",
            {"T": 1, "S": 18, "lse": True, "relation": "doubled"},
            {"num_splits": 2},
        ),
        Case(
            "fresh data in the same shapes",
            "something that is remembered from the launch before",
            {"T": 1, "S": 18, "launches": 2},
            {"num_splits": 2},
        ),
    ),
    "decode_merge": (
        Case("one split", "a merge that needs two parts", {"num_splits": 1}),
        Case(
            "five splits",
            "a number of splits that is assumed to be a power of two",
            {"num_splits": 5, "step": 0.5, "B": 2},
        ),
        Case(
            "all maxima far below 0",
            "a maximum that starts at 0, or padded splits that are loaded as 0",
            {"num_splits": 3, "level": -300.0},
        ),
        Case(
            "maxima far apart",
            "exp without the maximum subtracted",
            {"num_splits": 4, "level": 40.0, "step": 60.0},
        ),
        Case(
            "the last split is the smallest",
            "rescaling in one direction alone",
            {"num_splits": 3, "step": -1.5, "Hq": 3},
        ),
        Case(
            "the first split is empty",
            "NaN from a split without keys",
            {"num_splits": 6, "empty": 3, "D": 32},
        ),
        Case(
            "two parts merged beforehand",
            "a merge that depends on how the parts were made",
            {"num_splits": 4, "step": 0.7, "relation": "joined"},
        ),
    ),
    "question_4": (Case("the right letter", "a wrong answer to the question", {"right": "d"}),),
}

EXPLANATIONS = {
    "question_4": "One query per sequence leaves one program per batch entry and KV head, far "
    "fewer than the GPU has multiprocessors; the long axis is the keys, so it is cut into splits.",
}
