"""Is the feedback page small, self-contained, and silent about what is hidden?"""

import re
from dataclasses import replace

import nbformat
import pytest
from submissions import cell, hand_in, right

from autograder.cli import main
from autograder.execute import record, render
from autograder.feedback import feedback
from autograder.hidden import EXPLANATIONS, HIDDEN
from flashkit.exercises import EXERCISES
from flashkit.exercises.marking import points, run_case
from flashkit.exercises.model import Answer, Verdict

LIMIT = 200_000


@pytest.fixture
def page(course):
    """The feedback page of a submission whose first answer is wrong, and a marker in it."""
    nb = right(course)
    cell(nb, "double").source = "def double(x):\n    return 3 * x  # <script>alert(1)</script>"
    hand_in(course, "ada", nb)
    assert main(["--course", str(course.folder), "grade", "tiny", "--jobs", "1"]) == 0
    (path,) = feedback(course, "tiny", ["ada"])
    return path.read_text(encoding="utf-8")


def test_the_page_loads_nothing_runs_nothing_and_is_small(page):
    assert len(page.encode()) < 20_000
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?://", page)
    assert "default-src 'none'" in page


def test_the_page_has_the_marks_the_report_and_the_answer(page):
    assert "3.0 of 5.0 points" in page
    assert "double: 0.0 of 2.0" in page
    assert "wanted 4, got 6" in page
    assert "return 3 * x  # &lt;script&gt;" in page


def failing(exercise):
    """A verdict on an exercise in which every hidden case fails in the loudest way."""
    public = {case.name for case in exercise.public}
    results = []
    for case in (*exercise.public, *HIDDEN.get(exercise.id, ())):
        result = run_case(exercise, case, 5, lambda inputs: Answer(value=nothing_like(inputs)))
        results.append(replace(result, hidden=case.name not in public))
    return Verdict(
        exercise.id,
        points(exercise, results),
        exercise.points,
        tuple(results),
        "graded",
        77123,
        "cpu",
    )


def nothing_like(inputs):
    """An answer of the likely shape, and its own inputs where there is none."""
    q = inputs.get("q")
    return str(inputs)[:2000] if q is None else q * 0 + 0.123456


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_no_number_of_a_hidden_case_is_told(exercise):
    verdict = failing(exercise)
    page, text = render(verdict, "")
    hidden = [case for case in verdict.cases if case.hidden and not case.passed]
    for report in (page, text):
        assert "77123" not in report
        for case in hidden:
            assert case.message not in report or shown(verdict, case.message)
            for number in (case.wanted, case.got):
                assert not number or number not in report or shown(verdict, number)


def shown(verdict, number):
    """Whether a public case tells the same number."""
    return any(number in case.message for case in verdict.cases if not case.hidden)


def test_a_page_of_a_real_lesson_is_small():
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("check('flash_attention')")])
    verdict = failing(EXERCISES["flash_attention"])
    record(nb.cells[0], 1, verdict, render(verdict, ""))
    assert len(nb.cells[0].outputs[0].data["text/html"]) < LIMIT / 10


def test_questions_are_explained_only_where_they_are_graded():
    verdict = failing(EXERCISES["question_1"])
    assert EXPLANATIONS["question_1"] not in render(verdict, "")[0]
