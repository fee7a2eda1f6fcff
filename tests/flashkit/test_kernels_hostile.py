"""The forward kernels on hostile inputs: layouts, hidden NaN, nothing to do, extremes, errors."""

import math
from functools import partial

import numpy as np
import oracle
import pytest
import torch

from flashkit import flash_attention

pytestmark = pytest.mark.filterwarnings("error")

TILE = {"block_m": 16, "block_n": 16}


@pytest.fixture(autouse=True, params=["teaching", "triton"])
def backend(request, monkeypatch):
    """Every case runs on the chapter's kernel and on the tuned one."""
    name = request.param
    monkeypatch.setitem(globals(), "flash_attention", partial(flash_attention, backend=name))
    return name


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the kernel does not write shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def every_second_row(x):
    return x.repeat_interleave(2, dim=2)[:, :, ::2]


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def column_major(x):
    return x.mT.contiguous().mT


def expanded(x):
    return x[:1, :1].expand(x.shape)


LAYOUTS = [every_second_row, transposed, column_major, expanded]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
def test_strides(layout, which):
    """q, k and v each by their own strides, the last one too.

    Seen in flagos-ai/FlagAttention#45, flagos-ai/FlagGems#5896, triton-lang/triton#5480.
    """
    inputs = list(oracle.draw(9, 2, (2, 2), 18, 20, 16))
    for i in which:
        inputs[i] = layout(inputs[i])
    want, _ = oracle.attention(*inputs)
    oracle.assert_same(flash_attention(*inputs, **TILE), want)


def test_slices_of_one_projection():
    """q, k, v unbound from a fused (B, T, 3, H, D) (flagos-ai/FlagGems#5896)."""
    qkv = torch.randn(1, 24, 3, 2, 32, generator=torch.Generator().manual_seed(3))
    q, k, v = (x.transpose(1, 2) for x in qkv.to(oracle.DEVICE).unbind(2))
    want, _ = oracle.attention(q, k, v)
    oracle.assert_same(flash_attention(q, k, v, **TILE), want)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("offset", "window"), [(3, None), (10, 3), (20, 6)])
def test_what_is_hidden_never_matters(bad, offset, window):
    """Keys and values that no row sees, in the same tile as visible ones and in others."""
    q, k, v = oracle.draw(10, 1, (2, 1), 3, 40, 16)
    want, want_lse = oracle.attention(q, k, v, offset, window=window)
    rows = [offset, offset + 1, offset + 2]
    hidden = [j for j in range(40) if not any(oracle.sees(i, j, True, window) for i in rows)]
    k[:, :, hidden] = bad
    v[:, :, hidden] = bad
    with np.errstate(invalid="ignore"):  # NumPy multiplies the hidden infinities all the same
        o, lse = flash_attention(q, k, v, offset, window=window, return_lse=True, **TILE)
    oracle.assert_same(o, want)
    oracle.assert_same(lse, want_lse)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_matters_only_to_the_rows_that_see_it(bad):
    q, k, v = oracle.draw(11, 1, (1, 1), 20, 20, 16)
    want, _ = oracle.attention(q, k, v)
    v[0, 0, 7, 3] = bad
    with np.errstate(invalid="ignore"):
        o = oracle.numpy64(flash_attention(q, k, v, **TILE))
    np.testing.assert_allclose(o[0, 0, :7], want[0, 0, :7], atol=1e-5)
    assert not np.isfinite(o[0, 0, 7:, 3]).any()


def test_rows_that_see_nothing():
    """Output 0 and lse -inf, never NaN and never the mean of v (pytorch/pytorch#103963)."""
    q, k, v = oracle.draw(12, 1, (2, 1), 20, 5, 16)
    o, lse = flash_attention(q, k, v, return_lse=True, **TILE)
    assert (o[:, :, :15] == 0).all()
    assert (lse[:, :, :15] == -math.inf).all()
    assert lse[:, :, 15:].isfinite().all()


@pytest.mark.parametrize(("t", "s"), [(3, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("causal", [True, False])
def test_nothing_to_do(t, s, causal):
    """No keys give 0 and -inf, no queries an empty tensor, without a launch.

    Seen in Dao-AILab/flash-attention#2470.
    """
    o, lse = flash_attention(*oracle.draw(13, 2, (2, 1), t, s, 16), causal=causal, return_lse=True)
    assert o.shape == (2, 2, t, 16)
    assert (o == 0).all()
    assert (lse == -math.inf).all()
    assert flash_attention(*oracle.draw(13, 0, (2, 1), 3, 4, 16)).shape == (0, 2, 3, 16)


def test_large_scores_in_half_precision():
    """A scaled score of 460800 overflows float16, not float32 (pytorch/pytorch#121558)."""
    v = oracle.draw(14, 1, (1, 1), 5, 5, 64, torch.float16)[2]
    q = k = torch.full_like(v, 240.0)
    o, lse = flash_attention(q, k, v, return_lse=True)
    want, want_lse = oracle.attention(q, k, v)
    oracle.assert_within_budget(o, want, oracle.eager(q, k, v))
    np.testing.assert_allclose(oracle.numpy64(lse), want_lse, atol=0.05)


def test_hard_scores():
    """All very negative (m must start at -inf), very large, one huge last key, ties."""
    q, k, v = oracle.draw(15, 1, (1, 1), 20, 20, 16)
    last = k.clone()
    last[:, :, -1] *= 1e3
    for queries, keys in ((-30 * q.abs(), 30 * k.abs()), (q * 30, k), (q, last), (q * 0, k)):
        want, _ = oracle.attention(queries, keys, v)
        got = flash_attention(queries, keys, v, **TILE)
        oracle.assert_within_budget(got, want, oracle.eager(queries, keys, v))


@pytest.mark.parametrize("scale", [0.7, 0, 1e-6, -0.7, -3.0])
@pytest.mark.parametrize("window", [None, 3])
def test_scale(scale, window):
    """Any finite number: times a negative one the largest score is the smallest."""
    q, k, v = oracle.draw(16, 1, (1, 1), 20, 23, 16)
    want, want_lse = oracle.attention(q, k, v, scale=scale, window=window)
    o, lse = flash_attention(q, k, v, scale=scale, window=window, return_lse=True, **TILE)
    oracle.assert_same(o, want, 2e-5)
    oracle.assert_same(lse, want_lse, 2e-5)


def test_structure():
    """Weights sum to 1; v = identity gives the weights; an order of hidden-free keys is free."""
    q, k, _ = oracle.draw(17, 1, (1, 1), 16, 16, 16)
    ones, identity = torch.ones_like(k), torch.eye(16, device=k.device).expand_as(k)
    oracle.assert_same(flash_attention(q, k, ones), np.ones((1, 1, 16, 16)))
    weights = oracle.numpy64(flash_attention(q, k, identity))[0, 0]
    assert (np.triu(weights, 1) == 0).all()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).to(k.device)
    permuted = flash_attention(q, k[:, :, order], identity[:, :, order], causal=False)
    plain = flash_attention(q, k, identity, causal=False)
    oracle.assert_same(permuted, oracle.numpy64(plain))


def test_twice_gives_the_same_bits():
    """A race would show as a difference between runs.

    Seen in triton-lang/triton#621, Dao-AILab/flash-attention#429.
    """
    inputs = oracle.draw(18, 1, (2, 1), 33, 40, 40, torch.float16)
    once, again = (flash_attention(*inputs, return_lse=True) for _ in range(2))
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])


def test_inputs_are_left_alone():
    inputs = oracle.draw(19, 1, (2, 1), 5, 9, 16)
    before = [x.clone() for x in inputs]
    flash_attention(*inputs)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"block_m": 24}, "block_m must be a power of two >= 16, got 24"),
        ({"block_n": 8}, "block_n must be a power of two >= 16, got 8"),
        ({"block_m": 0}, "block_m must be a power of two >= 16, got 0"),
        ({"block_n": -16}, "block_n must be a power of two >= 16, got -16"),
        ({"window": 0}, "window must be an integer >= 1, got 0"),
        ({"query_offset": 1.5}, "query_offset must be an integer, got 1.5"),
        ({"scale": math.inf}, "scale must be a finite number, got inf"),
        ({"scale": "1"}, "scale must be a finite number, got '1'"),
        ({"backend": "cuda"}, "backend must be one of auto, teaching, triton, hopper, got 'cuda'"),
    ],
)
def test_wrong_options(kwargs, message):
    with pytest.raises(ValueError, match=message):
        flash_attention(*oracle.draw(20, 1, (1, 1), 4, 4, 16), **kwargs)
