"""Is the gradient with a bug wrong where the bug can show, and right where it cannot?"""

import pytest
import torch

from flashkit.exercises import gradients
from flashkit.exercises.lesson5 import whole
from flashkit.exercises.model import Case
from flashkit.faults import FAULTS, GRADIENTS, faulty_backward
from flashkit.faults.backward import RIGHT
from flashkit.faults.backward import gradients as computed

SHAPES = {
    "plain": ({"Hq": 2, "Hkv": 2, "T": 9, "S": 21}, whole()),
    "grouped": ({"B": 2, "Hq": 6, "Hkv": 2, "T": 5, "S": 13}, whole()),
    "offset": ({"Hq": 2, "Hkv": 2, "T": 8, "S": 30}, whole(5)),
    "window": ({"Hq": 2, "Hkv": 1, "T": 12, "S": 22}, whole(window=6)),
    "no key": ({"Hq": 2, "Hkv": 2, "T": 12, "S": 7}, whole(window=3)),
}
NEEDS = {
    "gqa_modulo": "grouped",
    "group_transposed": "grouped",
    "group_not_summed": "grouped",
    "query_offset_ignored": "offset",
    "lse_unguarded": "no key",
    **dict.fromkeys([fault for fault in GRADIENTS if fault.startswith("window")], "window"),
}
"""The inputs that show a bug, where plain ones do not."""


def problem(name):
    """The inputs of a shape in float64, and all their parts."""
    params, args = SHAPES[name]
    (inputs,) = gradients.calls(Case(name, "", params, args), 3)
    inputs = {x: v.double() if torch.is_tensor(v) else v for x, v in inputs.items()}
    o, lse = gradients.forward(inputs)
    return inputs | {"o": o, "lse": lse}


def apart(inputs, got):
    """The largest difference of any part, NaN being 99."""
    want = gradients.right(inputs)
    return max(float((got[x] - want[x]).abs().nan_to_num(99.0).max()) for x in want)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_computation_around_the_bugs_is_right(shape):
    inputs = problem(shape)
    assert apart(inputs, computed(RIGHT, *inputs.values())) < 1e-12


@pytest.mark.parametrize("fault", GRADIENTS)
def test_a_bug_is_wrong_in_every_way_that_it_is_written(fault):
    inputs = problem(NEEDS.get(fault, "plain"))
    for variant in range(len(GRADIENTS[fault])):
        got = faulty_backward(fault, *inputs.values(), variant=variant)
        assert apart(inputs, got) > 1e-3, variant


@pytest.mark.parametrize("fault", NEEDS)
def test_a_bug_does_no_harm_where_what_it_neglects_is_missing(fault):
    inputs = problem("plain")
    assert apart(inputs, faulty_backward(fault, *inputs.values())) < 1e-12


def test_a_bug_of_the_gradient_has_a_sentence_and_another_is_refused():
    assert set(GRADIENTS) <= set(FAULTS)
    with pytest.raises(ValueError, match="fault must be one of scale_missing"):
        faulty_backward("typo")
