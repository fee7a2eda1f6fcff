"""The state's algebra, and attention tile by tile and split by split against the oracle."""

import functools
import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit import online_attention, split_attention
from flashkit.online import EMPTY, State, finish, lse, merge, step, update

SMALL = settings(derandomize=True, max_examples=40, deadline=None)
SCORE = st.one_of(st.floats(-60, 60), st.just(-math.inf), st.sampled_from([0.0, 1.0, -1e4, 1e4]))
ROWS = st.lists(SCORE, min_size=1, max_size=9)


def values_for(scores: list[float]) -> torch.Tensor:
    return torch.tensor([[math.sin(3 * j), j - 2.0] for j in range(len(scores))]).double()


def whole(scores: list[float]) -> State:
    return update(EMPTY, torch.tensor(scores, dtype=torch.float64), values_for(scores))


def in_parts(scores: list[float], cuts) -> list[State]:
    """The states of consecutive parts of the keys, cut where `cuts` says."""
    edges = [0, *sorted({cut % len(scores) for cut in cuts} - {0}), len(scores)]
    s, v = torch.tensor(scores, dtype=torch.float64), values_for(scores)
    return [update(EMPTY, s[i:j], v[i:j]) for i, j in zip(edges, edges[1:], strict=False)]


def assert_states_equal(x: State, y: State) -> None:
    for name, got, want in zip("mla", x, y, strict=True):
        np.testing.assert_allclose(got, torch.as_tensor(want).expand_as(got), 1e-12, 1e-12, name)


@SMALL
@given(ROWS)
def test_empty_is_the_identity(scores):
    state = whole(scores)
    assert_states_equal(merge(state, EMPTY), state)
    assert_states_equal(merge(EMPTY, state), state)


@SMALL
@given(ROWS, ROWS, ROWS)
def test_merge_is_associative_and_commutative(a, b, c):
    a, b, c = whole(a), whole(b), whole(c)
    assert_states_equal(merge(merge(a, b), c), merge(a, merge(b, c)))
    assert_states_equal(merge(a, b), merge(b, a))


@SMALL
@given(ROWS, st.lists(st.integers(0, 9), max_size=4))
def test_any_tiling_equals_the_whole(scores, cuts):
    parts = in_parts(scores, cuts)
    assert_states_equal(functools.reduce(merge, parts, EMPTY), whole(scores))
    state, start = EMPTY, 0
    s, v = torch.tensor(scores, dtype=torch.float64), values_for(scores)
    for stop in [*sorted({cut % len(scores) for cut in cuts} - {0}), len(scores)]:
        state, start = update(state, s[start:stop], v[start:stop]), stop
    assert_states_equal(state, whole(scores))


@SMALL
@given(ROWS, st.floats(-1e3, 1e3))
def test_a_shift_of_all_scores_changes_m_alone(scores, shift):
    state, shifted = whole(scores), whole([score + shift for score in scores])
    np.testing.assert_allclose(shifted.m, state.m + shift, 1e-9, 1e-9)
    np.testing.assert_allclose(shifted.l, state.l, 1e-9)
    np.testing.assert_allclose(shifted.a, state.a, 1e-9, 1e-9)


@SMALL
@given(ROWS)
def test_finish_is_softmax(scores):
    state = whole(scores)
    if max(scores) == -math.inf:
        with pytest.raises(ValueError, match="a query row has no visible key"):
            finish(state)
        assert lse(state) == -math.inf
        return
    s = np.array(scores)
    weights = np.exp(s - s.max())
    want = weights @ values_for(scores).numpy() / weights.sum()
    np.testing.assert_allclose(finish(state), want, 1e-12, 1e-12)
    np.testing.assert_allclose(lse(state), s.max() + np.log(weights.sum()), 1e-12)


def test_rows_do_not_mix():
    scores = torch.tensor([[0.0, 1.0], [-math.inf, -math.inf], [5.0, -math.inf]]).double()
    state = update(EMPTY, scores, values_for([0, 0]))
    for i, row in enumerate(scores):
        alone = update(EMPTY, row, values_for([0, 0]))
        assert_states_equal(State(*(x[i] for x in state)), alone)
    assert state.l[1] == 0
    assert state.m[1] == -math.inf


def test_nothing_seen_yet_gives_no_nan():
    """The first classic edge case: exp(-inf - -inf) must not be computed."""
    m, alpha, p = step(EMPTY, torch.full((3,), -math.inf))
    assert (m.item(), alpha.item(), p.tolist()) == (-math.inf, 0.0, [0.0, 0.0, 0.0])
    state = update(whole([-math.inf]), torch.tensor([2.0]).double(), values_for([2.0]))
    assert_states_equal(state, whole([2.0]))


def test_lse_values_do_not_add():
    """Two parts of lse 0 make ln 2, not 0 (zhuzilin/ring-flash-attention#20)."""
    part = State(torch.tensor(0.0), torch.tensor(1.0), torch.tensor([1.0]))
    assert lse(merge(part, part)).item() == pytest.approx(math.log(2))


def test_a_tile_must_hold_a_key():
    with pytest.raises(ValueError, match="a tile must hold at least one key"):
        step(EMPTY, torch.zeros(0))


ATTENTIONS = {
    "online": lambda *args, n=4, **kwargs: online_attention(*args, tile=n, **kwargs),
    "split": lambda *args, n=4, **kwargs: split_attention(*args, num_splits=n, **kwargs),
}
each_attention = pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)


@each_attention
@pytest.mark.parametrize("n", [1, 3, 16, 64])
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize(("heads", "t", "s"), [((4, 2), 9, 21), ((3, 3), 1, 8), ((5, 1), 13, 13)])
def test_attention_is_exact(attention, n, window, heads, t, s):
    q, k, v = oracle.draw(0, 2, heads, t, s, 16, torch.float64)
    want, want_lse = oracle.attention(q, k, v, window=window)
    o, got_lse = attention(q, k, v, n=n, window=window, return_lse=True)
    oracle.assert_same(o, want, 1e-13)
    oracle.assert_same(got_lse, want_lse, 1e-13)


@each_attention
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_stay_within_the_budget(attention, dtype):
    q, k, v = oracle.draw(1, 2, (4, 2), 9, 21, 32, dtype)
    want, want_lse = oracle.attention(q, k, v)
    o, got_lse = attention(q, k, v, return_lse=True)
    oracle.assert_within_budget(o, want, oracle.eager(q, k, v))
    assert got_lse.dtype == torch.float32
    oracle.assert_same(got_lse, want_lse, 1e-5)


@each_attention
def test_positions_in_any_order(attention):
    q, k, v = oracle.draw(2, 2, (4, 2), 3, 6, 16)
    query = torch.tensor([[5, 2, 9], [0, 3, 3]])
    key = torch.tensor([[4, 2, 9, 0, 1, 3], [0, 6, 1, 2, 5, 4]])
    want, _ = oracle.attention(
        q, k, v, query_positions=query.tolist(), key_positions=key.tolist(), window=4, scale=0.3
    )
    oracle.assert_same(attention(q, k, v, query, key, n=2, window=4, scale=0.3), want)


@each_attention
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_hidden_never_matters(attention, poison):
    q, k, v = oracle.draw(3, 1, (2, 1), 3, 8, 16)
    want, _ = oracle.attention(q, k, v, 3, window=3)
    k[:, :, [0, 6, 7]] = poison
    v[:, :, [0, 6, 7]] = poison
    oracle.assert_same(attention(q, k, v, torch.tensor([3, 4, 5]), n=4, window=3), want)


@each_attention
def test_a_visible_nan_shows_in_the_rows_that_see_it(attention):
    q, k, v = oracle.draw(4, 1, (1, 1), 4, 4, 16)
    v[0, 0, 2, 5] = math.nan
    assert attention(q, k, v, n=2).isnan().all(-1).tolist() == [[[False, False, True, True]]]


@each_attention
def test_hard_inputs(attention):
    """Huge, all negative, one huge key at the end, ties (pytorch/pytorch#121558)."""
    q, k, v = oracle.draw(5, 1, (2, 1), 7, 7, 16)
    last = k.clone()
    last[:, :, -1] *= 1e3
    for queries, keys in ((q * 30, k), (-30 * q.abs(), 30 * k.abs()), (q, last), (q * 0, k)):
        want, _ = oracle.attention(queries, keys, v)
        oracle.assert_within_budget(
            attention(queries, keys, v, n=3), want, oracle.eager(queries, keys, v)
        )


@each_attention
@pytest.mark.parametrize(("t", "s"), [(3, 0), (4, 3)])
def test_rows_without_keys_raise(attention, t, s):
    with pytest.raises(ValueError, match="a query row has no visible key"):
        attention(*oracle.draw(6, 1, (1, 1), t, s, 16))


@each_attention
@pytest.mark.parametrize("n", [0, -1, 2.0])
def test_tiles_and_splits_must_be_positive(attention, n):
    with pytest.raises(ValueError, match=f"must be an integer >= 1, got {n}"):
        attention(*oracle.draw(7, 1, (1, 1), 2, 2, 16), n=n)


@each_attention
def test_window_and_shapes_are_checked(attention):
    q, k, v = oracle.draw(8, 1, (2, 1), 2, 4, 16)
    with pytest.raises(ValueError, match="window must be an integer >= 1, got 0"):
        attention(q, k, v, window=0)
    with pytest.raises(ValueError, match="k must have shape"):
        attention(q, k[..., :8], v)


@each_attention
def test_no_queries_is_an_empty_result(attention):
    assert attention(*oracle.draw(9, 1, (2, 1), 0, 5, 16)).shape == (1, 2, 0, 16)


@each_attention
def test_autograd_goes_through(attention):
    inputs = [x.requires_grad_() for x in oracle.draw(10, 1, (2, 1), 3, 5, 4, torch.float64)]
    assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, n=2), inputs)
