"""The explorer's panel without a browser: state from the index, errors, models, what is saved."""

import json

import ipywidgets
import pytest

from flashkit.widgets import panel
from flashkit.widgets.panel import Choice, Explorer, Number, Text, numbers
from flashkit.widgets.scene import Bars, Step

VIEW = "application/vnd.jupyter.widget-view+json"


def steps(count: int, scores: str, kind: str) -> list[Step]:
    if count == 9:
        raise KeyError("nine")
    names = tuple(map(str, numbers(scores)))
    bars = Bars("scores", names, tuple(numbers(scores)), (kind,) * len(names), names)
    return [Step(f"Tile {i + 1}.", (("i", str(i)),), (bars,)) for i in range(count)]


def demo(name: str = "demo", compute=steps) -> Explorer:
    kinds = [("seen", "plain"), ("lit", "lit")]
    controls = [Number("count", "steps", 4, 0, 9), Text("scores", "scores", "0, 1, 2, -1")]
    return Explorer(name, compute, [*controls, Choice("kind", "bars", kinds, "plain")])


def models() -> int:
    return len(ipywidgets.widgets.widget._instances)


def test_values_steps_and_index():
    explorer = demo()
    assert explorer.values == {"count": 4, "scores": "0, 1, 2, -1", "kind": "plain"}
    assert len(explorer.steps) == 4
    explorer.index = 3
    assert explorer.index == 3
    explorer.set(kind="lit", scores="5")
    assert explorer.steps == steps(4, "5", "lit")
    assert explorer.index == 3


def test_fewer_steps_clamp_the_index_and_any_index_is_clamped():
    explorer = demo()
    explorer.index = 3
    explorer.set(count=2)
    assert explorer.index == 1
    assert explorer._slider.value == explorer._slider.max == 1
    explorer.index = 99
    assert explorer.index == 1


def test_set_computes_once_and_refuses_unknown_names():
    calls = []

    def counted(**values):
        calls.append(values)
        return steps(**values)

    explorer = demo(compute=counted)
    explorer.set(count=2, scores="1", kind="lit")
    assert len(calls) == 2
    with pytest.raises(KeyError):
        explorer.set(colour="red")


def test_an_error_is_shown_and_the_last_good_steps_stay():
    explorer = demo()
    explorer.set(scores="0, x")
    assert explorer.error.startswith("'x' is not a number")
    assert len(explorer.steps) == 4
    explorer.set(scores="0", count=9)
    assert explorer.error == "KeyError: 'nine'"
    explorer.set(count=0)
    assert explorer.error == "there is nothing to show for these values"
    explorer.set(count=1)
    assert explorer.error == ""
    assert len(explorer.steps) == 1


def test_an_explorer_that_fails_at_once_still_opens():
    def broken(**values):
        raise RuntimeError("no kernel")

    explorer = demo(compute=broken)
    assert explorer.error == "RuntimeError: no kernel"
    assert (explorer.steps, explorer.index) == ([], 0)
    assert "no kernel" in explorer._repr_mimebundle_()["text/plain"]


def test_ten_runs_leave_no_more_models_than_one():
    demo("again")
    once = models()
    for _ in range(9):
        demo("again")
    assert models() == once
    demo("another")
    assert models() > once


def test_what_a_notebook_saves_has_no_address_and_no_script():
    bundle = demo()._repr_mimebundle_()
    assert set(bundle) == {VIEW, "text/html", "text/plain"}
    assert repr(demo()) == bundle["text/plain"]
    assert "tile 4 of 4: Tile 4." in bundle["text/plain"]
    for text in (bundle["text/plain"], bundle["text/html"], repr(demo()._stage)):
        assert " at 0x" not in text
        assert "<script" not in text


def test_under_nbgrader_there_is_no_live_view_and_no_model(monkeypatch):
    demo()
    before = models()
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    explorer = demo("graded")
    assert models() == before
    assert set(explorer._repr_mimebundle_()) == {"text/html", "text/plain"}
    explorer.set(count=2)
    assert len(explorer.steps) == 2


def test_the_view_gets_plain_data():
    explorer = demo()
    assert json.loads(json.dumps(explorer._stage.steps)) == [x.to_json() for x in explorer.steps]
    assert explorer._stage.revision == 1
    explorer.set(count=2)
    assert (explorer._stage.revision, explorer._stage.busy) == (2, False)


def test_whole_numbers_and_fractions_get_their_own_boxes():
    assert isinstance(Number("n", "n", 1, 0, 9).widget(), ipywidgets.BoundedIntText)
    assert isinstance(Number("x", "x", 0.5, 0, 9, 0.1).widget(), ipywidgets.BoundedFloatText)


def test_numbers_reads_a_list_and_says_what_is_wrong():
    assert numbers("0, 1,2 -1e1") == [0, 1, 2, -10]
    for text, message in (("", "at least one"), ("1, a", "'a' is not"), ("inf", "not a finite")):
        with pytest.raises(ValueError, match=message):
            numbers(text)


@pytest.fixture(autouse=True)
def _closed():
    yield
    for name in list(panel._open):
        panel._open.pop(name).close()
