"""The panel and its stage in a real JupyterLab: keys, clock, themes, widths, accessibility."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import (
    OUTPUT,
    alert,
    bar,
    explorer,
    fact,
    screenshot,
    sentence,
    set_control,
    stage,
    step_to,
)
from playwright.sync_api import expect

DEMO = """
from flashkit.widgets.panel import Choice, Explorer, Number, Text, numbers
from flashkit.widgets.scene import Bars, Cells, Lines, Step, Tree

def steps(count, scores, kind):
    s = numbers(scores)
    if count == 13:
        raise KeyError("thirteen")
    return [one(i, count, s, kind) for i in range(count)]

def one(i, count, s, kind):
    names = tuple(f"k{j}" for j in range(len(s)))
    kinds = tuple("lit" if j == i else kind if j < i else "dim" for j in range(len(s)))
    m = max(s[: i + 1])
    texts = tuple(f"{x:g}" for x in s)
    bars = Bars("scores", names, tuple(s), kinds, texts, line=m, line_text=f"m = {m:g}")
    decades = tuple(10.0 ** (j + 1) for j in range(len(s)))
    log = Bars("bytes", names, decades, kinds, ("",) * len(s), log=True)
    signs = tuple(tuple("skip" if c > r else "part" if c == r else "full" for c in range(6))
                  for r in range(6))
    looks = {"skip": "dim", "part": "half", "full": "good"}
    tiles = Cells("tiles", tuple(f"q{r}" for r in range(6)), tuple(f"k{c}" for c in range(6)),
                  tuple(tuple("lit" if (r, c) == (i, i) else looks[x] for c, x in enumerate(row))
                        for r, row in enumerate(signs)), signs)
    plain = (("plain",) * 16,) * 16
    shades = tuple(tuple((r * c % 11) / 10 for c in range(16)) for r in range(16))
    matrix = Cells("P", tuple(map(str, range(16))), tuple(map(str, range(16))), plain,
                   (("",) * 16,) * 16, shades, (4, 4))
    lines = Lines("the update with its numbers", (
        f"m     = max({m:g}, {s[i % len(s)]:g}) = {m:g}", "alpha = exp(0 - 1) = 0.3679",
        "l     = 1.3679 * 0.3679 + 1.0498 = 1.5530"), ("lit", "plain", "wrong"))
    tree = Tree("merge", ((.5, 1., "m=2\\nl=1.55", "good"), (.25, .5, "m=1\\nl=1.37", "plain"),
                          (0., 0., "part 0", "plain"), (.33, 0., "part 1", "lit"),
                          (.66, 0., "part 2", "wrong"), (1., 0., "part 3", "half")),
                ((2, 1), (3, 1), (1, 0), (4, 0), (5, 0)))
    facts = (("m", f"{m:g}"), ("alpha", f"{0.5 ** i:.4f}"), ("count", str(count)))
    said = f"Tile {i + 1}: the maximum is {m:g}, so l and a shrink by {0.5 ** i:.4f}."
    return Step(said, facts, (bars, log, lines, tiles, matrix, tree))

kinds = ["plain", "good", "wrong", "half"]
demo = lambda: Explorer("demo", steps, [Number("count", "steps", 4, 1, 16),
    Text("scores", "scores", "0, 1, 2, -1"), Choice("kind", "seen bars", kinds, "plain")])
"""
LIVE = "import ipywidgets; print('live', len(ipywidgets.widgets.widget._instances))"


@pytest.fixture
def demo(open_notebook):
    """A page with one explorer of all kinds of panels."""

    def opened(**options):
        return open_notebook([DEMO, "demo()"], **options)

    return opened


def test_controls_buttons_and_keys(demo):
    page = demo()
    assert fact(page, "alpha") == "1.0000"
    assert bar(page, "scores", "k2") == "2"
    step_to(page, 2)
    assert sentence(page) == "Tile 3: the maximum is 2, so l and a shrink by 0.2500."
    for name, place in (("Back", 2), ("Next", 3), ("Next", 4), ("Next", 4), ("First", 1)):
        # force: at the last step Next says that it is disabled, but it keeps the focus
        stage(page).get_by_role("button", name=name, exact=True).click(force=True)
        expect(stage(page).locator(".flashkit-readout")).to_have_text(f"tile {place} of 4")
    page.keyboard.press("End")
    assert fact(page, "alpha") == "0.1250"
    set_control(page, "steps", 2)
    expect(stage(page).locator(".flashkit-readout")).to_have_text("tile 2 of 2")
    assert stage(page).locator("figure > svg").count() == 5
    assert alert(page) == ""
    set_control(page, "seen bars", "half")
    assert stage(page).locator("rect.fk-half").count()


def test_an_error_is_said_and_the_last_good_picture_stays(demo):
    page = demo()
    set_control(page, "scores", "0, x")
    assert alert(page).startswith("'x' is not a number")
    assert bar(page, "scores", "k2") == "2"
    screenshot(page, "panel-error")
    set_control(page, "scores", "5, 6, 7, <b>8</b>")
    assert "<b>8</b>" in alert(page)
    set_control(page, "scores", "5, 6, 7, 8")
    assert alert(page) == ""
    set_control(page, "steps", 13)
    assert "KeyError: 'thirteen'" in alert(page)


def test_play_walks_to_the_end_and_stops(demo):
    page = demo()
    play = stage(page).get_by_role("button", name="Play", exact=True)
    play.click()
    pause = stage(page).get_by_role("button", name="Pause", exact=True)
    expect(pause).to_be_visible()
    pause.click()
    play.click()
    expect(stage(page).locator(".flashkit-readout")).to_have_text("tile 4 of 4", timeout=15_000)
    expect(play).to_be_visible()


def test_keyboard_alone(demo):
    """From the first control on, Tab reaches everything, and the arrows stay in the explorer."""
    page = demo()
    explorer(page).get_by_label("steps", exact=True).focus()
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label')"
                " ?? document.activeElement.textContent"
            )
        )
    assert "tile" in reached
    assert reached[-4:] == ["First", "Back", "Play", "Next"]
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    expect(stage(page).locator(".flashkit-readout")).to_have_text("tile 3 of 4")
    slider = explorer(page).get_by_role("slider", name="tile")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(stage(page).locator(".flashkit-readout")).to_have_text("tile 2 of 4")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(demo, theme):
    page = demo(theme=theme)
    expect(explorer(page).get_by_role("slider", name="tile")).to_be_visible()
    step_to(page, 1)
    found = Axe().run(page, context=".flashkit-explorer").response["violations"]
    assert [x for x in found if x["impact"] in ("serious", "critical")] == []
    screenshot(page, f"panel-{theme}")


@pytest.mark.parametrize("width", [700, 480])
def test_a_narrow_page_clips_nothing(demo, width):
    page = demo()
    page.set_viewport_size({"width": width, "height": 2400})
    page.wait_for_timeout(300)
    screenshot(page, f"panel-{width}")
    wide = stage(page).evaluate("""(root) => {
        const right = root.getBoundingClientRect().right;
        const all = [root, ...root.querySelectorAll("svg, text, dd, button, .fk-lines")];
        return all.filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth
            || e.getBoundingClientRect().right > right + 1).map((e) => e.outerHTML.slice(0, 120));
    }""")
    assert wide == []
    size = "(e) => e.getBoundingClientRect().height"
    heights = [text.evaluate(size) for text in stage(page).locator("svg text:visible").all()[:9]]
    assert min(heights) >= 12


def test_a_cell_run_ten_times_leaves_one_explorer(open_notebook):
    cells = [DEMO, "demo()", LIVE, *["demo()"] * 9, LIVE]
    page = open_notebook(cells)
    live = page.locator(".jp-OutputArea-output pre", has_text="live").all_inner_texts()
    assert len(live) == 2
    assert live[0] == live[1]


def test_opening_draws_at_once(open_notebook):
    """From the run of the cell to the picture, with the imports made; the time is printed."""
    page = open_notebook([DEMO, "1"])
    page.evaluate("""() => new MutationObserver((_, watch) => {
        if (!document.querySelector(".flashkit-stage svg")) return;
        watch.disconnect();
        window.fkOpened = performance.now();
    }).observe(document.body, { childList: true, subtree: true })""")
    cell = page.locator(".jp-CodeCell").nth(1).locator(".cm-content")
    cell.fill("demo()")
    began = page.evaluate("performance.now()")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("window.fkOpened")
    took = page.evaluate("window.fkOpened") - began
    OUTPUT.mkdir(exist_ok=True)
    (OUTPUT / "opening.txt").write_text(f"{took:.0f} ms from Run to the picture\n")
    print(f"opening: {took:.0f} ms")
    assert stage(page).locator("figure svg").count() > 0
    assert alert(page) == ""
