"""The forward kernel in the interpreter: every case here names a bug that somebody shipped."""

import math

import numpy as np
import oracle
import pytest
import torch

from flashkit import flash_attention, runtime

# bugs.md B13: a correct kernel raises no RuntimeWarning in the interpreter.
pytestmark = pytest.mark.filterwarnings("error")

TILE = {"block_m": 16, "block_n": 16}


def check(q, k, v, offset=None, *, causal=True, window=None, tolerance=1e-5, **blocks):
    """flash_attention inside NaN fences, output and lse, against the oracle."""
    want, want_lse = oracle.attention(q, k, v, offset, causal=causal, window=window)
    inputs = (oracle.fenced(x) for x in (q, k, v))
    o, lse = flash_attention(
        *inputs, offset, causal=causal, window=window, return_lse=True, **(TILE | blocks)
    )
    assert o.dtype == q.dtype
    assert lse.dtype == torch.float32
    if q.dtype == torch.float32:
        oracle.assert_same(o, want, tolerance)
    else:
        baseline = oracle.eager(q, k, v, offset, causal=causal, window=window)
        oracle.assert_within_budget(o, want, baseline)
    oracle.assert_same(lse, want_lse, 1e-5)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """bugs.md A27, B03: new buffers hold NaN, so what the kernel does not write shows."""
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **kw: poison(empty(*a, **kw)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **kw: poison(empty_like(*a, **kw)))


def poison(x):
    return x.fill_(math.nan) if x.is_floating_point() else x


LENGTHS = [(1, 1), (15, 15), (16, 16), (17, 17), (33, 33), (20, 50), (1, 50), (3, 8), (50, 20)]


@pytest.mark.parametrize(("t", "s"), LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
def test_lengths(t, s, causal):
    """Prefill, chunked prefill, decode, and more queries than keys (rows that see nothing)."""
    check(*oracle.draw(0, 1, (2, 1), t, s, 16), causal=causal)


@pytest.mark.parametrize("offset", [0, 5, 12, 40, -5, -30])
def test_offsets(offset):
    """bugs.md A06: the loop bound and the mask follow the offset, wherever it puts the rows."""
    check(*oracle.draw(1, 1, (1, 1), 20, 25, 16), offset)


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 32), (32, 16), (64, 16), (None, None)])
def test_tile_sizes(block_m, block_n):
    check(*oracle.draw(2, 1, (2, 2), 37, 45, 16), block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("window", [1, 5, 16, 17, 100])
@pytest.mark.parametrize(("t", "s", "causal"), [(35, 35, True), (20, 50, True), (20, 33, False)])
def test_windows(window, t, s, causal):
    """bugs.md A12: a row whose first tile is wholly outside of its window must not be NaN."""
    check(*oracle.draw(3, 1, (1, 1), t, s, 16), causal=causal, window=window)


@pytest.mark.skipif(not runtime.interpreting(), reason="counts the loads of the interpreter")
@pytest.mark.parametrize(("t", "s", "offset"), [(64, 64, 0), (40, 70, 30), (1, 70, 69)])
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (True, 17), (False, 20), (False, None)]
)
def test_only_tiles_with_something_to_see_are_visited(monkeypatch, t, s, offset, causal, window):
    """Causal and window skip whole tiles, on both sides; the values alone would not show it."""
    from flashkit.kernels import forward

    loads, load_tile = [], forward.load_tile
    monkeypatch.setattr(forward, "load_tile", lambda *args: loads.append(1) or load_tile(*args))
    flash_attention(*oracle.draw(3, 1, (1, 1), t, s, 16), causal=causal, window=window, **TILE)
    visited = {
        (i // 16, j // 16)
        for i, j in np.ndindex(t, s)
        if oracle.sees(offset + i, j, causal, window)
    }
    assert len(loads) == math.ceil(t / 16) + 2 * len(visited), "one q a block, k and v a tile"


def test_window_one_returns_the_diagonal():
    q, k, v = oracle.draw(4, 1, (1, 1), 33, 33, 16)
    assert torch.equal(flash_attention(q, k, v, window=1, **TILE), v)


@pytest.mark.parametrize("heads", [(5, 1), (10, 2), (17, 1), (32, 1), (6, 2)])
@pytest.mark.parametrize("t", [1, 17])
def test_groups(heads, t):
    """bugs.md A18: any group size, a power of two or not."""
    check(*oracle.draw(5, 1, heads, t, 17, 16))


def test_query_heads_read_their_own_kv_head():
    """bugs.md A19: repeated (h // group), not tiled (h % Hkv)."""
    q, k, v = oracle.draw(6, 2, (4, 2), 3, 5, 16)
    v[:, 0], v[:, 1] = 0.0, 1.0
    o = flash_attention(q, k, v, **TILE)
    assert o.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 1, 1])


@pytest.mark.parametrize("d", [16, 17, 32, 40, 64, 72, 80, 96, 128, 192, 256])
def test_head_dims(d):
    """bugs.md A20: any head dim is right, and the columns past it are not read."""
    check(*oracle.draw(7, 1, (1, 1), 17, 20, d))


@pytest.mark.parametrize("d", [8, 15, 257])
def test_other_head_dims_are_refused(d):
    with pytest.raises(ValueError, match=f"head dim D must be from 16 to 256, got {d}"):
        flash_attention(*oracle.draw(7, 1, (1, 1), 2, 2, d))


@pytest.mark.parametrize("shape", [(33, 33), (5, 40), (1, 40)])
@pytest.mark.parametrize("window", [None, 9])
def test_float16(shape, window):
    check(*oracle.draw(8, 1, (4, 2), *shape, 32, torch.float16), window=window)


def test_growing_cache():
    """bugs.md A11: one token at a time over lengths that do not divide the tile, k transposed."""
    for length in range(30, 35):
        q, k, v = oracle.draw(length, 1, (2, 1), 1, length, 64, torch.float16)
        want, _ = oracle.attention(q, k, v)
        k = k.transpose(1, 2).contiguous().transpose(1, 2)
        got = flash_attention(q, k, v, length - 1)
        oracle.assert_within_budget(got, want, oracle.eager(q, k, v))


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
    """bugs.md A02, A03, B06: q, k and v each by their own strides, the last one too."""
    inputs = list(oracle.draw(9, 2, (2, 2), 18, 20, 16))
    for i in which:
        inputs[i] = layout(inputs[i])
    want, _ = oracle.attention(*inputs)
    oracle.assert_same(flash_attention(*inputs, **TILE), want)


def test_slices_of_one_projection():
    """bugs.md A03: q, k, v unbound from a fused (B, T, 3, H, D)."""
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
    o = oracle.numpy64(flash_attention(q, k, v, **TILE))
    np.testing.assert_allclose(o[0, 0, :7], want[0, 0, :7], atol=1e-5)
    assert not np.isfinite(o[0, 0, 7:, 3]).any()


def test_rows_that_see_nothing():
    """bugs.md A05: output 0 and lse -inf, never NaN and never the mean of v."""
    q, k, v = oracle.draw(12, 1, (2, 1), 20, 5, 16)
    o, lse = flash_attention(q, k, v, return_lse=True, **TILE)
    assert (o[:, :, :15] == 0).all()
    assert (lse[:, :, :15] == -math.inf).all()
    assert lse[:, :, 15:].isfinite().all()


@pytest.mark.parametrize(("t", "s"), [(3, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("causal", [True, False])
def test_nothing_to_do(t, s, causal):
    """bugs.md A24: no keys give 0 and -inf, no queries an empty tensor, without a launch."""
    o, lse = flash_attention(*oracle.draw(13, 2, (2, 1), t, s, 16), causal=causal, return_lse=True)
    assert o.shape == (2, 2, t, 16)
    assert (o == 0).all()
    assert (lse == -math.inf).all()
    assert flash_attention(*oracle.draw(13, 0, (2, 1), 3, 4, 16)).shape == (0, 2, 3, 16)


def test_large_scores_in_half_precision():
    """bugs.md A21: a scaled score of 460800 overflows float16, not float32."""
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


def test_scale():
    q, k, v = oracle.draw(16, 1, (1, 1), 5, 9, 16)
    want, _ = oracle.attention(q, k, v, scale=0.7)
    oracle.assert_same(flash_attention(q, k, v, scale=0.7), want)


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
    """bugs.md A20, A25."""
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
    ],
)
def test_wrong_options(kwargs, message):
    with pytest.raises(ValueError, match=message):
        flash_attention(*oracle.draw(20, 1, (1, 1), 4, 4, 16), **kwargs)


def test_gradients_are_refused_by_name():
    q, k, v = oracle.draw(21, 1, (1, 1), 2, 2, 16)
    with pytest.raises(NotImplementedError, match="use online_attention"):
        flash_attention(q.requires_grad_(), k, v)
    with torch.no_grad():
        assert flash_attention(q, k, v).isfinite().all()
