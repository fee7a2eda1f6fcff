"""causal_attention is the definition, in any dtype and for any positions; the hidden is hidden."""

import math

import numpy as np
import oracle
import pytest
import torch

from flashkit import causal_attention

SHAPES = [  # heads, T, S, D
    ((1, 1), 1, 1, 4),
    ((4, 2), 7, 7, 16),
    ((6, 2), 3, 19, 24),
    ((5, 1), 1, 12, 16),
]


@pytest.mark.parametrize(("heads", "t", "s", "d"), SHAPES)
@pytest.mark.parametrize("window", [None, 1, 4])
def test_float64_is_exact(heads, t, s, d, window):
    q, k, v = oracle.draw(0, 2, heads, t, s, d, torch.float64)
    want, want_lse = oracle.attention(q, k, v, window=window)
    o, lse = causal_attention(q, k, v, window=window, return_lse=True)
    assert o.dtype == lse.dtype == torch.float64
    oracle.assert_same(o, want, 1e-13)
    oracle.assert_same(lse, want_lse, 1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_stay_within_the_budget(dtype):
    q, k, v = oracle.draw(1, 2, (4, 2), 9, 21, 32, dtype)
    want, want_lse = oracle.attention(q, k, v)
    o, lse = causal_attention(q, k, v, return_lse=True)
    oracle.assert_within_budget(o, want, oracle.eager(q, k, v))
    assert lse.dtype == torch.float32
    oracle.assert_same(lse, want_lse, 1e-5)


def test_key_positions_in_any_order():
    q, k, v = oracle.draw(2, 2, (2, 1), 3, 6, 16)
    query = torch.tensor([[5, 2, 9], [0, 3, 3]])
    key = torch.tensor([[4, 2, 9, 0, 1, 3], [0, 6, 1, 2, 5, 4]])
    want, _ = oracle.attention(
        q, k, v, query_positions=query.tolist(), key_positions=key.tolist(), window=4
    )
    oracle.assert_same(causal_attention(q, k, v, query, key, window=4), want)


def test_one_query_with_a_cache_sees_all_of_it():
    """Bottom right, not top left (pytorch/pytorch#103082)."""
    q, k, v = oracle.draw(3, 1, (1, 1), 1, 8, 16)
    oracle.assert_same(causal_attention(q, k, v), oracle.attention(q, k, v, causal=False)[0])
    assert not np.allclose(oracle.numpy64(causal_attention(q, k, v)), oracle.numpy64(v[:, :, :1]))


def test_window_one_returns_the_diagonal():
    q, k, v = oracle.draw(4, 1, (2, 2), 6, 6, 16)
    assert torch.equal(causal_attention(q, k, v, window=1), v)


def test_scale_and_value_dim():
    q, k, _ = oracle.draw(5, 1, (2, 1), 4, 6, 16, torch.float64)
    v = oracle.draw(6, 1, (2, 1), 4, 6, 3, torch.float64)[2]
    want, _ = oracle.attention(q, k, v, scale=0.5)
    oracle.assert_same(causal_attention(q, k, v, scale=0.5), want, 1e-13)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_hidden_never_matters(poison):
    q, k, v = oracle.draw(7, 1, (2, 1), 3, 8, 16)
    want = causal_attention(q, k, v, torch.tensor([3, 4, 5]), window=3)
    hidden = [0, 6, 7]  # 0 by the window, 6 and 7 by causality
    k[:, :, hidden] = poison
    v[:, :, hidden] = poison
    got = causal_attention(q, k, v, torch.tensor([3, 4, 5]), window=3)
    oracle.assert_same(got, oracle.numpy64(want), 1e-6)


def test_a_visible_nan_shows_in_the_rows_that_see_it():
    q, k, v = oracle.draw(8, 1, (1, 1), 4, 4, 16)
    v[0, 0, 2, 5] = math.nan
    o = causal_attention(q, k, v)
    assert o.isnan().all(-1).tolist() == [[[False, False, True, True]]]


def test_large_scores():
    """Scores of 460800 in float16, the mean of the values so far (pytorch/pytorch#121558)."""
    _, _, v = oracle.draw(9, 1, (1, 1), 5, 5, 64, torch.float16)
    q = k = torch.full_like(v, 240.0)
    o, lse = causal_attention(q, k, v, return_lse=True)
    want, want_lse = oracle.attention(q, k, v)
    oracle.assert_within_budget(o, want, oracle.eager(q, k, v))
    assert lse.flatten().tolist() == pytest.approx(want_lse.ravel().tolist(), abs=0.05)
    assert want_lse.ravel() == pytest.approx([460800 + math.log(i + 1) for i in range(5)])


@pytest.mark.parametrize("kwargs", [{"window": 0}, {"window": -2}, {"window": 1.5}])
def test_window_must_be_positive(kwargs):
    with pytest.raises(ValueError, match="window must be an integer >= 1"):
        causal_attention(*oracle.draw(10, 1, (1, 1), 2, 2, 16), **kwargs)


@pytest.mark.parametrize(("t", "s"), [(3, 0), (4, 3)])
def test_rows_without_keys_raise(t, s):
    with pytest.raises(ValueError, match="a query row has no visible key"):
        causal_attention(*oracle.draw(11, 1, (1, 1), t, s, 16))


def test_no_queries_is_an_empty_result():
    o, lse = causal_attention(*oracle.draw(12, 1, (2, 1), 0, 5, 16), return_lse=True)
    assert o.shape == (1, 2, 0, 16)
    assert lse.shape == (1, 2, 0)
