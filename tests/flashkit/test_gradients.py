"""Are the parts of a gradient judged each on its own, by what is right and by what is fair?"""

import itertools

import pytest
import torch

from flashkit.backward import attention_backward
from flashkit.exercises import EXERCISES, gradients
from flashkit.exercises.calling import call
from flashkit.exercises.judge import Part, wrong_entries
from flashkit.exercises.lesson5 import whole
from flashkit.exercises.marking import run_case
from flashkit.exercises.model import Answer, Case

PARTS, WHOLE = EXERCISES["backward_parts"], EXERCISES["attention_backward"]
GROUPED = {"B": 2, "Hq": 4, "Hkv": 2, "T": 9, "S": 13}
HARD = {
    "grouped": (GROUPED, whole()),
    "window": (GROUPED, whole(7, window=3)),
    "no key": ({**GROUPED, "S": 5}, whole()),
    "far below 0": ({**GROUPED, "pattern": "negative"}, whole()),
    "hundreds": ({**GROUPED, "gain": 120.0}, whole()),
    "float16": ({**GROUPED, "dtype": "float16"}, whole()),
    "one number": ({**GROUPED, "layout": {"do": "constant"}}, whole()),
}


def inputs_of(name, seed=1):
    params, args = HARD[name]
    return gradients.calls(Case(name, "", params, args), seed)[0]


@pytest.mark.parametrize("name", HARD)
def test_autograd_and_the_formulas_agree(name):
    inputs = inputs_of(name)
    o, lse = gradients.forward(inputs)
    places = gradients.offset_of(inputs) + torch.arange(inputs["q"].shape[2])
    rows = (x.double() for x in (inputs["q"], inputs["k"], inputs["v"], o, lse, inputs["do"]))
    got = attention_backward(*rows, places, window=inputs["window"])
    want = gradients.right(inputs)
    for part, x in zip(("dq", "dk", "dv"), got, strict=True):
        assert (x - want[part]).abs().max() < 1e-9 * want[part].abs().max().clamp(min=1.0), part


@pytest.mark.parametrize("name", HARD)
def test_what_is_fair_passes_and_no_more(name):
    inputs = inputs_of(name)
    want, dtype = gradients.right(inputs), inputs["q"].dtype
    limit = gradients.limits(inputs, want)
    for way in itertools.product((False, True), repeat=3):
        got = gradients.by_formulas(inputs, *way)
        for part in gradients.PARTS:
            assert not wrong_entries(
                Part(part, got[part].to(dtype), want[part], limit[part])
            ).any()
    for part in gradients.PARTS:
        moved = want[part] + 3.0 * limit[part] + 1e-300
        assert wrong_entries(Part(part, moved, want[part], limit[part])).all(), part
        size = want[part].abs().max()
        small = limit[part][limit[part] < 0.02 * size]
        assert small.numel() > 0.5 * limit[part].numel(), f"the budget of {part} allows anything"


def test_what_nobody_sees_is_allowed_no_error():
    inputs = inputs_of("window")
    want = gradients.right(inputs)
    unseen = want["dk"].abs().sum(-1) == 0
    assert unseen.any()
    assert (gradients.limits(inputs, want)["dk"][unseen] == 0).all()


def ask_with(change):
    """Answers with the right parts of one head in float32, changed."""

    def ask(inputs):
        found = gradients.by_formulas(gradients.with_heads(inputs))
        return Answer(value=change({name: x[0, 0] for name, x in found.items()}, inputs))

    return ask


def results(change):
    return {
        case.params["part"]: run_case(PARTS, case, 7, ask_with(change)) for case in PARTS.public
    }


def test_a_part_that_is_missing_leaves_the_others_their_points():
    found = results(lambda parts, _: {name: parts[name] for name in ("p", "dv")})
    assert [found[name].kind for name in gradients.PARTS] == ["pass", "pass", *["unwritten"] * 4]
    assert found["ds"].message == "There is no 'ds' in the dict yet."


def test_a_part_that_follows_from_a_wrong_one_is_told_so():
    def twice_as_steep(parts, inputs):
        ds = 2.0 * parts["ds"]
        scale = inputs["q"].shape[1] ** -0.5
        return parts | {"ds": ds, "dq": scale * ds @ inputs["k"], "dk": ds.mT @ inputs["q"]}

    found = results(twice_as_steep)
    assert [found[name].kind for name in gradients.PARTS] == ["pass"] * 3 + ["wrong"] * 3
    assert "It is right for your own ds: look for the fault there." in found["dq"].message
    assert "your own" not in found["ds"].message + found["dk"].message  # dk lacks the scale too
    assert "It is right for your own ds" in found["dq"].told


@pytest.mark.parametrize("value", [None, (), {"p": None}, {"p": torch.zeros(2, 2)}, [1, 2]])
def test_what_is_no_dict_of_parts_is_told_what_to_return(value):
    result = run_case(PARTS, PARTS.public[0], 7, lambda inputs: Answer(value=value))
    assert (
        "backward_parts must return a dict of float32 tensors with the keys p, dv"
        in result.message
    )


def test_the_whole_says_which_of_the_three_are_wrong():
    def change(q, k, v, o, lse, do, offset, window, tile):
        dq, dk, dv = attention_backward(q, k, v, o, lse, do, window=window)
        return dq, 2.0 * dk, dv

    result = run_case(WHOLE, WHOLE.public[0], 7, lambda x: call(change, x))
    assert result.message.startswith("dk is wrong, dq and dv right. ")
    assert result.told.startswith("dk is wrong, dq and dv right. ")


def test_a_gradient_of_another_dtype_is_named():
    case = Case("half", "", {"T": 4, "S": 4, "dtype": "float16"}, whole())
    right = lambda q, k, v, *rest: (q.float(), k, v)  # noqa: E731
    result = run_case(WHOLE, case, 7, lambda x: call(right, x))
    assert result.bugs == ("output_dtype",)
