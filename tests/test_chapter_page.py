"""docs/chapter.md keeps its word: every cell is filled, and all that it names exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "chapter.md").read_text()
HEADER = ["promise", "code", "lesson", "test"]


def rows() -> list[list[str]]:
    """The cells of each row of each table, without the headers."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in found if row != HEADER and not set(row[0]) <= set("|- ")]


def named(dotted: str) -> object:
    """The module, or the attribute of one, that a dotted name stands for."""
    parts = dotted.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[n:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(dotted)


def headings(lesson: str) -> set[str]:
    (source,) = (ROOT / "solutions").glob(f"0{lesson}_*/*.py")
    return set(re.findall(r"^# #+ (.+)$", source.read_text(), re.M))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_a_promise_has_its_code_its_lesson_and_its_test(row):
    assert len(row) == len(HEADER), f"{row} must have a cell for each of {HEADER}"
    assert all(row), f"an empty cell in {row}"
    _, code, place, test = row
    assert named(code.strip("`")) is not None
    lesson, heading = place.split(": ", 1)
    assert heading in headings(lesson), f"lesson {lesson} has no heading {heading!r}"
    file, function = test.strip("`").split("::")
    path = ROOT / (file if "/" in file else f"tests/flashkit/{file}")
    tests = [x.name for x in ast.walk(ast.parse(path.read_text())) if hasattr(x, "name")]
    assert function in tests, f"{path.name} has no {function}"


def test_all_exercises_and_questions_have_their_place():
    promises = "\n".join(row[0] for row in rows())
    for n in range(1, 5):
        assert f"Exercise {n} ★" in promises
        assert f"Question {n}:" in promises


def test_the_reading_list_is_whole():
    (source,) = (ROOT / "solutions").glob("06_*/*.py")
    deeper = source.read_text().split("# ## Going deeper")[1]
    works = ["20.5", "20.6", "12 (", "13 (", "36 (", "*FlashAttention* (2022)"]
    works += ["*FlashAttention-2* (2023)", "(2024)", "Milakov and Gimelshein", "*Fused Attention*"]
    assert [work for work in works if work not in " ".join(deeper.split("#"))] == []
