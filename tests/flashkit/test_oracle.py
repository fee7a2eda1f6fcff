"""The oracle against cases worked out by hand, and its two forms against each other."""

import math

import numpy as np
import oracle
import pytest
import torch


def test_one_key_gives_its_value():
    q, k, v = oracle.draw(0, 1, (2, 1), 1, 1, 16)
    o, lse = oracle.attention(q, k, v)
    np.testing.assert_allclose(o, oracle.numpy64(v).repeat(2, axis=1))
    np.testing.assert_allclose(lse[..., 0], oracle.numpy64((q * k).sum(-1)[..., 0]) / 4, atol=1e-6)


def test_equal_scores_give_the_mean():
    _, k, v = oracle.draw(1, 1, (1, 1), 3, 7, 16)
    q = torch.zeros(1, 1, 3, 16)
    o, lse = oracle.attention(q, k, v, 2)
    np.testing.assert_allclose(o[0, 0, 1], oracle.numpy64(v)[0, 0, :4].mean(0))
    np.testing.assert_allclose(lse[0, 0], np.log([3, 4, 5]))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("offset", [None, 4, -2])
def test_both_forms_agree(causal, window, offset):
    q, k, v = oracle.draw(2, 2, (4, 2), 5, 11, 16)
    o, lse = oracle.attention(q, k, v, offset, causal=causal, window=window)
    again, lse_again = oracle.exact(q, k, v, offset, causal=causal, window=window)
    oracle.assert_same(again, o, 1e-12)
    oracle.assert_same(lse_again, lse, 1e-12)
    oracle.assert_same(oracle.eager(q, k, v, offset, causal=causal, window=window), o, 1e-5)


@pytest.mark.parametrize("broken", ["shape", "nan", "off"])
def test_the_budget_can_be_missed(broken):
    q, k, v = oracle.draw(3, 1, (1, 1), 4, 4, 16, torch.float16)
    want, _ = oracle.attention(q, k, v)
    baseline = oracle.eager(q, k, v)
    oracle.assert_within_budget(baseline, want, baseline)
    got = {"shape": baseline[:, :, :3], "nan": baseline * math.nan, "off": baseline + 0.01}
    with pytest.raises(AssertionError):
        oracle.assert_within_budget(got[broken], want, baseline)


def test_a_fence_holds_nan_on_both_sides():
    x = oracle.fenced(torch.arange(6.0).reshape(2, 3))
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    around = x.as_strided((8,), (1,), x.storage_offset() - 1)
    assert [math.isnan(value) for value in around.tolist()] == [True] + [False] * 6 + [True]
