"""The explorers of costs in a real JupyterLab: controls move the numbers on the page."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import bar, explorer, fact, screenshot, sentence, set_control, stage, step_to
from playwright.sync_api import expect

from flashkit import cost
from flashkit.widgets import explorers
from flashkit.widgets.wording import size

IMPORT = "from flashkit.widgets import explorers"
CLIPPED = """(root) => [...root.querySelectorAll("svg text:not(.fk-hidden), dd, button")]
    .filter((e) => !e.closest("figure[tabindex]"))  // a panel that scrolls may be wider
    .filter((e) => e.getBoundingClientRect().right > root.getBoundingClientRect().right + 1)
    .map((e) => e.textContent)"""
H200, T4 = cost.DEVICES["H200"], cost.DEVICES["T4"]


def shown(page) -> dict[str, str]:
    """All facts on the page, by name."""
    pairs = explorer(page).locator("[data-fact]")
    return dict(pairs.evaluate_all("all => all.map(e => [e.dataset.fact, e.innerText])"))


def test_the_score_matrix_follows_its_controls(open_notebook):
    page = open_notebook([IMPORT, "explorers.score_matrix_explorer()"])
    assert fact(page, "S and P, all heads") == "128 GiB"
    step_to(page, 4)
    assert fact(page, "T") == "16,384"
    assert fact(page, "fits") == "no"
    set_control(page, "heads", 8)
    assert fact(page, "fits") == "yes"  # a quarter of the heads buys one step
    set_control(page, "dtype", "float16 or bfloat16")
    set_control(page, "head dim", 128)
    set_control(page, "BLOCK_M", 64)
    set_control(page, "device", "T4")
    want = explorers.score_matrix_steps(8, 8, 2, 128, 64, T4)[4]
    assert shown(page) == dict(want.facts)
    assert sentence(page) == want.sentence
    moved = want.panels[1]
    assert bar(page, moved.title, "tiled") == size(moved.values[-1])
    set_control(page, "device", "own numbers")
    set_control(page, "own GB of memory", 1000)
    assert "the memory of the machine you described is 931.3 GiB" in sentence(page)


def test_the_split_follows_its_controls(open_notebook):
    page = open_notebook([IMPORT, "explorers.split_explorer(batch=1, kv_heads=8)"])
    assert "8 programs on 132 SMs: 124 stand idle" in sentence(page)
    step_to(page, 5)
    assert shown(page) == dict(explorers.split_steps(1, 8, 8192, H200)[5].facts)
    assert bar(page, "Programs for each num_splits, log scale", "32") == "256"
    set_control(page, "batch", 3)
    set_control(page, "KV heads", 5)
    set_control(page, "S", 4000)
    set_control(page, "device", "T4")
    for grouping in ("left to right", "right to left"):
        set_control(page, "grouping", grouping)
        want = explorers.split_steps(3, 5, 4000, T4, grouping)[5]
        assert shown(page) == dict(want.facts)
        assert sentence(page) == want.sentence
        assert fact(page, "O of the example") == "1.8619"
        tree = explorer(page).locator("svg").last
        assert tree.locator("rect.fk-node").count() == 15


def test_the_merge_follows_its_controls(open_notebook):
    page = open_notebook([IMPORT, "explorers.merge_explorer()"])
    step_to(page, 3)
    assert fact(page, "a / l") == "1.8619"
    set_control(page, "grouping", "right to left")
    assert fact(page, "a / l") == "1.8619"
    assert "key 0 with keys 1–3" in sentence(page)
    set_control(page, "scores", "0, 0, 0, 0")
    assert fact(page, "a / l") == "2.5000"
    set_control(page, "parts", 2)
    assert "keys 0–1 with keys 2–3" in sentence(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_look(open_notebook, theme):
    """All three, in pictures; nothing serious for axe, and nothing clipped at 700 px."""
    calls = ["score_matrix_explorer()", "split_explorer()", "merge_explorer()"]
    page = open_notebook([IMPORT, *(f"explorers.{call}" for call in calls)], theme=theme)
    names = {"score matrix, all": 5, "split": 5, "merge": 3}
    pictures = {"score matrix, all": 3, "split": 4, "merge": 1}  # and a panel of lines
    for name, step in names.items():
        step_to(page, step, name)
        expect(stage(page, name).locator("svg")).to_have_count(pictures[name])
        screenshot(page, f"costs-{name.split()[0]}-{theme}", name)
    found = Axe().run(page, context=".flashkit-explorer").response["violations"]
    assert [x for x in found if x["impact"] in ("serious", "critical")] == []
    page.set_viewport_size({"width": 700, "height": 4000})
    page.wait_for_timeout(300)
    for name in names:
        assert stage(page, name).evaluate(CLIPPED) == []
        screenshot(page, f"costs-{name.split()[0]}-{theme}-700", name)
