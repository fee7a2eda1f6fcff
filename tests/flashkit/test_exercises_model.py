"""Are exercises, cases and verdicts sound as data?"""

import json

import pytest
import torch

from flashkit.exercises import EXERCISES
from flashkit.exercises.inputs import GUARD, case_seed, place, qkv
from flashkit.exercises.marking import points
from flashkit.exercises.model import Case, CaseResult, Verdict
from flashkit.exercises.values import MAX_BYTES, Opaque, plain

VERDICT = Verdict(
    "merge",
    2.5,
    4,
    (
        CaseResult("a", "b", "wrong", "c", (0, 1), "1", "nan", 3, ("no_max",)),
        CaseResult("d"),
    ),
    "graded",
    7,
    "cpu",
    {"torch": "2"},
    "no_max",
    3,
    "note",
)


def test_a_verdict_survives_json():
    assert Verdict.from_json(VERDICT.to_json()) == VERDICT
    assert json.loads(VERDICT.to_json())["points"] == 2.5


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cases": [{}]}'])
def test_what_is_no_verdict_is_refused(text):
    with pytest.raises((ValueError, TypeError, KeyError)):
        Verdict.from_json(text)


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_an_exercise_says_what_it_asks(exercise):
    assert exercise.signature.startswith(exercise.function + "(")
    assert exercise.public
    for case in exercise.public:
        assert case.reason, case.name
        assert exercise.build(case, 0)


def test_points_are_shared_out_over_the_cases():
    results = [CaseResult("a"), CaseResult("b", kind="wrong"), CaseResult("c", kind="error")]
    assert points(EXERCISES["merge"], results) == 1.33
    assert points(EXERCISES["merge"], []) == 0.0


def test_inputs_depend_on_exercise_case_and_seed_alone():
    case = Case("x", "y", {"T": 4, "S": 8})
    assert torch.equal(qkv(case, 5)[0], qkv(case, 5)[0])
    assert not torch.equal(qkv(case, 5)[0], qkv(case, 6)[0])
    assert len({case_seed(s, e, c) for s in (0, 1) for e in "ab" for c in "xy"}) == 8


def test_an_expanded_tensor_is_one_sequence_for_the_whole_batch():
    shapes = {"B": 3, "Hq": 2, "Hkv": 2, "T": 4, "S": 5, "layout": {"k": "expanded"}}
    k = qkv(Case("x", "y", shapes), 1)[1]
    assert k.stride()[0] == 0
    assert not torch.isnan(k).any()
    assert torch.equal(k[2], k[0])


@pytest.mark.parametrize("layout", ["plain", "rows", "heads"])
def test_a_layout_changes_strides_and_not_values(layout):
    shapes = {"Hq": 2, "Hkv": 2, "T": 4, "S": 5}
    plain_k = qkv(Case("x", "y", shapes), 1)[1]
    k = qkv(Case("x", "y", shapes | {"layout": {"k": layout}}), 1)[1]
    assert torch.equal(k, plain_k)
    assert k.is_contiguous() == (layout == "plain")


def test_tensors_lie_between_guards_of_nan():
    x = place(torch.ones(2, 3))
    whole = x.as_strided((6 + 2 * GUARD,), (1,), 0)
    assert torch.isnan(whole).sum() == 2 * GUARD
    assert float(whole[GUARD : GUARD + 6].sum()) == 6.0


def test_replies_become_plain_data():
    class Sneaky(str):
        def __eq__(self, other):
            return True

    class Odd(torch.Tensor):
        pass

    assert plain((1, [2.0, None], {"a": "b"})) == (1, [2.0, None], {"a": "b"})
    assert isinstance(plain(Sneaky("a")), Opaque)
    assert isinstance(plain(torch.zeros(2).as_subclass(Odd)), Opaque)
    assert isinstance(plain(torch.zeros(2).to_sparse()), Opaque)
    assert isinstance(plain(torch.zeros(1).expand(MAX_BYTES)), Opaque)
    assert isinstance(plain({1: 2}), Opaque)
    deep = []
    for _ in range(50):
        deep = [deep]
    assert "Opaque" in repr(plain(deep))
    assert plain(torch.zeros(2, requires_grad=True)).requires_grad is False
