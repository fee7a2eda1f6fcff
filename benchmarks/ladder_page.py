"""Makes the tables and the pictures of docs/ladder.md from the results it names.

    cd benchmarks/results
    python ../ladder_page.py 2026-12-01-h200-ladder.csv 2026-12-01-h200-quick.csv

Needs no GPU, but chromium for the pictures. The tables name their files themselves.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from flashkit.bench.ladder import LADDERS
from flashkit.bench.page import filled
from flashkit.bench.rows import read
from flashkit.widgets import figures

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "ladder.md"


PICTURED = {"forward": "ladder", "backward": "ladder-backward", "decode": "ladder-decode"}


def pictures(ladder: Path, quick: Path) -> dict[str, object]:
    """The figures by the name of their file."""
    rungs = read(ladder)[2]
    drawn = {
        file: figures.ladder(LADDERS[name].rungs, LADDERS[name].shapes[0], rungs)
        for name, file in PICTURED.items()
    }
    _, ceilings, rows = read(quick)
    return drawn | {
        "speed-forward": figures.forward_speed(rows, ceilings, 128),
        "speed-backward": figures.backward_speed(rows, ceilings, 128),
        "speed-decode": figures.decode_speed(rows, ceilings),
    }


def draw(drawn: dict[str, object], folder: Path) -> None:
    """One PNG a figure, at twice the size, without a background."""
    with sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(device_scale_factor=2)
        for name, figure in drawn.items():
            page.set_content(figure.to_html(include_plotlyjs=True, config={"staticPlot": True}))
            plot = page.locator(".plotly-graph-div")
            plot.locator(".main-svg").first.wait_for()
            plot.screenshot(path=folder / f"{name}.png", omit_background=True)
        browser.close()


def main(*files: str) -> None:
    """Write the pictures, then the page."""
    draw(pictures(*map(Path, files)), ROOT / "docs" / "images")
    PAGE.write_text(filled(PAGE.read_text(), ROOT))


if __name__ == "__main__":
    main(*sys.argv[1:])
