"""A JupyterLab of its own for the browser tests, on a copy of the lessons, and pages in it."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from server import ROOT, Lab, start, stop, wait_for

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
NEWS = "@jupyterlab/apputils-extension:announcements"


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by mark
def pytest_collection_modifyitems(items):
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


def pytest_runtest_setup(item):
    """Skip by name where there is no browser."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (Debian and Ubuntu: apt-get install chromium)")


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    """The system's chromium; without its sandbox, which root and containers do not have."""
    return browser_type_launch_args | {"executable_path": CHROMIUM, "args": ["--no-sandbox"]}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args):
    """A tall window: JupyterLab leaves out what is below the fold."""
    return browser_context_args | {"viewport": {"width": 1180, "height": 2400}}


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the lessons, with folders of its own; stopped afterwards."""
    home = tmp_path_factory.mktemp("lab")
    for lesson in (ROOT / "solutions").glob("*/*.ipynb"):
        (home / "root" / lesson.parent.name).mkdir(parents=True)
        shutil.copy(lesson, home / "root" / lesson.parent.name)
    (home / "config" / "labconfig").mkdir(parents=True)
    page = {"disabledExtensions": {NEWS: True}}
    (home / "config" / "labconfig" / "page_config.json").write_text(json.dumps(page))
    process = start(home)
    try:
        yield wait_for(process, home)
    finally:
        stop(process)


@pytest.fixture
def open_notebook(lab, page):
    """A function: a list of code cells, or a lesson's path such as "01_x/01_x.ipynb" -> its page,
    all cells run. `theme` is "light" or "dark"; with `run=False` nothing is run.
    """
    from pages import PATIENCE, run_all

    def open_page(cells, theme: str = "light", run: bool = True):
        path = cells if isinstance(cells, str) else written(lab, cells)
        settings = json.dumps({"theme": THEMES[theme]})
        kind = "@jupyterlab/apputils-extension:themes"
        lab.ask("PUT", f"/lab/api/settings/{kind}", {"raw": settings})
        page.goto(f"{lab.url}/lab/tree/{path}?token={lab.token}&reset")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=PATIENCE)
        page.keyboard.press("Control+b")  # the file browser takes a third of the width
        if run:
            run_all(page)
        return page

    yield open_page
    for session in lab.ask("GET", "/api/sessions"):
        lab.ask("DELETE", f"/api/sessions/{session['id']}")


def written(lab: Lab, cells: list[str]) -> str:
    """A new notebook of these code cells; gives its path."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    name = f"test{len(list(lab.folder.glob('test*.ipynb')))}.ipynb"
    nbformat.write(notebook, lab.folder / name)
    return name
