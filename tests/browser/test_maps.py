"""The tile map and the attention matrix in a real JupyterLab: controls move what is counted."""

from functools import partial

import pytest
from pages import alert, fact, screenshot, sentence, set_control, stage, step_to

from flashkit import cost
from flashkit.faults import faulty_attention
from flashkit.widgets.explorers import attention_steps

IMPORT = "from flashkit.widgets.explorers import attention_explorer, tile_map_explorer"
BOUNDS = """
from flashkit import cost
def tile_bounds(i, t, s, offset, block_m, block_n, causal=True, window=None):
    return cost.tile_bounds(i, t, s, 0, block_m, block_n, causal, window)  # no offset
"""
KERNEL = """
from functools import partial
from flashkit.faults import faulty_attention
flash_attention = partial(faulty_attention, "bound_without_offset")
"""
STUB = """
def tile_bounds(i, t, s, offset, block_m, block_n, causal=True, window=None):
    raise NotImplementedError
"""


def counts(page) -> dict[str, int]:
    """The tiles of each kind, as the page says."""
    return {kind: int(fact(page, kind)) for kind in ("skip", "partial", "full")}


def signs(page) -> list[str]:
    """What is written in the cells of the first panel, row by row."""
    return stage(page).locator("figure").first.locator("[data-cell]").all_text_contents()


def test_every_control_of_the_tile_map_moves_the_counts(open_notebook):
    page = open_notebook([IMPORT, "tile_map_explorer(64, 64)"])
    problem = {"t": 64, "s": 64, "offset": 0, "block_m": 16, "block_n": 16}
    assert counts(page) == cost.tile_counts(**problem)
    moves = [
        ("T", "t", 40), ("S", "s", 70), ("offset", "offset", 30),
        ("window (0: none)", "window", 24), ("BLOCK_M", "block_m", 8), ("BLOCK_N", "block_n", 32),
    ]  # fmt: skip
    for label, name, value in moves:
        set_control(page, label, value)
        problem[name] = value
        assert counts(page) == cost.tile_counts(**problem), label
    set_control(page, "causal", "no")
    assert counts(page) == cost.tile_counts(**problem, causal=False)
    step_to(page, 2)
    first, stop = cost.tile_bounds(2, **problem, causal=False)
    assert (fact(page, "first"), fact(page, "stop")) == (str(first), str(stop))
    set_control(page, "T", 4000)
    assert "too many to draw" in alert(page)
    set_control(page, "T", 40)
    assert alert(page) == ""


def test_the_learners_bounds_are_drawn_over_the_truth(open_notebook):
    page = open_notebook(
        [BOUNDS, f"{IMPORT}\ntile_map_explorer(40, 70, 30, window=24, bounds=tile_bounds)"]
    )
    step_to(page, 1)
    assert fact(page, "wrong query tiles") == "3 of 3"
    assert "visits key tile 0 for nothing and it leaves out key tiles 2 and 3" in sentence(page)
    assert signs(page)[5:10] == ["[+", "◪)", "−", "−", "·"]
    assert stage(page).locator("rect.fk-wrong").count() == 9
    set_control(page, "offset", 0)
    assert fact(page, "wrong query tiles") == "0 of 3"
    assert stage(page).locator("rect.fk-wrong").count() == 0


def test_an_unwritten_function_is_a_sentence_on_the_page(open_notebook):
    page = open_notebook([STUB, f"{IMPORT}\ntile_map_explorer(bounds=tile_bounds)"])
    assert "Your tile_bounds is not written yet." in sentence(page)
    assert counts(page) == cost.tile_counts(64, 64, 0, 16, 16)


def test_the_attention_of_a_wrong_kernel_names_its_first_wrong_tile(open_notebook):
    page = open_notebook([KERNEL, f"{IMPORT}\nattention_explorer(flash_attention)"])
    want = attention_steps(partial(faulty_attention, "bound_without_offset"))
    assert sentence(page) == want[0].sentence
    assert fact(page, "first wrong tile") == dict(want[0].facts)["first wrong tile"]
    assert fact(page, "looks like") == "bound_without_offset"
    set_control(page, "kernel", "flashkit's")
    assert fact(page, "first wrong tile") == "none"
    set_control(page, "kernel", "yours")
    set_control(page, "offset", 0)
    assert fact(page, "first wrong tile") == "none", "without an offset nobody can see this bug"
    set_control(page, "S", 20)
    set_control(page, "T", 20)
    step_to(page, 1)
    assert fact(page, "rows") == "16 to 19"


CALLS = {
    "tile-map": "tile_map_explorer(96, 96, window=40)",
    "bounds": f"{BOUNDS}\ntile_map_explorer(40, 70, 30, window=24, bounds=tile_bounds)",
    "attention": f"{KERNEL}\nattention_explorer(flash_attention)",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", CALLS)
def test_screenshots(open_notebook, name, theme):
    page = open_notebook([f"{IMPORT}\n{CALLS[name]}"], theme=theme)
    step_to(page, 1)
    assert screenshot(page, f"maps-{name}-{theme}").stat().st_size > 10_000
