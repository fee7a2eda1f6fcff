"""Both orders of the loops give the same attention; what they read and write how often differs."""

import math

import oracle
import pytest
import torch

from flashkit import cost
from flashkit.contracts import check_kernel_inputs
from flashkit.kernels import loop_order
from flashkit.kernels.loop_order import keys_outside_fwd, queries_outside_fwd

pytestmark = pytest.mark.filterwarnings("error")

TILE = {"block_m": 16, "block_n": 16}
ORDERS = {
    "keys outside": (keys_outside_fwd, {}),
    "queries outside, one program a head": (queries_outside_fwd, {"programs": 1}),
    "queries outside, three programs a head": (queries_outside_fwd, {"programs": 3}),
    "queries outside, a program a block": (queries_outside_fwd, {}),
}
each_order = pytest.mark.parametrize("order", ORDERS)


def attend(order, q, k, v, offset=None, *, causal=True, window=None):
    """One of the launchers, as the public call would use it."""
    forward, options = ORDERS[order]
    problem = {"offset": k.shape[2] - q.shape[2] if offset is None else offset}
    problem |= {"causal": causal, "window": window, "scale": q.shape[3] ** -0.5}
    return forward(q, k, v, check_kernel_inputs(q, k, v), **problem, **TILE, **options)


def check(order, q, k, v, offset=None, **mask):
    want, want_lse = oracle.attention(q, k, v, offset, **mask)
    o, lse = attend(order, *(oracle.fenced(x) for x in (q, k, v)), offset, **mask)
    assert o.dtype == q.dtype
    oracle.assert_same(o, want, 1e-5)
    oracle.assert_same(lse, want_lse, 1e-5)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the kernel does not write shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


@each_order
@pytest.mark.parametrize(
    ("t", "s", "causal"),
    [(1, 1, True), (17, 33, True), (17, 33, False), (40, 20, True), (16, 0, False)],
)
def test_lengths(order, t, s, causal):
    """More queries than keys too: rows that see nothing are 0 with lse -inf in either order."""
    check(order, *oracle.draw(0, 1, (2, 1), t, s, 16), causal=causal)


@each_order
@pytest.mark.parametrize(("offset", "window"), [(5, None), (-12, None), (13, 7), (40, 20)])
def test_offset_and_window(order, offset, window):
    check(order, *oracle.draw(1, 1, (2, 1), 20, 45, 20), offset, window=window)


@each_order
def test_strides_and_no_rows(order):
    q, k, v = oracle.draw(2, 1, (2, 2), 20, 20, 16)
    want = attend(order, q, k, v)
    turned = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    for got, expected in zip(attend(order, *turned), want, strict=True):
        assert torch.equal(got, expected)
    o, lse = attend(order, q[:, :, :0], k, v)
    assert (o.shape, lse.shape) == ((1, 2, 0, 16), (1, 2, 0))


@each_order
def test_what_a_mask_hides_never_matters(order):
    q, k, v = oracle.draw(3, 1, (1, 1), 40, 40, 16)
    want, _ = attend(order, q, k, v)
    k[:, :, 30:], v[:, :, 30:] = math.nan, math.inf
    got, _ = attend(order, q, k, v)
    assert torch.equal(got[:, :, :30], want[:, :, :30])
    assert got[:, :, 30:].isnan().all()


@each_order
def test_scores_that_keep_rising_and_falling(order):
    """m changes in every tile, so what was written before is scaled by an alpha far from 1."""
    q, k, v = oracle.draw(4, 1, (1, 1), 33, 70, 16)
    k *= torch.tensor([3.0, 0.1, 6.0, 0.5, 9.0]).repeat_interleave(16)[:70, None].to(k.device)
    check(order, q, k, v)


def count(monkeypatch) -> dict[str, int]:
    """How many tiles were loaded and stored, once a launcher has run."""
    counts = {}
    for name in ("load_tile", "store_tile"):
        original = getattr(loop_order, name)

        def counted(*args, name=name, original=original):
            counts[name] = counts.get(name, 0) + 1
            return original(*args)

        monkeypatch.setattr(loop_order, name, counted)
    return counts


@pytest.mark.skipif(not hasattr(loop_order.load_tile, "rewrite"), reason="interpreter only")
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 20)])
def test_what_is_read_and_written_how_often(monkeypatch, causal, window):
    """The whole difference: o comes and goes with each tile, or leaves once a block of queries."""
    tiles = cost.tile_counts(64, 96, 32, 16, 16, causal, window)
    seen, queries, keys = tiles["full"] + tiles["partial"], 64 // 16, 96 // 16
    inputs = oracle.draw(5, 1, (1, 1), 64, 96, 16)
    counts = count(monkeypatch)
    attend("keys outside", *inputs, causal=causal, window=window)
    assert counts == {"load_tile": 2 * keys + 2 * seen, "store_tile": seen}
    counts.clear()
    attend("queries outside, a program a block", *inputs, causal=causal, window=window)
    assert counts == {"load_tile": queries + 2 * seen, "store_tile": queries}
