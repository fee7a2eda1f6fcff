"""The forward kernels in the interpreter: every case here names a bug that somebody shipped."""

import importlib
import math
from functools import partial

import numpy as np
import oracle
import pytest
import torch

from flashkit import flash_attention, runtime
from flashkit.attention import BACKENDS

# A correct kernel raises no RuntimeWarning in the interpreter (triton-lang/triton#10291).
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


@pytest.fixture(autouse=True, params=["teaching", "triton"])
def backend(request, monkeypatch):
    """Every case runs on the chapter's kernel and on the tuned one."""
    name = request.param
    monkeypatch.setitem(globals(), "flash_attention", partial(flash_attention, backend=name))
    return name


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the kernel does not write shows as NaN.

    Seen in fla-org/flash-linear-attention#892, triton-lang/triton#4730.
    """
    oracle.poison_new_tensors(monkeypatch)


LENGTHS = [(1, 1), (15, 15), (16, 16), (17, 17), (33, 33), (20, 50), (1, 50), (3, 8), (50, 20)]


@pytest.mark.parametrize(("t", "s"), LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
def test_lengths(t, s, causal):
    """Prefill, chunked prefill, decode, and more queries than keys (rows that see nothing)."""
    check(*oracle.draw(0, 1, (2, 1), t, s, 16), causal=causal)


@pytest.mark.parametrize("offset", [0, 5, 12, 40, -5, -30])
def test_offsets(offset):
    """The loop bound and the mask follow the offset, wherever it puts the rows.

    Seen in pytorch/pytorch#103082.
    """
    check(*oracle.draw(1, 1, (1, 1), 20, 25, 16), offset)


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 32), (32, 16), (64, 16), (None, None)])
def test_tile_sizes(block_m, block_n):
    check(*oracle.draw(2, 1, (2, 2), 37, 45, 16), block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("window", [1, 5, 16, 17, 100])
@pytest.mark.parametrize(("t", "s", "causal"), [(35, 35, True), (20, 50, True), (20, 33, False)])
def test_windows(window, t, s, causal):
    """A row whose first tile is wholly outside of its window must not be NaN.

    Seen in flagos-ai/FlagAttention#25.
    """
    check(*oracle.draw(3, 1, (1, 1), t, s, 16), causal=causal, window=window)


@pytest.mark.skipif(not runtime.interpreting(), reason="counts the loads of the interpreter")
@pytest.mark.parametrize(("t", "s", "offset"), [(64, 64, 0), (40, 70, 30), (1, 70, 69)])
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (True, 17), (False, 20), (False, None)]
)
def test_only_tiles_with_something_to_see_are_visited(
    monkeypatch, backend, t, s, offset, causal, window
):  # fmt: skip
    """Causal and window skip whole tiles, on both sides; the values alone would not show it."""
    module = importlib.import_module(BACKENDS[backend].module)
    name = "load_tile" if backend == "teaching" else "load_rows"
    loads, load = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args: loads.append(1) or load(*args))
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
    """Any group size, a power of two or not (pytorch/pytorch#143117)."""
    check(*oracle.draw(5, 1, heads, t, 17, 16))


def test_query_heads_read_their_own_kv_head():
    """Repeated (h // group), not tiled (h % Hkv) (ekzhang/jax-js#180)."""
    q, k, v = oracle.draw(6, 2, (4, 2), 3, 5, 16)
    v[:, 0], v[:, 1] = 0.0, 1.0
    o = flash_attention(q, k, v, **TILE)
    assert o.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 1, 1])


@pytest.mark.parametrize("d", [16, 17, 32, 40, 64, 72, 80, 96, 128, 192, 256])
def test_head_dims(d):
    """Any head dim is right, and the columns past it are not read (triton-lang/triton#621)."""
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
    """One token at a time over lengths that do not divide the tile, k transposed.

    Seen in pytorch/pytorch#133717.
    """
    for length in range(30, 35):
        q, k, v = oracle.draw(length, 1, (2, 1), 1, length, 64, torch.float16)
        want, _ = oracle.attention(q, k, v)
        k = k.transpose(1, 2).contiguous().transpose(1, 2)
        got = flash_attention(q, k, v, length - 1)
        oracle.assert_within_budget(got, want, oracle.eager(q, k, v))
