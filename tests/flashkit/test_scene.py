"""The data of a step: what it refuses, what becomes of it as JSON, as text and as a table."""

import json

import pytest

from flashkit.widgets import fallback
from flashkit.widgets.scene import Bars, Cells, Lines, Step, Tree, to_json

INF = float("inf")


def bars(values=(1.0, 2.0), **more) -> Bars:
    count = len(values)
    names = tuple(f"k{i}" for i in range(count))
    return Bars("scores", names, values, ("plain",) * count, tuple(map(str, values)), **more)


def cells(size: int, text: str = "x") -> Cells:
    names = tuple(map(str, range(size)))
    return Cells("tiles", names, names, (("plain",) * size,) * size, ((text,) * size,) * size)


def step(*panels, sentence="Tile 1: m is 2.") -> Step:
    return Step(sentence, (("m", "2"),), panels)


def test_json_says_the_type_and_leaves_out_what_is_not_set():
    panel = step(bars(line=0.0)).to_json()["panels"][0]
    assert panel["type"] == "Bars"
    assert panel["line"] == 0.0
    assert panel["values"] == [1.0, 2.0]
    assert not {"low", "high", "log", "line_text"} & set(panel)
    assert to_json(step()) == {"sentence": "Tile 1: m is 2.", "facts": [["m", "2"]], "panels": []}


def test_json_has_no_number_that_json_lacks():
    values = step(bars((-INF, INF, float("nan"), 1 / 3))).to_json()["panels"][0]["values"]
    assert values == ["-inf", "inf", "nan", 0.333333]
    json.dumps(step(bars((-INF, 1.0))).to_json(), allow_nan=False)


def test_sixteen_steps_are_less_than_100_kb():
    lines = Lines("formula", ("l = 1.3679 * 0.3679 + 1.0498 = 1.5530",) * 6)
    tree = Tree("merge", ((0.5, 0.0, "m=2\nl=1.55", "good"),) * 16, ((0, 1),) * 15)
    one = step(bars((1 / 3,) * 16), bars((2 / 3,) * 16), cells(8, "full"), lines, tree)
    assert len(json.dumps([one.to_json()] * 16)) < 100_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bars("s", ("a",), (1.0, 2.0), ("lit",), ("1",)), "2 values for 1"),
        (lambda: Bars("s", ("a",), (1.0,), ("red",), ("1",)), "no kind 'red'"),
        (lambda: Cells("c", ("r",), ("a", "b"), (("lit",),), (("", ""),)), "row of kinds has 1"),
        (lambda: Lines("f", ("x", "y"), ("lit",)), "1 kinds for 2"),
        (lambda: Tree("t", ((0.0, 0.0, "x", "lit"),), ((0, 1),)), "a node that is not there"),
    ],
)
def test_a_panel_that_cannot_be_drawn_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_text_has_one_sentence_a_step():
    steps = [step(bars()), step(sentence="Tile 2: m stays.")]
    expected = "demo:\ntile 1 of 2: Tile 1: m is 2.\ntile 2 of 2: Tile 2: m stays."
    assert fallback.text("demo", steps, "tile") == expected


def test_html_is_a_plain_table_that_a_sanitiser_keeps():
    steps = [step(bars((-INF, 1.0)), cells(2), Lines("f", ("a < b",)), sentence="<script>")] * 2
    page = fallback.html("demo", steps, "tile")
    assert page.count("<tr>") == 3
    assert "&lt;script&gt;" in page
    assert "a &lt; b" in page
    assert "m = 2" in page
    assert "██" in page
    for word in ("<script", "<svg", "style=", "class=", "onclick"):
        assert word not in page


def test_html_leaves_out_grids_that_are_too_wide_to_read():
    assert "<pre>" not in fallback.html("demo", [step(cells(17), bars((1.0,) * 17))])


def test_bars_of_one_value_need_no_axis():
    assert "▁" in fallback.html("demo", [step(bars((0.0, 0.0)))])
