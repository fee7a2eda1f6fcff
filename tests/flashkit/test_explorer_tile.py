"""The tile explorer's numbers, against sums that know nothing of flashkit."""

import json
import math
import random

import pytest

from flashkit.exercises.lesson1 import FORGOTTEN, wrong_outputs
from flashkit.widgets.explorers.tile import tile_explorer, tile_steps
from flashkit.widgets.scene import Bars, Lines

INF = math.inf
SCORES, VALUES = [0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0]


def facts(step) -> dict[str, str]:
    return dict(step.facts)


def floats(text: str) -> list[float]:
    """The numbers of a fact: "0.3679, 1.0000", "(1.0, −2.0)" or "2.8915"."""
    return [float(entry.replace("−", "-")) for entry in text.strip("()").split(", ")]


def panel(step, title: str):
    return next(each for each in step.panels if each.title == title)


def by_hand(scores, values, tile, keep_l=False, keep_a=False):
    """(m, alpha, p, l, a) after each tile, in plain Python; values are lists."""
    m, l, a, rows = -INF, 0.0, [0.0] * len(values[0]), []
    for start in range(0, len(scores), tile):
        s, v = scores[start : start + tile], values[start : start + tile]
        new = max(m, *s)
        alpha = math.exp(m - new) if m > -INF else 0.0
        p = [math.exp(x - new) if x > -INF else 0.0 for x in s]
        l = l * (1 if keep_l else alpha) + sum(p)
        a = [
            old * (1 if keep_a else alpha) + sum(w * row[c] for w, row in zip(p, v, strict=True))
            for c, old in enumerate(a)
        ]
        m = new
        rows.append((m, alpha, p, l, a))
    return rows


def softmax_mean(scores, values):
    weights = [math.exp(x - max(scores)) for x in scores]
    columns = zip(*values, strict=True)
    return [
        sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights)
        for column in columns
    ]


def problems():
    """The worked example, and random rows with hidden keys, vectors and ragged tiles."""
    yield SCORES, [[x] for x in VALUES], 2
    draw = random.Random(0)
    for _ in range(40):
        count, width = draw.randint(1, 16), draw.randint(1, 4)
        hidden = draw.random() * 0.6
        scores = [-INF if draw.random() < hidden else draw.gauss(0, 3) for _ in range(count)]
        scores[draw.randrange(count)] = draw.gauss(0, 3)
        values = [[draw.gauss(0, 2) for _ in range(width)] for _ in range(count)]
        yield scores, values, draw.randint(1, 6)


@pytest.mark.parametrize("forget", ["nothing", "l", "a", "both"])
def test_every_fact_is_the_number_of_a_plain_loop(forget):
    for scores, values, tile in problems():
        given = [row[0] for row in values] if len(values[0]) == 1 else values
        steps = tile_steps(scores, given, tile, forget)
        rows = by_hand(scores, values, tile, forget in ("l", "both"), forget in ("a", "both"))
        right = by_hand(scores, values, tile)
        assert len(steps) == len(rows) + 2
        for step, (m, alpha, p, l, a), (*_, right_l, right_a) in zip(
            steps[1:-1], rows, right, strict=True
        ):
            said = facts(step)
            assert said["m"] == ("−∞" if m == -INF else f"{m:.4g}".replace("-", "−"))
            for name, wanted in (("alpha", [alpha]), ("p", p), ("l", [l]), ("a", a)):
                assert floats(said[name]) == pytest.approx(wanted, abs=6e-5), name
            if forget != "nothing":
                assert floats(said["right l"]) == pytest.approx([right_l], abs=6e-5)
                assert floats(said["right a"]) == pytest.approx(right_a, abs=6e-5)
        *_, l, a = rows[-1]
        last = facts(steps[-1])
        assert floats(last["O"]) == pytest.approx([x / l for x in a], abs=6e-5)
        wanted = softmax_mean(scores, values)
        if forget == "nothing":
            assert floats(last["O"]) == pytest.approx(wanted, abs=1e-4)
        else:
            assert floats(last["right O"]) == pytest.approx(wanted, abs=6e-5)


def test_the_panels_hold_the_numbers_they_print():
    for scores, values, tile in problems():
        for step in tile_steps(scores, values, tile, "both"):
            for bars in (each for each in step.panels if isinstance(each, Bars)):
                assert all(bars.low - 1e-9 <= x <= bars.high + 1e-9 for x in bars.values)
                for x, text in zip(bars.values, bars.texts, strict=True):
                    if text and bars.title != "scores s":
                        shown = float(text.removeprefix("✗ ").replace("−", "-"))
                        assert shown == pytest.approx(x, abs=6e-3)
            json.dumps(step.to_json(), allow_nan=False)


def test_the_worked_example_in_words_and_formulas():
    start, first, second, last = tile_steps(SCORES, VALUES, 2)
    assert start.sentence == "Nothing has been seen yet: m is −∞, l and a are 0."
    assert facts(start)["m"] == "−∞"
    assert first.sentence.startswith("tile 1: the first maximum is 1")
    assert second.sentence == (
        "tile 2: the maximum rises from 1 to 2, so l and a shrink by 0.3679."
    )
    assert panel(second, "in numbers").lines == (
        "m = max(1, 2, −1) = 2",
        "α = exp(1 − 2) = 0.3679",
        "p = exp([2, −1] − 2) = [1.0000, 0.0498]",
        "l = 0.3679 · 1.3679 + 1.0000 + 0.0498 = 1.5530",
        "a = 0.3679 · 4.7358 + 1.0000 · 1 + 0.0498 · 3 = 2.8915",
    )
    assert panel(last, "in numbers").lines == (
        "O = a / l = 2.8915 / 1.5530 = 1.8619",
        "softmax(s) @ v = 1.8619",
    )
    assert facts(last)["O"] == "1.8619"


def test_the_current_tile_is_lit_and_m_rises():
    start, first, second, last = tile_steps(SCORES, VALUES, 2)
    kinds = [panel(step, "scores s").kinds for step in (start, first, second, last)]
    assert kinds == [
        ("dim",) * 4,
        ("lit", "lit", "dim", "dim"),
        ("plain", "plain", "lit", "lit"),
        ("plain",) * 4,
    ]
    lines = [panel(step, "scores s").line for step in (start, first, second, last)]
    assert lines == [None, 1.0, 2.0, 2.0]
    moves = panel(second, "l")
    assert moves.labels == ("before", "kept", "added", "after")
    e = math.exp
    wanted = (1 + e(-1), e(-1) + e(-2), 1 + e(-3), 1 + e(-1) + e(-2) + e(-3))
    assert moves.values == pytest.approx(wanted)


def test_a_maximum_that_stays_rescales_nothing():
    second = tile_steps([3, 1, 2, 0], VALUES, 2)[2]
    assert second.sentence == "tile 2: the maximum stays 3, nothing is rescaled."
    assert facts(second)["alpha"] == "1.0000"


@pytest.mark.parametrize(("forget", "output"), [*zip(FORGOTTEN, wrong_outputs(), strict=True)])
def test_a_forgotten_rescale_ends_at_the_output_of_the_exercise(forget, output):
    *_, second, last = tile_steps(SCORES, VALUES, 2, forget)
    assert facts(last)["O"] == f"{output:.4f}"
    assert facts(last)["right O"] == "1.8619"
    assert "Here it first goes wrong" in second.sentence
    assert last.sentence.endswith("not rescaled in tile 2.")


def test_a_wrong_number_stands_beside_the_right_one():
    start, first, second, last = tile_steps(SCORES, VALUES, 2, "l")
    assert "wrong" not in first.sentence
    for step in (start, first):
        assert all("wrong" not in getattr(each, "kinds", ()) for each in step.panels)
    moves = panel(second, "l")
    assert dict(zip(moves.labels, moves.kinds, strict=True))["after"] == "wrong"
    assert moves.values[-2:] == pytest.approx((2.4176665, 1.5530018))
    assert set(panel(second, "a").kinds) == {"plain", "lit", "good"}
    formula = panel(second, "in numbers")
    pairs = dict(zip(formula.lines, formula.kinds, strict=True))
    assert pairs["✗ l = 1.3679 + 1.0000 + 0.0498 = 2.4177"] == "wrong"
    assert pairs["✓ l = 0.3679 · 1.3679 + 1.0000 + 0.0498 = 1.5530"] == "good"
    output = panel(last, "output")
    assert (output.kinds, output.texts) == (("wrong", "good"), ("✗ 1.1960", "1.8619"))
    assert panel(last, "in numbers").lines == (
        "✗ O = a / l = 2.8915 / 2.4177 = 1.1960",
        "✓ softmax(s) @ v = 1.8619",
    )


def test_first_and_later_wrong_tiles_are_told_apart():
    steps = tile_steps([0, 1, 3, 2, 2, 1, 5, 4], [1, 2, 3, 4, 5, 6, 7, 8], 2, "both")
    said = [("Here it first" in s.sentence, "Still wrong" in s.sentence) for s in steps[1:-1]]
    assert said == [(False, False), (True, False), (False, True), (False, True)]


def test_a_bug_that_does_not_show_is_called_so():
    last = tile_steps([3, 1, 2, 0], VALUES, 2, "l")[-1]
    assert "does not show: nothing had to be rescaled" in last.sentence
    last = tile_steps(SCORES, [2, 2, 2, 2], 2, "both")[-1]
    assert "wrong sums happen to cancel" in last.sentence


def test_hidden_keys():
    _, first, second, third, last = tile_steps([-INF, -INF, 0, 1, -INF, -INF], [1] * 6, 2)
    assert "nothing has been seen yet: m stays −∞" in first.sentence
    assert (facts(first)["m"], facts(first)["l"]) == ("−∞", "0.0000")
    assert "0 stands in for m = −∞" in panel(first, "in numbers").lines[1]
    assert panel(first, "scores s").line is None
    assert panel(first, "scores s").texts[0] == "−∞"
    assert second.sentence.startswith("tile 2: the first maximum is 1")
    assert third.sentence == (
        "tile 3: all its keys are hidden: m stays 1, and l and a stay as they were."
    )
    assert facts(last)["O"] == "1.0000"
    never = tile_steps([-INF, -INF], [1, 2], 1, "l")[-1]
    assert never.sentence == "No key was visible: l is 0, and a / l has no meaning."
    assert facts(never)["O"] == "–"


def test_vectors_are_rows_of_bars():
    steps = tile_steps(SCORES, [[1, 0], [0, 1], [1, 1], [2, 0]], 2, "a")
    after = panel(steps[2], "a after")
    assert after.labels == ("[0]", "[1]")
    assert after.kinds == ("wrong", "wrong")
    assert panel(steps[2], "a, right").kinds == ("good", "good")
    assert [each.title for each in steps[-1].panels if isinstance(each, Bars)][1:] == [
        "O = a / l", "softmax(s) @ v"
    ]  # fmt: skip
    assert steps[2].sentence.endswith("Here it first goes wrong: a is wrong.")
    assert any(line.startswith("✗ a[1] = ") for line in panel(steps[2], "in numbers").lines)


@pytest.mark.parametrize("forget", ["nothing", "l", "a", "both"])
def test_rounding_of_large_numbers_is_not_called_wrong(forget):
    big = [1e6, -1e6, 123456.7, -123456.7, 1e6, -1e6]
    for step in tile_steps([3, 3, 3, 3, 3, 3], big, 1, forget):
        assert "wrong" not in step.sentence
        assert all("wrong" not in getattr(each, "kinds", ()) for each in step.panels)
    tile_steps([0, 1e6, -1e6, 5, 5], big[:5], 2, forget)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (([], [], 2), "there must be 1 to 16 scores, got 0"),
        (([0.0] * 17, [0.0] * 17, 2), "there must be 1 to 16 scores, got 17"),
        (([0, 1], [1], 2), r"values must have shape \(S,\) or \(S, D\) with S = 2"),
        (([0, 1], [1, 2], 0), "tile must be an integer >= 1, got 0"),
        (([INF, 1], [1, 2], 1), "a score must be -inf or lie between -1000000 and 1000000"),
        (([math.nan, 1], [1, 2], 1), "a score must be -inf or lie between -1000000 and 1000000"),
        (([0, 1], [1, -INF], 1), "a value must lie between -1000000 and 1000000"),
        (([0, 1], [[1.0] * 7] * 2, 1), "a value must have 1 to 6 components, got 7"),
        (([0, 1], [1, 2], 1, "m"), "forget must be one of nothing, l, a, both, got 'm'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(problem, message):
    with pytest.raises(ValueError, match=message):
        tile_steps(*problem)


def test_jumps_give_the_same_step_as_walking():
    explorer = tile_explorer(SCORES, VALUES)
    wanted = tile_steps(SCORES, VALUES, 2)
    for index in (3, 0, 2, 1):
        explorer.index = index
        assert explorer.steps[explorer.index] == wanted[index]


def test_every_control_recomputes():
    explorer = tile_explorer(SCORES, VALUES)
    explorer.set(forget="l")
    assert facts(explorer.steps[-1])["O"] == "1.1960"
    explorer.set(tile=1, forget="nothing")
    assert len(explorer.steps) == 6
    explorer.set(scores="-inf, 1, −2", values="1 0; 0, 1; 2, -1", tile=2)
    assert explorer.error == ""
    wanted = softmax_mean([-INF, 1, -2], [[1, 0], [0, 1], [2, -1]])
    assert floats(facts(explorer.steps[-1])["O"]) == pytest.approx(wanted, abs=6e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scores": ""}, "write at least one score"),
        ({"scores": "0, x, 2, 3"}, "'x' is not a number"),
        ({"scores": "0, 1, 2"}, "S = 3"),
        ({"values": "1, 0; 0; 1, 1; 2, 0"}, "the same number of components, got 1 and 2"),
        ({"values": "1, 2, 3"}, "S = 4"),
    ],
)
def test_an_error_is_shown_and_the_picture_stays(values, message):
    explorer = tile_explorer(SCORES, VALUES)
    before = explorer.steps
    explorer.set(**values)
    assert message in explorer.error
    assert explorer.steps == before
    explorer.set(scores="0, 1, 2, -1", values="2, 4, 1, 3")
    assert explorer.error == ""


def test_vectors_are_written_into_the_control():
    explorer = tile_explorer([-INF, 0.5], [[1, 0], [0.25, -1]], tile=1, name="vectors")
    assert explorer.values["scores"] == "-inf, 0.5"
    assert explorer.values["values"] == "1, 0; 0.25, -1"
    assert explorer.error == ""


def test_all_panels_but_the_formula_keep_their_axis():
    steps = tile_steps(SCORES, VALUES, 1, "both")[:-1]
    for title in ("scores s", "p = exp(s − m)", "l", "a"):
        assert len({(panel(s, title).low, panel(s, title).high) for s in steps}) == 1
    assert all(isinstance(step.panels[-1], Lines) for step in steps)
