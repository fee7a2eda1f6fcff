"""Do the hidden cases catch every classic bug, name it, and spare what is right?"""

import math

import pytest
import torch

import flashkit
from autograder.engine.supervisor import graded_cases
from autograder.hidden import EXPLANATIONS, HIDDEN
from flashkit import cost, online
from flashkit.backward import attention_backward
from flashkit.exercises import EXERCISES
from flashkit.exercises.calling import call
from flashkit.exercises.marking import run_case
from flashkit.exercises.model import Answer
from flashkit.exercises.naming import name_bug
from flashkit.exercises.parts import combined, cut

SEED = 20260
CLASSIC = (
    *("no_max", "max_starts_at_zero", "max_frozen", "l_not_rescaled", "acc_not_rescaled"),
    *("nothing_rescaled", "alpha_inverted", "not_divided", "divided_early", "scale_by_d"),
    *("causal_strict", "offset_ignored", "gqa_modulo", "last_tile_skipped", "no_guard"),
    *("window_off_by_one", "padded_keys_counted", "merge_one_side", "lse_in_base_2"),
)
FAULTY = [
    pytest.param(e.id, fault, marks=() if fault in CLASSIC else pytest.mark.slow)
    for e in EXERCISES.values()
    for fault in e.faults
]


def results_of(exercise, ask, seed=SEED):
    return [run_case(exercise, case, seed, ask) for case in graded_cases(exercise)]


def buggy(exercise, fault):
    """What asks a function that has this bug, in one way of writing it, and no other."""
    refused = {c.name for c in graded_cases(exercise) if "raises" in c.params}

    def ask(inputs):
        if refused and inputs["query_positions"] is not None and inputs["q"].shape[::2] == (1, 4):
            return call(flashkit.online_attention, inputs)
        replies = exercise.faulty(fault, None, inputs)
        return Answer(value=replies[0]) if replies else Answer(failure="skipped")

    return ask


@pytest.mark.parametrize(("exercise_id", "fault"), FAULTY)
def test_a_classic_bug_loses_points_and_is_named(exercise_id, fault):
    exercise = EXERCISES[exercise_id]
    ask, cases = buggy(exercise, fault), graded_cases(exercise)
    results = results_of(exercise, ask)
    assert any(result.kind == "wrong" for result in results)
    assert name_bug(exercise, cases, results, SEED, ask).bug == fault


def tiled(tile, base2):
    """Online attention in float32 with this tile and base: right, and none of the oracle's."""
    exp, unit = (torch.exp2, math.log2(math.e)) if base2 else (torch.exp, 1.0)

    def attention(q, k, v, qp, kp, window=None):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        m = torch.full(q.shape[:3], -math.inf)
        l, acc = torch.zeros(q.shape[:3]), torch.zeros(q.shape)
        for start in range(0, k.shape[2], tile):
            keys = slice(start, start + tile)
            far = qp[..., :, None] - kp[..., None, keys]
            seen = (far >= 0) & (far < (window or math.inf))
            s = q.float() @ k[:, :, keys].float().mT * (unit / math.sqrt(q.shape[3]))
            s = s.masked_fill(~(seen if seen.ndim == 2 else seen[:, None]), -math.inf)
            m_new = torch.maximum(m, s.amax(-1))
            safe = torch.where(m_new == -math.inf, 0.0, m_new)
            alpha, p = exp(m - safe), exp(s - safe[..., None])
            l = alpha * l + p.sum(-1)
            acc = alpha[..., None] * acc + p.to(v.dtype).float() @ v[:, :, keys].float()
            m = m_new
        return (acc / torch.where(l == 0, 1.0, l)[..., None]).to(q.dtype)

    return attention


def variants(tile, base2):
    """A right function for each exercise that asks for attention or a state."""
    attention = tiled(tile, base2)

    def by_offset(q, k, v, offset, window=None):
        offset = k.shape[2] - q.shape[2] if offset is None else offset
        positions = offset + torch.arange(q.shape[2]), torch.arange(k.shape[2])
        return attention(q, k, v, *positions, window)

    def by_position(q, k, v, qp, kp, tile):
        qp = torch.arange(q.shape[2]) + k.shape[2] - q.shape[2] if qp is None else qp
        kp = torch.arange(k.shape[2]) if kp is None else kp
        if (qp.min() < kp.min()).any():
            raise ValueError
        return attention(q, k, v, qp, kp)

    def decode_split(q, k, v, num_splits):
        size = -(-k.shape[2] // num_splits)
        return cut({"q": q, "k": k, "v": v}, -(-size // tile) * tile, num_splits)

    def backward(q, k, v, o, lse, do, offset, window, _):
        offset = k.shape[2] - q.shape[2] if offset is None else offset
        places = offset + torch.arange(q.shape[2])
        return attention_backward(q, k, v, o, lse, do, places, tile=tile, window=window)

    return {
        "attention_backward": backward,
        "online_attention": by_position,
        "flash_attention": lambda q, k, v, offset, m, n: by_offset(q, k, v, offset),
        "flash_attention_window": lambda q, k, v, w, offset, m, n: by_offset(q, k, v, offset, w),
        "split_attention": lambda q, k, v, n: online.split_attention(q, k, v, num_splits=n + tile),
        "online_update": lambda m, l, a, s, v: online.update(online.State(m, l, a), s, v),
        "merge": lambda a, b: online.merge(online.State(*b), online.State(*a)),
        "decode_split": decode_split,
        "decode_merge": combined,
        "tile_bounds": cost.tile_bounds,
    }


@pytest.mark.parametrize("tile_and_base", [(16, False), (64, True), (7, True)])
@pytest.mark.parametrize("exercise_id", variants(1, False))
def test_what_is_right_passes_whatever_its_tiles_and_base(exercise_id, tile_and_base):
    function = variants(*tile_and_base)[exercise_id]
    for seed in (1, 2):
        results = results_of(EXERCISES[exercise_id], lambda x: call(function, x), seed)
        assert [r for r in results if not r.passed] == []


LAZY = {
    "zeros": lambda q, k, v: torch.zeros_like(q),
    "q itself": lambda q, k, v: q.clone(),
    "uninitialised": lambda q, k, v: torch.full_like(q, torch.nan),
    "mean of v": lambda q, k, v: (
        v.mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1).expand_as(q)
    ),
}
ATTENTION = ("online_attention", "flash_attention", "flash_attention_window", "split_attention")


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("exercise_id", ATTENTION)
def test_an_answer_that_does_not_attend_passes_no_case(exercise_id, lazy):
    results = results_of(
        EXERCISES[exercise_id],
        lambda x: call(lambda q, k, v, *rest: LAZY[lazy](q, k, v), x),
    )
    assert sum(result.passed for result in results) == 0


def parts_of(number):
    """Every part of a gradient as this number; p and ds tell the shapes of all others."""

    def parts(q, k, v, *rest):
        shapes = {"p": (q, k), "dv": v, "delta": q[:, 0], "ds": (q, k), "dq": q, "dk": k}
        like = {name: x if torch.is_tensor(x) else x[0] @ x[1].mT for name, x in shapes.items()}
        return {name: torch.full_like(x, number) for name, x in like.items()}

    return parts


@pytest.mark.parametrize("number", [0.0, 1.0, math.nan])
def test_gradients_that_are_one_number_pass_no_case(number):
    def whole(q, k, v, *rest):
        return tuple(torch.full_like(x, number) for x in (q, k, v))

    for exercise_id, lazy in (("attention_backward", whole), ("backward_parts", parts_of(number))):
        results = results_of(EXERCISES[exercise_id], lambda x, lazy=lazy: call(lazy, x))
        assert [r.name for r in results if r.passed] == []


@pytest.mark.parametrize("number", range(1, 7))
def test_a_question_has_one_right_letter_and_an_explanation(number):
    exercise = EXERCISES[f"question_{number}"]
    right = [
        letter
        for letter in "abcd"
        if all(r.passed for r in results_of(exercise, lambda x, y=letter: Answer(value=y)))
    ]
    assert len(right) == 1
    assert EXPLANATIONS[exercise.id]


def test_every_hidden_case_belongs_to_an_exercise_and_says_why():
    assert set(HIDDEN) <= set(EXERCISES)
    for cases in HIDDEN.values():
        for case in cases:
            assert case.reason, case.name


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_cases_have_names_of_their_own_and_are_small(exercise):
    cases = graded_cases(exercise)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        p = case.params
        assert p.get("B", 1) * p.get("Hq", 1) <= 12, case.name
        assert max(p.get("T", 0), p.get("S", 0)) <= 100, case.name
