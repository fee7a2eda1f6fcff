"""The explorer of the learner's own kernel, on kernels written in the notebook."""

import lesson_kernel
import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import fact, screenshot, sentence, set_control, stage, step_to
from playwright.sync_api import expect

NAME = "your kernel, tile by tile"
IMPORT = "import flashkit"
SHOW = "from flashkit.widgets.explorers import kernel_explorer\nkernel_explorer(flash_attention)"
FORGOTTEN = {"l = alpha * l + tl.sum": "l = l + tl.sum"}


def cells(changes=None):
    return [IMPORT, lesson_kernel.replaced(lesson_kernel.source(), changes or {}), SHOW]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_kernel_that_forgets_to_rescale_l_is_stopped_at_its_second_tile(open_notebook, theme):
    page = open_notebook(cells(FORGOTTEN), theme)
    expect(stage(page, NAME).locator(".flashkit-readout")).to_contain_text("1 of 2")
    assert fact(page, "verdict", NAME) == "agrees"
    step_to(page, 1, NAME)
    assert fact(page, "verdict", NAME) == "l differs"
    assert (fact(page, "your l", NAME), fact(page, "right l", NAME)) == ("13.3848", "11.5161")
    said = sentence(page, NAME)
    assert said.startswith("Tile 2, keys 16 to 31: l differs")
    assert "l is not multiplied by alpha when the maximum rises" in said
    screenshot(page, f"kernel-forgets-l-{theme}", NAME)
    found = Axe().run(page, context=".flashkit-explorer")
    bad = [v["id"] for v in found.response["violations"] if v["impact"] in ("serious", "critical")]
    assert bad == []
    page.set_viewport_size({"width": 700, "height": 2400})
    page.wait_for_timeout(500)
    inside = stage(page, NAME).evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    screenshot(page, f"kernel-forgets-l-{theme}-700", NAME)
    assert inside


def test_a_right_kernel_agrees_and_its_controls_work(open_notebook):
    page = open_notebook(cells())
    expect(stage(page, NAME).locator(".flashkit-readout")).to_contain_text("1 of 4")
    step_to(page, 1, NAME)
    screenshot(page, "kernel-right", NAME)
    set_control(page, "query tile", 0, NAME)
    set_control(page, "row of the tile", 5, NAME)
    expect(stage(page, NAME).locator(".flashkit-readout")).to_contain_text(" of 2")
    step_to(page, 1, NAME)
    assert sentence(page, NAME).startswith("All tiles agree (1)")
    set_control(page, "inputs", "large scores", NAME)
    step_to(page, 0, NAME)
    assert fact(page, "verdict", NAME) == "agrees"


def test_an_unwritten_kernel_shows_ours_and_says_so(open_notebook):
    stub = "def flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32):\n"
    page = open_notebook([IMPORT, f"{stub}    raise NotImplementedError", SHOW])
    assert sentence(page, NAME).startswith("Your flash_attention is not written yet")
    assert page.locator(".jp-OutputArea-output[data-mime-type*=stderr]").count() == 0
    screenshot(page, "kernel-unwritten", NAME)
