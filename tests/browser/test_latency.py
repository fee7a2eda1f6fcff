"""How long is it from a key to the changed picture, in each explorer?"""

import statistics

import pytest
from pages import OUTPUT, explorer, stage, step_to

CALLS = {
    "tile": "tile_explorer([0, 1, 2, -1, 3, 0, 1, 2], [2, 4, 1, 3, 2, 1, 0, 5], tile=1)",
    "score matrix": "score_matrix_explorer()",
    "tile map": "tile_map_explorer(160, 160)",
    "kernel": "kernel_explorer(flashkit.flash_attention)",
    "attention": "attention_explorer()",
    "split": "split_explorer(batch=1, kv_heads=8)",
    "merge": 'merge_explorer("0, 1, 2, -1, 3, 0, 1, 2", "2, 4, 1, 3, 2, 1, 0, 5", parts=8)',
}
IMPORTS = "import flashkit\nfrom flashkit.widgets.explorers import *\n"
PRESSES = 30

CLOCK = """() => {
    const sentence = document.querySelector(".flashkit-sentence");
    window.fkTimes = [];
    let pressed = 0;
    document.addEventListener("keydown", (event) => { pressed = event.timeStamp; }, true);
    new MutationObserver(() => requestAnimationFrame(() => setTimeout(() => {
        window.fkTimes.push(performance.now() - pressed);
    }))).observe(sentence, { childList: true, characterData: true, subtree: true });
}"""


def times_of(page, target) -> list[float]:
    """Milliseconds from each of PRESSES presses of an arrow key to the frame that shows it."""
    page.evaluate("window.fkTimes.length = 0")
    target.focus()
    for press in range(PRESSES):
        page.keyboard.press("ArrowLeft" if press % 2 else "ArrowRight")
        page.wait_for_function("n => window.fkTimes.length >= n", arg=press + 1)
    return page.evaluate("window.fkTimes")


@pytest.mark.parametrize("name", CALLS)
def test_latency_from_key_to_picture(open_notebook, name):
    """Every press must change the page; how fast is printed and kept, as nothing is said of the
    machine that this runs on.
    """
    page = open_notebook([IMPORTS + CALLS[name]])
    page.evaluate(CLOCK)
    slider = explorer(page).get_by_role("slider").last
    OUTPUT.mkdir(exist_ok=True)
    for where, target in (("stage", stage(page)), ("slider", slider)):
        step_to(page, 0)
        times = times_of(page, target)
        median, high = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        row = f"{name:13} {where:7} median {median:6.1f} ms, 95th percentile {high:6.1f} ms"
        with (OUTPUT / "latency.txt").open("a") as table:
            print(row, file=table)
        print(row)
        assert len(times) == PRESSES
