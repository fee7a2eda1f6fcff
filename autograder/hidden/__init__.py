"""What the grader asks beyond the public cases; never imported where student code runs."""

from autograder.hidden import lesson1, lesson2, lesson3, lesson4, lesson5, lesson6

_LESSONS = (lesson1, lesson2, lesson3, lesson4, lesson5, lesson6)
HIDDEN = {exercise: cases for lesson in _LESSONS for exercise, cases in lesson.CASES.items()}
"""The further cases of each exercise, by id; exercises without any are judged by public cases."""

EXPLANATIONS = {k: text for lesson in _LESSONS for k, text in lesson.EXPLANATIONS.items()}
"""What the graded report says about each question."""
