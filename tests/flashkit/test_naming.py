"""Is a bug named rightly, never wrongly, and not at all where it is unknown?"""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashkit.exercises import EXERCISES
from flashkit.exercises.marking import run_case
from flashkit.exercises.model import Answer, CaseResult
from flashkit.exercises.naming import name_bug
from flashkit.faults import RECIPES, faulty_attention, variants
from flashkit.online import State, merge, online_attention

ONLINE, KERNEL, MERGE = (EXERCISES[x] for x in ("online_attention", "flash_attention", "merge"))
FEW = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def right(inputs):
    names = ("query_positions", "key_positions", "tile")
    return online_attention(*(inputs[x] for x in "qkv"), **{x: inputs[x] for x in names})


def asks(function):
    """Answers with function(inputs); an exception is one of the student's."""

    def ask(inputs):
        try:
            return Answer(value=function(inputs))
        except ValueError:
            return Answer(failure="skipped")

    return ask


def found(exercise, function, ask=None):
    ask = ask or asks(function)
    cases = [case for case in exercise.public if "raises" not in case.params]
    results = [run_case(exercise, case, 0, ask) for case in cases]
    return name_bug(exercise, cases, results, 0, ask, [case.name for case in cases])


def test_what_is_right_is_not_named_even_if_a_case_says_that_it_is_wrong():
    case = ONLINE.public[0]
    results = [CaseResult(case.name, kind="wrong")]
    assert name_bug(ONLINE, [case], results, 0, asks(right)).bug is None


UNKNOWN = {
    "zeros": lambda i: torch.zeros_like(i["q"]),
    "mean of v": lambda i: (
        i["v"]
        .mean(2, keepdim=True)
        .repeat_interleave(i["q"].shape[1] // i["v"].shape[1], 1)
        .expand_as(i["q"])
    ),
    "a tenth too large": lambda i: 1.1 * right(i),
    "the last row wrong": lambda i: torch.cat([right(i)[:, :, :-1], i["q"][:, :, -1:]], 2),
    "noise": lambda i: right(i) + 0.3 * torch.sin(50 * i["q"]),
    "all NaN": lambda i: torch.full_like(i["q"], torch.nan),
    "no tensor": lambda i: None,
}


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_no_bug_gives_is_not_named(unknown):
    assert found(ONLINE, UNKNOWN[unknown]).bug is None


@FEW
@given(st.data())
def test_a_bug_in_any_way_of_writing_it_is_named_or_unknown(data):
    fault = data.draw(st.sampled_from(ONLINE.faults))
    variant = data.draw(st.integers(0, variants(fault) - 1))
    tile = data.draw(st.sampled_from([None, 4, 8, 16]))

    def function(i):
        places = i["query_positions"], i["key_positions"]
        given = None if places == (None, None) else positions(i)
        t = i["q"].shape[2]
        blocks = {"block_m": t, "block_n": tile or i["tile"], "variant": variant}
        o = faulty_attention(fault, *(i[x] for x in "qkv"), **blocks, positions=given)
        return o.to(i["q"].dtype)

    assert found(ONLINE, function).bug in (fault, None)


def positions(i):
    t, s = i["q"].shape[2], i["k"].shape[2]
    qp, kp = i["query_positions"], i["key_positions"]
    qp = torch.arange(t) + s - t if qp is None else qp
    kp = torch.arange(s) if kp is None else kp
    return qp.expand(i["q"].shape[0], t), kp.expand(i["q"].shape[0], s)


@pytest.mark.parametrize("fault", ["acc_not_rescaled", "gqa_modulo", "query_offset_ignored"])
def test_a_kernel_that_ignores_its_block_sizes_is_named_all_the_same(fault):
    small = replace(KERNEL, probes=KERNEL.probes[:3] + KERNEL.probes[-2:])

    def function(i):
        fixed = {**i, "block_m": 64, "block_n": 32}
        return faulty_attention(fault, **fixed).to(i["q"].dtype)

    assert found(small, function).bug in (fault, None)


def test_where_it_first_shows_is_told():
    finding = found(KERNEL, lambda i: faulty_attention("causal_strict", **i).to(i["q"].dtype))
    assert finding.bug == "causal_strict"
    where = 'first seen with "T = S, whole tiles": tile 0 of the queries, row 0, head 0'
    assert finding.seen == where


def test_fresh_data_that_get_an_old_answer_are_named():
    kept = {}

    def function(i):
        return kept.setdefault(i["q"].shape, right(i))

    for case in ONLINE.public[:3]:
        function(ONLINE.build(case, 99)[0])
    assert found(ONLINE, function).bug == "stale_output"


def test_answers_that_vary_are_named():
    calls = itertools.count()

    def function(i):
        return right(i) + 0.1 * next(calls)

    assert found(ONLINE, function).bug == "answer_varies"


@pytest.mark.parametrize(
    ("dtype", "bug"), [(torch.float16, "p_in_float16"), (torch.bfloat16, "low_precision")]
)
def test_a_loss_of_precision_is_named(dtype, bug):
    def function(i):
        if dtype == torch.float16:
            i = {"block_m": i["q"].shape[2], "block_n": i["tile"], **{x: i[x] for x in "qkv"}}
            return faulty_attention("p_in_float16", **i).to(i["q"].dtype)
        return right({**i, "q": i["q"].to(dtype).to(i["q"].dtype)})

    cases = [case for case in ONLINE.public if "positions" not in case.params]
    results = [run_case(ONLINE, case, 0, asks(function)) for case in cases]
    assert name_bug(ONLINE, cases, results, 0, asks(function)).bug == bug


def test_a_changed_input_and_a_wrong_dtype_are_named_by_their_kind():
    changed = found(ONLINE, right, lambda i: Answer(value=right(i), changed=("q",)))
    assert changed.bug == "input_changed"
    assert found(ONLINE, lambda i: right(i).double()).bug == "output_dtype"


def test_a_merge_that_rescales_one_side_is_named():
    def one_side(i):
        a, b = State(*i["a"]), State(*i["b"])
        whole = merge(a, b)
        safe = torch.where(whole.m == -torch.inf, 0.0, whole.m)
        weight = torch.exp(b.m - safe)
        return whole.m, a.l + weight * b.l, a.a + weight[..., None] * b.a

    assert found(MERGE, one_side).bug == "merge_one_side"


def test_every_bug_of_a_kernel_is_among_its_suspects():
    assert set(RECIPES) - {"positions_ignored"} == set(EXERCISES["flash_attention_window"].faults)
