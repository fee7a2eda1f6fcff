"""The tile explorer on the page: every step and control, against the numbers of Python."""

import math

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import alert, bar, explorer, fact, screenshot, sentence, set_control, stage, step_to
from playwright.sync_api import expect

from flashkit.widgets.explorers import tile_steps
from flashkit.widgets.scene import Bars

NAME = "The tile explorer"
SCORES, VALUES = [0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0]
CELL = """
from flashkit.widgets.explorers import tile_explorer

tile_explorer([0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0], tile=2)
"""
VECTORS = """
from flashkit.widgets.explorers import tile_explorer

hidden = -float("inf")
tile_explorer([hidden, hidden, 0, 1, 1, hidden, 3, 2],
              [[2, 0], [4, 1], [1, 3], [3, -1], [2, 2], [0, 1], [1, 0], [2, -2]], tile=2)
"""


def compare(page, steps, name: str = NAME) -> None:
    """Walk through the explorer by keyboard; all that it says must be what Python computed."""
    for index, step in enumerate(steps):
        step_to(page, index, name)
        assert sentence(page, name) == step.sentence
        for title, value in step.facts:
            assert fact(page, title, name) == value
        for panel in step.panels:
            if isinstance(panel, Bars):
                for label, text in zip(panel.labels, panel.texts, strict=True):
                    if text:
                        assert bar(page, panel.title, label, name) == text
            else:
                shown = stage(page, name).locator(f'[data-line^="{panel.title}/"]')
                expect(shown).to_have_text(list(panel.lines))


def test_worked_example_and_every_control(open_notebook):
    page = open_notebook([CELL])
    compare(page, tile_steps(SCORES, VALUES, 2))
    assert fact(page, "O") == "1.8619"
    set_control(page, "forget", "to rescale l")
    compare(page, tile_steps(SCORES, VALUES, 2, "l"))
    assert fact(page, "O") == "1.1960"
    set_control(page, "keys in a tile", 1)
    compare(page, tile_steps(SCORES, VALUES, 1, "l"))
    set_control(page, "forget", "nothing")
    set_control(page, "scores (-inf hides a key)", "-inf, 3, 3.5, -2")
    compare(page, tile_steps([-float("inf"), 3, 3.5, -2], VALUES, 1))
    set_control(page, "values (vectors: 1, 0; 0, 1)", "1, 0; 0, 1; 2, 2; -1, 4")
    compare(page, tile_steps([-float("inf"), 3, 3.5, -2], [[1, 0], [0, 1], [2, 2], [-1, 4]], 1))


def test_jumps_show_the_same_as_walking(open_notebook):
    page = open_notebook([CELL])
    steps = tile_steps(SCORES, VALUES, 2)
    for key, index in (("End", 3), ("ArrowLeft", 2), ("Home", 0), ("End", 3)):
        stage(page).focus()
        page.keyboard.press(key)
        expect(stage(page).locator(".flashkit-sentence")).to_have_text(steps[index].sentence)
        assert fact(page, "l") == dict(steps[index].facts)["l"]


def test_what_is_wrong_is_said_and_the_picture_stays(open_notebook):
    page = open_notebook([CELL])
    set_control(page, "values (vectors: 1, 0; 0, 1)", "1, 2, 3")
    assert "values must have shape (S,) or (S, D) with S = 4" in alert(page)
    step_to(page, 2)
    assert fact(page, "a") == "2.8915"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_looks(open_notebook, theme):
    """Pictures to look at, and nothing serious for axe-core, in both themes and narrow."""
    page = open_notebook([CELL], theme=theme)
    step_to(page, 2)
    picture(page, f"tile-{theme}")
    set_control(page, "forget", "to rescale l")
    step_to(page, 2)
    picture(page, f"tile-forget-{theme}")
    found = Axe().run(page, context=".flashkit-explorer").response["violations"]
    assert [x for x in found if x["impact"] in ("serious", "critical")] == []
    step_to(page, 3)
    picture(page, f"tile-end-{theme}")


def picture(page, title: str) -> None:
    """A screenshot without the ring of the keyboard focus, as the README shows it."""
    stage(page).blur()
    screenshot(page, title)


@pytest.mark.parametrize("width", [1180, 700])
def test_vectors_fit_the_page(open_notebook, width):
    page = open_notebook([VECTORS])
    page.set_viewport_size({"width": width, "height": 2400})
    page.wait_for_timeout(300)
    set_control(page, "forget", "to rescale both")
    step_to(page, 4)
    screenshot(page, f"tile-vectors-{width}")
    box = explorer(page).bounding_box()
    for part in stage(page).locator("figure, svg").all():
        inner = part.bounding_box()
        assert inner["x"] + inner["width"] <= box["x"] + box["width"] + 1


LESSONS = {
    "01_worked_example": (
        (NAME, (SCORES, VALUES, 2)),
        ("A longer row, tile by tile", ([0, 1, 3, 2, 2, 1, 5, 4], [2, 4, 1, 3, 2, 2, 0, 1], 2)),
    ),
    "02_online_softmax": (
        (
            NAME,
            (
                [-math.inf, -math.inf, 0, 1, 1, -math.inf, 3, 2],
                [[2, 0], [4, 1], [1, 3], [3, -1], [2, 2], [0, 1], [1, 0], [2, -2]],
                2,
            ),
        ),
    ),
}


@pytest.mark.parametrize("lesson", LESSONS)
def test_explorers_of_the_lesson(open_notebook, lesson):
    page = open_notebook(f"{lesson}/{lesson}.ipynb")
    for place, (name, problem) in enumerate(LESSONS[lesson], start=1):
        stage(page, name).scroll_into_view_if_needed()
        compare(page, tile_steps(*problem), name)
        screenshot(page, f"tile-{lesson}-{place}", name)
