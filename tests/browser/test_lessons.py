"""Does each lesson run whole in JupyterLab, and can it be read where nothing runs?"""

import re
from pathlib import Path

import pytest
from pages import OUTPUT, PATIENCE
from playwright.sync_api import expect

SOURCES = sorted((Path(__file__).parents[2] / "solutions").glob("0*/*.py"))
WHOLE_PAGE = {"width": 1180, "height": 20_000}  # JupyterLab leaves out what is below the fold
ERRORS = "[data-mime-type='application/vnd.jupyter.stderr'], [data-mime-type$='.error']"


def explorers_in(source: Path) -> int:
    """How many cells of a lesson end in an explorer."""
    return len(re.findall(r"(?m)^\w+_explorer\(", source.read_text(encoding="utf-8")))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_runs_and_draws_every_explorer(open_notebook, page, source):
    page.set_viewport_size(WHOLE_PAGE)
    open_notebook(f"{source.stem}/{source.stem}.ipynb")
    assert page.locator(ERRORS).count() == 0
    stages = page.locator(".flashkit-stage")
    expect(stages).to_have_count(explorers_in(source), timeout=PATIENCE)
    for place, stage in enumerate(stages.all(), start=1):
        assert stage.get_by_role("alert").inner_text() == ""
        assert stage.locator("figure svg, figure .fk-lines").count() > 0
        sentence = stage.locator(".flashkit-sentence")
        stage.focus()
        page.keyboard.press("Home")
        first = sentence.inner_text()
        page.keyboard.press("ArrowRight")
        expect(sentence).not_to_have_text(first)
        OUTPUT.mkdir(exist_ok=True)
        stage.screenshot(path=OUTPUT / f"lesson-{source.stem}-{place}.png")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_reads_without_a_run_and_without_trust(open_notebook, page, source):
    """A notebook that somebody sent: its outputs are shown, and none of its code has run."""
    page.set_viewport_size(WHOLE_PAGE)
    open_notebook(f"{source.stem}/{source.stem}.ipynb", run=False)
    tables = page.locator(".jp-OutputArea-output table").filter(has_text=re.compile(r"\d"))
    expect(tables).to_have_count(explorers_in(source), timeout=PATIENCE)
    assert page.locator(".flashkit-stage").count() == 0
    assert page.get_by_text("model not found").count() == 0
