"""Hidden cases of lesson 1."""

import math

from flashkit.exercises.model import Case

CASES = {
    "online_update": (
        Case("one key", "a tile that is assumed to hold two keys or more", {"N": 1}),
        Case(
            "nothing visible after something was seen",
            "a state that is lost in a tile with nothing visible",
            {"level": -math.inf},
        ),
        Case(
            "all scores far below 0",
            "an m that starts at 0, or is compared with 0",
            {"seen": 0, "level": -300.0},
        ),
        Case(
            "scores in the hundreds",
            "exp without the maximum subtracted",
            {"level": 300.0, "old_level": 200.0, "spread": 3.0},
        ),
        Case(
            "scores fall steeply",
            "old terms that are thrown away although they are the larger ones",
            {"level": -120.0, "old_level": 0.0},
        ),
        Case(
            "scores rise steeply",
            "an m that keeps the maximum of the first tile",
            {"level": 120.0, "old_level": 0.0},
        ),
        Case("values of one column", "a shape of a that is guessed", {"D": 1, "N": 4}),
        Case("a wide tile", "a shape of a that is guessed", {"D": 16, "N": 33, "level": 1.0}),
    ),
    "question_1": (Case("the right letter", "a wrong answer to the question", {"right": "b"}),),
    "question_2": (Case("the right letter", "a wrong answer to the question", {"right": "c"}),),
}

EXPLANATIONS = {
    "question_1": "Unnormalised, a and l are two sums against one reference m, so one factor "
    "alpha repairs both; dividing in every tile would have to be undone in the next, because "
    "the denominator is known only after the last.",
    "question_2": "A softmax per tile gives every tile the total weight 1, whatever its scores; "
    "the weights of a row must share one denominator, the sum over all of its tiles.",
}
