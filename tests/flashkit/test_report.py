"""Does the report tell a student what helps, and of hidden cases nothing that gives them away?"""

import math
import re
from dataclasses import replace

import pytest
import torch

from flashkit.exercises.errormap import GLYPHS, as_html, as_text, error_map
from flashkit.exercises.judge import told_of
from flashkit.exercises.marking import told_of as error_told
from flashkit.exercises.model import CaseResult, StudentError, Verdict
from flashkit.exercises.report import render_html, render_text

PUBLIC = CaseResult(
    "several tiles",
    "a bug",
    kind="wrong",
    message="3 of 9 entries are wrong: wanted 0.25, got 0.75.",
    index=(0, 0, 1, 0),
    tile=1,
    told="33 % of the entries are wrong.",
    map=((0, 2, 4), (1, 3, 0)),
)
SECRET = replace(PUBLIC, name="secret", hidden=True)


def verdict(*cases, **fields):
    return Verdict("flash_attention", 1.0, 12.0, cases, "graded", 7, "cpu", **fields)


def test_a_public_case_shows_its_numbers_and_its_map():
    text, page = render_text(verdict(PUBLIC)), render_html(verdict(PUBLIC))
    for report in (text, page):
        assert "wanted 0.25, got 0.75" in report
        assert "head" in report
    assert "head  0  · O !" in text
    assert "head  1  o # ·" in text
    assert page.count("<td") == 6


def test_a_hidden_case_shows_neither():
    for report in (render_text(verdict(SECRET)), render_html(verdict(SECRET))):
        assert "33 % of the entries are wrong." in report
        assert "first wrong tile of queries: 1" in report
        assert not re.search(r"0\.25|0\.75|3 of 9|head|<td", report)


@pytest.mark.parametrize("kind", ["wrong", "error", "unwritten", "timeout", "died", "skipped"])
def test_a_hidden_case_without_words_of_its_own_gets_ours(kind):
    case = replace(SECRET, kind=kind, told="", message="q is [0.1, 0.2]")
    other = CaseResult("public", kind="wrong", message="wrong")
    assert "0.1" not in render_text(verdict(other, case))


def test_where_the_bug_shows_is_told_beside_its_name():
    seen = "first seen with one query: tile 0 of the queries, row 0, head 0"
    report = render_text(verdict(PUBLIC, bug="no_max", seen=seen))
    assert "never subtracted" in report
    assert f"It was {seen}." in report


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StudentError("ValueError", "q is 0.123", line=7), "ValueError in line 7."),
        (StudentError("Leak_0_123", "x", line=7), "An exception in line 7."),
        (StudentError("print", "x"), "An exception."),
        (StudentError("IndexError", "x", line=10**9), "IndexError."),
    ],
)
def test_an_exception_on_a_hidden_case_carries_nothing_out(error, told):
    assert error_told(error) == told


def test_our_own_hint_is_kept():
    error = StudentError("TypeError", "f() takes 2 positional arguments 0.123", hint="0.123")
    assert error_told(error).startswith("TypeError. The parameters do not fit")
    assert "0.123" not in error_told(error)


def test_the_error_in_words():
    assert told_of(1.0, math.inf).endswith("the largest error is not a finite number.")
    assert told_of(0.001, 3.0).startswith("1 % of the entries are wrong")


def test_the_map_has_a_row_for_each_head_and_a_column_for_each_tile():
    want = torch.zeros(1, 2, 40, 4, dtype=torch.float64)
    got = want.float()
    got[0, 0, 16, 1] = 0.5  # 5 times the limit
    got[0, 1, 39, 0] = torch.nan
    got[0, 1, 0, 0] = 50.0
    limit = torch.full((1, 2, 40, 1), 0.1)
    assert error_map(got, want, limit, 16) == ((0, 1, 0), (2, 0, 4))
    assert error_map(got[0], want[0], limit[0], 16) == ()


def test_the_map_does_not_tell_by_colour_alone():
    levels = (tuple(range(5)),)
    page = as_html(levels)
    assert all(f">{glyph}</td>" in page for glyph in GLYPHS)
    assert all(glyph in as_text(levels)[1] for glyph in GLYPHS)
    assert not re.search(r"https?:|<script", page)


def test_a_map_goes_to_json_and_back_and_old_records_load():
    result = verdict(PUBLIC, SECRET)
    assert Verdict.from_json(result.to_json()) == result
    old = result.to_json()
    for name in ("map", "told", "hidden"):
        old = re.sub(rf', "{name}": (\[\[.*?\]\]|\[\]|"[^"]*"|true|false)', "", old)
    assert '"map"' not in old
    assert Verdict.from_json(old).cases[0].map == ()
