"""Formgrader's own button gives the marks that the command gives."""

import pytest
from pages import OUTPUT, PATIENCE
from playwright.sync_api import expect
from server import ROOT, start, stop, wait_for

LESSON, STUDENT = "01_worked_example", "wrong"
GRADING = 300_000  # ms: a check is a process, and there may be one core for all of them


@pytest.fixture
def formgrader(tmp_path, monkeypatch):
    """The demonstration course with one submission that is wrong in part, and its server."""
    demo = pytest.importorskip("autograder.demo", reason="needs the extra `grading`")
    from autograder.grading import prepare

    course = demo.set_up(tmp_path / "root")
    prepare(course, LESSON)
    demo.hand_in(course, LESSON, demo.SLIPS[LESSON])
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(course.folder))
    process = start(tmp_path, ROOT)  # Formgrader wants the course's root inside the server's
    try:
        yield course, wait_for(process, tmp_path)
    finally:
        stop(process)


def test_the_button_gives_the_marks_of_the_command(formgrader, page):
    from traitlets.config import Config

    from autograder.gradebook import marks
    from autograder.grading import grade

    course, lab = formgrader
    page.goto(f"{lab.url}/lab?token={lab.token}")  # where the session's cookie comes from
    page.goto(f"{lab.url}/formgrader/manage_submissions/{LESSON}")
    row = page.get_by_role("row").filter(has=page.get_by_text(STUDENT, exact=True))
    expect(row).to_contain_text("needs autograding", timeout=PATIENCE)
    row.locator(".autograde a").click()
    said = page.locator("#success-modal, #error-modal")
    expect(said).to_contain_text("Successfully autograded", timeout=GRADING)
    OUTPUT.mkdir(exist_ok=True)
    page.screenshot(path=OUTPUT / "formgrader.png")

    (clicked,) = marks(course, LESSON, [STUDENT])
    assert 0 < clicked.score < clicked.max_score
    said.get_by_role("button", name="Close").first.click()
    expect(row).to_contain_text(f"{clicked.score:g} / {clicked.max_score:g}", timeout=PATIENCE)
    (ordered,) = grade(course.folder, Config(), [(LESSON, STUDENT)], force=True)
    assert ordered.mark == clicked
