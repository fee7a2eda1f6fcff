"""What a reader does on a page, for the browser tests: read a fact, move a step, set a control."""

from pathlib import Path

from playwright.sync_api import Locator, Page, expect

OUTPUT = Path(__file__).parent / "output"  # screenshots and tables; not in git
PATIENCE = 60_000  # milliseconds; a kernel starts slowly on a busy machine


def stage(page: Page, name: str | None = None) -> Locator:
    """The stage of the explorer `name`, or the only one."""
    if name is None:
        return page.locator(".flashkit-stage").first
    return page.get_by_role("group", name=name, exact=True)


def fact(page: Page, fact_name: str, name: str | None = None) -> str:
    """The value that the explorer shows for a fact."""
    return stage(page, name).locator(f'[data-fact="{fact_name}"]').inner_text()


def bar(page: Page, title: str, label: str, name: str | None = None) -> str:
    """The number printed at a bar."""
    return stage(page, name).locator(f'[data-bar="{title}/{label}"]').text_content()


def sentence(page: Page, name: str | None = None) -> str:
    """The sentence of the step shown."""
    return stage(page, name).locator(".flashkit-sentence").inner_text()


def alert(page: Page, name: str | None = None) -> str:
    """What the explorer says is wrong; "" if nothing is."""
    return stage(page, name).get_by_role("alert").inner_text()


def step_to(page: Page, index: int, name: str | None = None) -> None:
    """Go to a step, counted from 0, with the keyboard."""
    here = stage(page, name)
    here.focus()
    page.keyboard.press("Home")
    for _ in range(index):
        page.keyboard.press("ArrowRight")
    expect(here.locator(".flashkit-readout")).to_contain_text(f" {index + 1} of ")


def set_control(page: Page, label: str, value, name: str | None = None) -> None:
    """Type or choose a value, as a reader does, and wait until the kernel has answered."""
    here = stage(page, name)
    control = explorer(page, name).locator("input, select")
    control = control.and_(page.get_by_label(label, exact=True))
    before = here.get_attribute("data-revision")
    if control.evaluate("e => e.tagName") == "SELECT":
        if control.evaluate("e => e.selectedOptions[0]?.label") == str(value):
            return
        control.select_option(label=str(value))
    else:
        if control.input_value() == str(value):
            return
        control.fill(str(value))
        control.press("Enter")
    expect(here).not_to_have_attribute("data-revision", before, timeout=PATIENCE)


def explorer(page: Page, name: str | None = None) -> Locator:
    """The whole explorer: controls, slider and stage."""
    return page.locator(".flashkit-explorer").filter(has=stage(page, name)).first


def screenshot(page: Page, title: str, name: str | None = None) -> Path:
    """A picture of the explorer in the folder of the tests' output."""
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / f"{title}.png"
    explorer(page, name).screenshot(path=path)
    return path


def run_all(page: Page) -> None:
    """Run all cells of the open notebook and wait for the last one."""
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=PATIENCE)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(
        """() => {
            const prompts = [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")];
            return prompts.length && prompts.every((e) => /\\[\\d+\\]:/.test(e.textContent));
        }""",
        timeout=5 * PATIENCE,
    )
