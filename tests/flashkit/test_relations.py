"""Are the relations true of what is right, and broken by what is not?"""

import functools

import pytest
import torch

from flashkit import online
from flashkit.exercises import EXERCISES
from flashkit.exercises.inputs import attention_calls
from flashkit.exercises.marking import run_case
from flashkit.exercises.model import Answer, Case
from flashkit.exercises.parts import combined, cut, decode_merge_calls, merge_calls
from flashkit.exercises.relations import RELATIONS, broken, with_relation

SHAPES = {"Hq": 2, "Hkv": 1, "T": 4, "S": 18}


def visible_to_all(params):
    """A case in which every query sees every key."""
    return Case("x", "y", {**SHAPES, **params}, {"query_offset": 90})


def attention(q, k, v, offset, leak=0.0, weigh=None):
    """Plain attention; leak lets the future in, weigh(n) multiplies the n-th key's weight."""
    t, s = q.shape[2], k.shape[2]
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / q.shape[3] ** 0.5
    hidden = torch.arange(s) > offset + torch.arange(t)[:, None]
    p = torch.exp(scores).masked_fill(hidden, leak)
    p = p if weigh is None else p * weigh(torch.arange(s))
    return (p / p.sum(-1, keepdim=True)) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def told(case, calls, function):
    replies = [function(**inputs) for inputs in calls]
    return broken(case, calls, replies)


def by_offset(query_offset, **kwargs):
    return attention(offset=query_offset, **kwargs)


@pytest.mark.parametrize("relation", ["shuffled", "doubled"])
def test_order_and_copies_of_keys_must_not_matter(relation):
    case = visible_to_all({"relation": relation})
    calls = attention_calls(case, 3)
    assert len(calls) == 2
    assert told(case, calls, by_offset) == ""
    later_counts_more = functools.partial(by_offset, weigh=lambda n: 1.0 + n)
    assert "must stay" in told(case, calls, later_counts_more)


def test_the_future_must_not_matter_by_a_single_bit():
    case = Case("x", "y", SHAPES | {"T": 18, "relation": "other future"}, {"query_offset": 0})
    calls = attention_calls(case, 3)
    assert told(case, calls, by_offset) == ""
    assert "bit by bit" in told(case, calls, functools.partial(by_offset, leak=1e-7))


def parts(q, k, v, num_splits, shift=0.0, lost=0):
    """Partial results; shift is added to every m, the last `lost` keys are left out."""
    kept = {"q": q, "k": k[:, :, : k.shape[2] - lost], "v": v[:, :, : v.shape[2] - lost]}
    m, l, acc = cut(kept, -(-kept["k"].shape[2] // num_splits), num_splits)
    return m + shift * num_splits, l, acc


@pytest.mark.parametrize(
    ("relation", "wrong"), [("whole", {"shift": 0.5}), ("doubled", {"lost": 1})]
)
def test_partial_results_are_compared_by_output_and_log_sum_exp(relation, wrong):
    params = {"Hq": 2, "Hkv": 2, "T": 1, "S": 18, "relation": relation}
    case = Case("x", "y", params, {"num_splits": 3})
    calls = attention_calls(case, 3)
    assert told(case, calls, parts) == ""
    assert told(case, calls, functools.partial(parts, **wrong)) != ""


def test_merging_is_the_same_from_both_sides():
    case = Case("x", "y", {"a_level": 1.0, "b_empty": "every third", "relation": "exchanged"})
    calls = merge_calls(case, 3)

    def merged(a, b):
        return tuple(online.merge(online.State(*a), online.State(*b)))

    def one_sided(a, b):
        m, l, acc = merged(a, b)
        return m, a[1] + l, acc

    assert told(case, calls, merged) == ""
    assert "must be equal" in told(case, calls, one_sided)


def test_parts_may_be_merged_beforehand():
    case = Case("x", "y", {"num_splits": 4, "step": 0.7, "relation": "joined"})
    calls = decode_merge_calls(case, 3)
    assert told(case, calls, combined) == ""

    def mean_of_parts(m, l, acc):
        return (acc / l.clamp(min=1.0)[..., None]).mean(2, keepdim=True)

    assert "merged beforehand" in told(case, calls, mean_of_parts)


def test_a_case_without_a_relation_has_one_call():
    case = visible_to_all({})
    assert len(attention_calls(case, 3)) == 1
    assert broken(case, [{}], [None]) == ""
    assert with_relation(case, [{}]) == [{}]


def test_launches_have_fresh_data():
    first, second = attention_calls(visible_to_all({"launches": 2}), 3)
    assert first["q"].shape == second["q"].shape
    assert not torch.equal(first["q"], second["q"])


def test_a_broken_relation_fails_its_case():
    """Each reply alone is right within the budget; together they differ by one bit."""
    exercise = EXERCISES["flash_attention"]
    args = {"query_offset": None, "block_m": 16, "block_n": 16}
    case = Case("x", "y", {"T": 20, "S": 20, "relation": "other future"}, args)
    calls = []

    def ask(inputs):
        calls.append(inputs)
        o = online.online_attention(inputs["q"], inputs["k"], inputs["v"])
        nudge = 1.0 if len(calls) == 1 else 1.0 + 2.0**-23
        return Answer(value=o * nudge)

    result = run_case(exercise, case, 5, ask)
    assert result.kind == "wrong"
    assert "bit by bit" in result.message


def test_a_nan_breaks_every_relation():
    case = visible_to_all({"relation": "shuffled"})
    calls = attention_calls(case, 3)
    assert told(case, calls, lambda q, **rest: torch.full_like(q, torch.nan)) != ""


def test_every_relation_is_asked_in_a_hidden_case():
    from autograder.hidden import HIDDEN

    asked = {case.params.get("relation") for cases in HIDDEN.values() for case in cases}
    assert set(RELATIONS) <= asked
