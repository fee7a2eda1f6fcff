"""Marks as tables for the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a table of other things needs no nbgrader
    from autograder.grading import Outcome


def marks_table(outcomes: list["Outcome"]) -> str:
    """One row a student, one column an exercise."""
    exercises = list(dict.fromkeys(e for o in outcomes if o.mark for e in o.mark.exercises))
    rows = [["student", *exercises, "points", "of", ""]]
    for done in outcomes:
        if done.mark is None:
            rows.append(
                [done.student, *["-"] * (len(exercises) + 2), f"not graded: {done.reason}"]
            )
            continue
        points = [f"{done.mark.exercises[exercise]:g}" for exercise in exercises]
        total = [f"{done.mark.score:g}", f"{done.mark.max_score:g}"]
        review = f"needs review: {done.reason}".strip(": ") if done.mark.needs_review else ""
        rows.append([done.student, *points, *total, review])
    return aligned(rows)


def attention_table(outcomes: list["Outcome"]) -> str:
    """Who needs a person and why, one row a reason; "" where nobody does."""
    rows = []
    for done in outcomes:
        why = [f"not graded: {done.reason}"] if done.mark is None else list(done.attention)
        if done.mark and done.mark.needs_review and not why:
            why = [f"nbgrader asks for a mark by hand: {done.reason}"]
        rows += [[done.student, reason] for reason in why]
    return aligned([["needs a person", "why"], *rows]) if rows else ""


def demo_table(outcomes: list["Outcome"]) -> str:
    """One row a sample student, one column a lesson."""
    lessons = list(dict.fromkeys(done.lesson for done in outcomes))
    students = list(dict.fromkeys(done.student for done in outcomes))
    marks = {(done.student, done.lesson): done.mark for done in outcomes}
    rows = [["submission", *lessons]]
    for student in students:
        found = [marks.get((student, lesson)) for lesson in lessons]
        rows.append([student, *(f"{m.score:g} / {m.max_score:g}" if m else "-" for m in found)])
    return aligned(rows)


def aligned(rows: list[list[str]]) -> str:
    """`rows` with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(line).rstrip() for line in lines)
