"""The milestones of the chapter: its worked example, its numbers, its functions, its errors."""

import math

import oracle
import pytest
import torch

import flashkit
from flashkit import cost
from flashkit.backward import attention_backward
from flashkit.online import EMPTY, finish, step, update

SCORES = torch.tensor([0.0, 1.0, 2.0, -1.0], dtype=torch.float64)
VALUES = torch.tensor([[2.0], [4.0], [1.0], [3.0]], dtype=torch.float64)


def four(x) -> list[float]:
    """Numbers as the chapter prints them."""
    return [round(value, 4) for value in torch.as_tensor(x).reshape(-1).tolist()]


def test_worked_example_tile_1():
    m, alpha, p = step(EMPTY, SCORES[:2])
    state = update(EMPTY, SCORES[:2], VALUES[:2])
    assert four(m) == four(state.m) == [1.0]
    assert four(alpha) == [0.0]
    assert four(p) == [0.3679, 1.0]
    assert four(state.l) == [1.3679]
    assert four(state.a) == [4.7358]


def test_worked_example_tile_2():
    first = update(EMPTY, SCORES[:2], VALUES[:2])
    m, alpha, p = step(first, SCORES[2:])
    state = update(first, SCORES[2:], VALUES[2:])
    assert four(m) == four(state.m) == [2.0]
    assert four(alpha) == [0.3679]
    assert four(p) == [1.0, 0.0498]
    assert four(state.l) == [1.5530]
    assert four(state.a) == [2.8915]
    assert four(finish(state)) == four(torch.softmax(SCORES, 0) @ VALUES) == [1.8619]


def test_worked_example_as_attention():
    """One query of head dim 16 whose scores are the example's, in two tiles of two."""
    q = torch.zeros(1, 1, 1, 16)
    q[..., 0] = 4.0  # undone by the scale 1 / sqrt(16)
    k = torch.zeros(1, 1, 4, 16)
    k[0, 0, :, 0] = SCORES.float()
    v = VALUES.float().reshape(1, 1, 4, 1).expand(1, 1, 4, 16).contiguous()
    q, k, v = (x.to(oracle.DEVICE) for x in (q, k, v))
    for o in (
        flashkit.causal_attention(q, k, v),
        flashkit.online_attention(q, k, v, tile=2),
        flashkit.split_attention(q, k, v, num_splits=2),
        flashkit.flash_attention(q, k, v),
        flashkit.flash_decode(q, k, v, num_splits=2),
    ):
        assert four(o) == [1.8619] * 16


def test_the_score_matrix_is_the_problem():
    assert cost.score_entries(8192, 8192) == 67_108_864  # 67 million
    assert cost.score_bytes(8192, 8192) == 256 * 2**20
    assert cost.score_bytes(8192, 8192, batch=8, heads=32) == 64 * 2**30
    assert len(cost.SCORE_PASSES) == 4


def test_traffic_of_the_kernel():
    assert cost.flash_kv_reads(8192, 8192, 128, 128) == 2 * 8192**2 * 128 // 128
    four_passes = 4 * cost.score_entries(8192, 8192)
    assert four_passes == 2 * cost.flash_kv_reads(8192, 8192, 128, 128)


def test_decode_leaves_most_of_the_gpu_idle():
    assert cost.decode_programs(1, 8) == 8
    assert cost.DEVICES["H200"].sms == 132


@pytest.mark.parametrize("tile", [1, 3, 16, 64])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(("t", "s"), [(37, 37), (5, 37), (1, 37)])
def test_online_equals_causal(tile, heads, t, s):
    q, k, v = oracle.draw(15, 2, heads, t, s, 16)
    got = flashkit.online_attention(q, k, v, tile=tile)
    torch.testing.assert_close(got, flashkit.causal_attention(q, k, v), atol=1e-5, rtol=1e-5)
    oracle.assert_same(got, oracle.attention(q, k, v)[0])


def test_online_takes_positions():
    q, k, v = oracle.draw(16, 2, (4, 2), 5, 20, 16)
    positions = torch.tensor([[3, 19, 7, 0, 12], [1, 2, 3, 4, 5]])
    want, _ = oracle.attention(q, k, v, query_positions=positions.tolist())
    for attention in (flashkit.causal_attention, flashkit.online_attention):
        oracle.assert_same(attention(q, k, v, positions), want)


@pytest.mark.parametrize(
    ("t", "s", "offset"),
    [(33, 33, None), (17, 40, None), (1, 40, None), (9, 40, 12)],
    ids=["prefill", "chunked", "decode", "middle"],
)
def test_flash_equals_causal(t, s, offset):
    q, k, v = oracle.draw(17, 1, (4, 2), t, s, 32)
    start = s - t if offset is None else offset
    want = flashkit.causal_attention(q, k, v, torch.arange(start, start + t))
    got = flashkit.flash_attention(q, k, v, offset, block_m=16, block_n=16)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_the_log_sum_exp_is_natural():
    q, k, v = oracle.draw(18, 1, (2, 1), 5, 9, 16)
    _, want = oracle.attention(q, k, v)
    for attention in (flashkit.causal_attention, flashkit.online_attention):
        oracle.assert_same(attention(q, k, v, return_lse=True)[1], want)
    oracle.assert_same(flashkit.flash_attention(q, k, v, return_lse=True)[1], want)


@pytest.mark.parametrize("attention", [flashkit.causal_attention, flashkit.online_attention])
def test_a_row_that_sees_no_key_raises(attention):
    q, k, v = oracle.draw(19, 1, (1, 1), 3, 3, 16)
    with pytest.raises(ValueError, match="a query row has no visible key"):
        attention(q, k, v, torch.tensor([-1, 0, 1]))


@pytest.mark.parametrize("tile", [0, -1, 1.5])
def test_tile_must_be_positive(tile):
    with pytest.raises(ValueError, match=f"tile must be an integer >= 1, got {tile}"):
        flashkit.online_attention(*oracle.draw(20, 1, (1, 1), 3, 3, 16), tile=tile)


@pytest.mark.parametrize(
    "attention",
    [flashkit.causal_attention, flashkit.online_attention, flashkit.flash_attention],
)
def test_query_heads_must_be_a_multiple_of_kv_heads(attention):
    with pytest.raises(ValueError, match="query heads must be a multiple of KV heads"):
        attention(*oracle.draw(21, 1, (3, 2), 3, 3, 16))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize(("t", "s"), [(37, 37), (5, 37)])
def test_the_backward_pass_recomputes_p_from_the_lse(heads, t, s):
    """Stretch exercise 4: against autograd through exact attention, in PyTorch and as a kernel."""
    inputs = [x.requires_grad_() for x in oracle.draw(22, 1, heads, t, s, 16)]
    do = oracle.draw(23, 1, heads, t, s, 16)[0]
    want = torch.autograd.grad(flashkit.causal_attention(*inputs), inputs, do)
    with torch.no_grad():
        o, lse = flashkit.online_attention(*inputs, return_lse=True)
    by_hand = attention_backward(*inputs, o, lse, do)
    by_kernel = torch.autograd.grad(flashkit.flash_attention(*inputs), inputs, do)
    for got in (by_hand, by_kernel):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_what_it_does_not_change():
    """The arithmetic is the same however it is tiled: 4 D operations a visible pair."""
    assert cost.flops(64, 64, 16, causal=False) == 4 * 64 * 64 * 16
    assert math.isclose(cost.flops(8192, 8192, 64) / (4 * 8192**2 * 64), 0.5, rel_tol=1e-3)
