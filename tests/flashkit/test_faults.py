"""Is every classic bug wrong where it should be, and right where it cannot show?"""

import pytest
import torch

from flashkit.exercises.inputs import place
from flashkit.faults import (
    FAULTS,
    RECIPES,
    faulty_attention,
    faulty_merge,
    faulty_update,
    variants,
)
from flashkit.faults.states import MERGES
from flashkit.online import State, merge, update
from flashkit.reference import causal_attention

WINDOWED = (*(fault for fault in RECIPES if fault.startswith("window")), "no_guard")
EXTREME = ("no_max", "max_starts_at_zero", "max_frozen")
SPECIAL = (
    *("max_of_tile_alone", "max_over_rows", "max_over_hidden", "scale_of_one_width"),
    "group_power_of_two",
    *("query_offset_ignored", "causal_top_left", "strides_assumed", "head_width_fixed"),
    *("p_in_float16", "acc_in_float16", "positions_ignored"),
)
"""They show on inputs that have what they neglect; see the tests below."""


def problem(t=20, s=37, q_heads=4, kv_heads=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, q_heads, t, 16), (2, kv_heads, s, 16), (2, kv_heads, s, 16))
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def error(got, want):
    return float((got - want).abs().nan_to_num(99.0).max())


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("tiles", [(16, 16), (32, 16), (16, 32), (8, 4)])
def test_the_recurrence_around_the_bugs_is_right(window, tiles):
    q, k, v = problem()
    sound = "max_frozen"  # it shows only where scores rise by hundreds
    got = faulty_attention(sound, q, k, v, window=window, block_m=tiles[0], block_n=tiles[1])
    assert error(got, causal_attention(q, k, v, window=window)) < 1e-12


@pytest.mark.parametrize("fault", [f for f in RECIPES if f not in WINDOWED + EXTREME + SPECIAL])
def test_a_bug_is_wrong_on_plain_inputs(fault):
    q, k, v = problem()
    offset = {"padded_keys_counted": 100, "blocks_confused": 0}.get(fault, 17)
    block_m = 32 if fault == "blocks_confused" else 16
    want = causal_attention(q, k, v, offset + torch.arange(20))
    assert error(faulty_attention(fault, q, k, v, offset, block_m=block_m), want) > 0.1


@pytest.mark.parametrize("fault", [f for f in WINDOWED if f != "window_without_offset"])
def test_a_bug_of_windows_is_wrong_with_a_window(fault):
    q, k, v = problem(t=48, s=48)
    want = causal_attention(q, k, v, window=5)
    ways = range(variants(fault))
    assert (
        max(error(faulty_attention(fault, q, k, v, window=5, variant=i), want) for i in ways) > 0.1
    )


def test_a_window_is_counted_from_the_offset():
    q, k, v = problem()
    want = causal_attention(q, k, v, window=5)
    assert error(faulty_attention("window_without_offset", q, k, v, window=5), want) > 0.1


@pytest.mark.parametrize(
    ("fault", "query_offset", "wrong"),
    [
        ("query_offset_ignored", 5, True),
        ("query_offset_ignored", None, False),
        ("causal_top_left", None, True),
        ("causal_top_left", 5, False),
    ],
)
def test_an_offset_is_as_it_was_handed_in(fault, query_offset, wrong):
    q, k, v = problem()
    offset = 17 if query_offset is None else query_offset
    want = causal_attention(q, k, v, offset + torch.arange(20))
    assert (error(faulty_attention(fault, q, k, v, query_offset), want) > 0.1) == wrong


def transposed(x):
    """The same numbers in a (B, S, H, D) buffer, between guards of NaN."""
    b, h, n, d = x.shape
    return place(x, (n * h * d, d, h * d, 1))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_strides_that_are_assumed_are_wrong_where_they_are_others(name):
    q, k, v = problem()
    given = {**{"q": q, "k": k, "v": v}, name: transposed({"q": q, "k": k, "v": v}[name])}
    want = causal_attention(q, k, v)
    errors = [
        error(faulty_attention("strides_assumed", **given, variant=i), want)
        for i in range(variants("strides_assumed"))
    ]
    assert max(errors) > 0.1
    assert min(errors) < 1e-12  # each way neglects one tensor's strides


@pytest.mark.parametrize(("fault", "limit"), [("p_in_float16", 1e-5), ("acc_in_float16", 1e-3)])
def test_a_bug_of_precision_is_small(fault, limit):
    q, k, v = problem(dtype=torch.float16 if fault == "acc_in_float16" else torch.float32)
    want = causal_attention(q.double(), k.double(), v.double() + 40)
    assert limit < error(faulty_attention(fault, q, k, v + 40), want) < 0.5


def test_positions_that_are_ignored_are_wrong_where_they_are_given():
    q, k, v = problem(t=12, s=12)
    places = torch.arange(12).expand(2, 12), torch.arange(11, -1, -1).expand(2, 12)
    want = causal_attention(q, k, v, *places)
    right = faulty_attention("max_frozen", q, k, v, positions=places)
    assert error(right, want) < 1e-12
    assert error(faulty_attention("positions_ignored", q, k, v, positions=places), want) > 0.1


def test_a_head_dimension_that_is_fixed_leaves_columns_out():
    q, k, v = (torch.cat([x, x], -1) for x in problem())
    got = faulty_attention("head_width_fixed", q, k, v)
    assert torch.isinf(got[..., 16:]).all()
    assert torch.isfinite(got[..., :16]).all()


def test_a_load_without_a_mask_reads_what_comes_next_in_memory():
    q, k, v = (place(x) for x in problem())
    got = faulty_attention("load_without_mask", q, k, v)
    assert torch.isnan(got[-1, -1, -1]).all()  # past the last head there are only guards
    assert torch.isfinite(got[0, 0]).all()  # past the first head lies the next


def test_no_guard_makes_nan_of_the_rows_that_have_seen_nothing():
    q, k, v = problem(t=32, s=32)
    got = faulty_attention("no_guard", q, k, v, window=5, skip=False)
    rows = torch.isnan(got).any(-1)[0, 0]
    # Rows 20 and up see no key of the first tile, keys 0 to 15.
    assert rows.tolist() == [i >= 20 for i in range(32)]


@pytest.mark.parametrize(
    ("fault", "shift"), [("no_max", 15.0), ("max_starts_at_zero", -15.0), ("max_frozen", 0.0)]
)
def test_a_bug_of_the_maximum_shows_in_float32_where_scores_are_large(fault, shift):
    q, k, v = problem(dtype=torch.float32)
    q, k = q.abs() + 5, torch.full_like(k, shift)
    if fault == "max_frozen":
        k = torch.arange(37.0)[:, None].expand_as(k).contiguous()
    want = causal_attention(q.double(), k.double(), v.double())
    assert error(faulty_attention(fault, q, k, v), want) > 0.1


def test_an_unknown_bug_is_refused():
    q, k, v = problem()
    for call in (
        lambda: faulty_attention("typo", q, k, v),
        lambda: faulty_update("typo", *[None] * 5),
        lambda: faulty_merge("typo", None, None),
    ):
        with pytest.raises(ValueError, match="fault must be one of no_max"):
            call()


def states():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 7, generator=generator) * 2
    values = torch.randn(7, 5, generator=generator)
    start = State(torch.full((3,), -torch.inf), torch.zeros(3), torch.zeros(3, 5))
    return [update(start, x, values) for x in scores], scores[1], values


@pytest.mark.parametrize(
    "fault", ["l_not_rescaled", "acc_not_rescaled", "nothing_rescaled", "alpha_inverted"]
)
def test_updates_and_merges_without_rescaling_are_wrong(fault):
    (a, b), scores, values = states()
    for got, want in (
        (faulty_update(fault, *a, scores, values), update(a, scores, values)),
        (faulty_merge(fault, a, b), merge(a, b)),
    ):
        assert torch.equal(got[0], want.m)
        assert max(error(x, y) for x, y in zip(got, want, strict=True)) > 0.1


@pytest.mark.parametrize("fault", MERGES)
def test_a_bug_of_merges_is_wrong(fault):
    (a, b), _, _ = states()
    want = merge(a, b)
    ways = range(len(MERGES[fault]))
    wrong = [faulty_merge(fault, a, b, variant=i) for i in ways]
    assert all(max(map(error, got, want)) > 1e-3 for got in wrong) or fault.startswith("max")


def test_every_recipe_has_a_sentence():
    assert {*RECIPES, *MERGES} <= set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_bug_has_a_sentence_for_a_student(fault):
    assert FAULTS[fault].endswith(".")
    assert 40 < len(FAULTS[fault]) < 200
