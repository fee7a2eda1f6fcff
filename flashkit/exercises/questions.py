"""Questions with one right letter: the notebook records the choice, the grader marks it."""

from flashkit.exercises.judge import failed, malformed, passed
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.values import describe

LETTERS = "abcd"
_RECORDED = Case("the answer is one of the options", "an answer that names no option")


def question(number: int, lesson: str, title: str) -> Exercise:
    """The exercise of question `number`, worth one point, answered by answer_<number>()."""
    return Exercise(
        id=f"question_{number}",
        lesson=lesson,
        title=title,
        function=f"answer_{number}",
        points=1,
        signature=f"answer_{number}() -> str",
        returns=f"one of the letters {', '.join(LETTERS)} as a string",
        public=(_RECORDED,),
        build=lambda case, seed: [{}],
        judge=_judge,
        public_counts=False,
        note="recorded; marked when graded.",
    )


def _judge(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    letter = value.strip().lower() if isinstance(value, str) else ""
    if len(letter) != 1 or letter not in LETTERS:
        return malformed(exercise, case, describe(value))
    if letter != case.params.get("right", letter):
        return failed(case, f"{letter} is not the right answer.")
    return passed(case)
