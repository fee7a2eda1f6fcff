"""Lesson 1, the worked example: two tiles by hand, the update for one row, two questions."""

import functools
import math

import torch

from flashkit.exercises import probes
from flashkit.exercises.judge import failed, judge_parts, malformed, number, passed
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.questions import question
from flashkit.exercises.values import describe
from flashkit.faults import faulty_update, variants
from flashkit.online import EMPTY, State, update

LESSON = "01_worked_example"
RESCALING = ("l_not_rescaled", "acc_not_rescaled", "nothing_rescaled", "alpha_inverted")
SCORES, VALUES = torch.tensor([0.0, 1.0, 2.0, -1.0]), torch.tensor([2.0, 4.0, 1.0, 3.0])
PREDICT_SCORES = torch.tensor([1.0, 3.0, 5.0, 2.0])
PREDICT_VALUES = torch.tensor([2.0, 1.0, 3.0, 5.0])
FORGOTTEN = ("a", "both", "l")
"""What was not rescaled in each of `wrong_outputs()`."""
_FAULT_OF = {"a": "acc_not_rescaled", "both": "nothing_rescaled", "l": "l_not_rescaled"}


def _both_tiles(step, scores: torch.Tensor, values: torch.Tensor) -> list[State]:
    """The states after tile 1 and tile 2 of a row of four, two by two; step is one update."""
    values, states = values[:, None], [State(EMPTY.m, EMPTY.l, torch.zeros(1))]
    for tile in (slice(0, 2), slice(2, 4)):
        states.append(State(*step(states[-1], scores[tile], values[tile])))
    return states[1:]


def wrong_outputs() -> list[float]:
    """What the chapter's worked example gives when a rescale is forgotten, as FORGOTTEN says."""
    outputs = []
    for what in FORGOTTEN:
        step = functools.partial(_wrong_step, _FAULT_OF[what])
        final = _both_tiles(step, SCORES, VALUES)[-1]
        outputs.append(float(final.a / final.l))
    return outputs


def _wrong_step(fault: str, state: State, scores: torch.Tensor, values: torch.Tensor):
    return faulty_update(fault, *state, scores, values)


def _predicted(fault: str | None = None) -> dict[str, float]:
    """alpha, l and a after the second tile, right or with a bug."""
    step = functools.partial(_wrong_step, fault) if fault else update
    first, second = _both_tiles(step, PREDICT_SCORES, PREDICT_VALUES)
    rise = float(second.m - first.m)
    alpha = math.exp(rise if fault == "alpha_inverted" else -rise)
    return {"alpha": alpha, "l": float(second.l), "a": float(second.a)}


def _judge_prediction(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    key = case.params["key"]
    got = number(value.get(key)) if isinstance(value, dict) else None
    if got is None:
        return malformed(exercise, case, describe(value))
    if _near(got, _predicted()[key]):
        return passed(case)
    bugs = tuple(bug for bug in exercise.faults if _near(got, _predicted(bug)[key]))
    return failed(case, f"{key} = {got:g} is not right.", got=f"{got:g}", bugs=bugs)


def _near(got: float, wanted: float) -> bool:
    """Four decimals were asked for, and rounding on the way is forgiven."""
    return abs(got - wanted) < 1e-3


def _judge_forgotten(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    names = value if isinstance(value, (list, tuple)) else ()
    if len(names) != len(FORGOTTEN) or any(name not in FORGOTTEN for name in map(_word, names)):
        return malformed(exercise, case, describe(value))
    which = case.params["which"]
    if _word(names[which]) == FORGOTTEN[which]:
        return passed(case)
    shown = wrong_outputs()[which]
    return failed(case, f'Forgetting "{_word(names[which])}" does not give {shown:.4f}.')


def _word(name) -> str:
    return name.strip().lower() if isinstance(name, str) else ""


def _update_calls(case: Case, seed: int) -> list[Inputs]:
    """A state after `seen` keys (none if 0) and a tile of N scores around `level`."""
    p = {"N": 5, "D": 3, "seen": 6, "level": 0.0, "old_level": 0.0, "spread": 1.0, **case.params}
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(p["seen"] + 1, generator=generator) + p["old_level"]
    old_values = torch.randn(p["seen"] + 1, p["D"], generator=generator)
    scores = p["spread"] * torch.randn(p["N"], generator=generator) + p["level"]
    values = torch.randn(p["N"], p["D"], generator=generator)
    state = State(EMPTY.m.clone(), EMPTY.l.clone(), torch.zeros(p["D"]))
    if p["seen"]:
        state = update(state, old[1:], old_values[1:])
    return [{**state._asdict(), "scores": scores, "values": values}]


def _updated(inputs: Inputs, dtype: torch.dtype) -> State:
    m, l, a, scores, values = (x.to(dtype) for x in inputs.values())
    return update(State(m, l, a), scores, values)


def _faulty_updates(fault: str, case: Case, inputs: Inputs) -> list:
    return [faulty_update(fault, *inputs.values(), variant) for variant in range(variants(fault))]


def _judge_update(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    return judge_parts(exercise, case, inputs, value, "mla", _updated)


EXERCISES = (
    Exercise(
        id="predict_second_tile",
        lesson=LESSON,
        title="Predict the second tile",
        function="predict_second_tile",
        points=3,
        signature="predict_second_tile() -> dict(alpha=..., l=..., a=...)",
        returns="a dict with the numbers alpha, l and a",
        public=tuple(
            Case(key, reason, {"key": key})
            for key, reason in (
                ("alpha", "a factor that is upside down, or taken from the wrong tile"),
                ("l", "an l that was not rescaled before the new terms were added"),
                ("a", "an a that was not rescaled, or divided by l too early"),
            )
        ),
        build=lambda case, seed: [{}],
        judge=_judge_prediction,
        faults=(*RESCALING, "divided_early"),
        faulty=lambda fault, case, inputs: [_predicted(fault)],
    ),
    Exercise(
        id="online_update",
        lesson=LESSON,
        title="The update for one row",
        function="online_update",
        own_work="torch",
        points=4,
        signature="online_update(m, l, a, scores, values) -> (m, l, a)",
        returns="a tuple (m, l, a): m and l 0-dimensional, a (D,), float32",
        public=(
            Case("the first tile", "a start that is not m = -inf, l = 0, a = 0", {"seen": 0}),
            Case("the maximum rises", "l or a that is not rescaled by alpha", {"level": 2.0}),
            Case("the maximum stays", "an m taken from the new tile alone", {"level": -3.0}),
            Case(
                "nothing visible, nothing seen",
                "exp(-inf - -inf), which is NaN",
                {"seen": 0, "level": -math.inf},
            ),
        ),
        build=_update_calls,
        judge=_judge_update,
        faults=(
            *RESCALING,
            "no_max",
            "max_starts_at_zero",
            "max_frozen",
            "divided_early",
            "no_guard",
            "max_of_tile_alone",
            "last_tile_only",
            "alpha_on_new_terms",
            "alpha_twice",
            "l_takes_max",
            "l_of_last_tile",
            "acc_of_last_tile",
            "softmax_per_tile",
        ),
        faulty=_faulty_updates,
        probes=probes.updates(),
    ),
    Exercise(
        id="forgotten_rescale",
        lesson=LESSON,
        title="Which rescale was forgotten?",
        function="forgotten_rescale",
        points=3,
        signature='forgotten_rescale() -> ["...", "...", "..."]',
        returns='a list of three words, each "l", "a" or "both"',
        public=tuple(
            Case(f"output {which + 1}", "a guess: compute both sums by hand", {"which": which})
            for which in range(len(FORGOTTEN))
        ),
        build=lambda case, seed: [{}],
        judge=_judge_forgotten,
    ),
    question(1, LESSON, "Why is a kept unnormalised until the end?"),
    question(2, LESSON, "Why is a softmax per tile wrong?"),
)
