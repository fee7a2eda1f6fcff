"""The walk over keys: dq of one tile of queries, in the order and with the masks of the forward.

Source: Dao, FlashAttention-2 (2023), Algorithm 2.
"""

import triton
import triton.language as tl

from flashkit.kernels.backward_parts import head_of, note_wrong
from flashkit.kernels.forward_tuned import load_rows, plain_range
from flashkit.kernels.primitives import key_range, store_tile, turn, visible


@triton.jit
def walk_keys(
    dq, q_tile, do_tile, lse2, delta, q_pos, k, v, b, kv_h, start, stop, S, D, scale2,
    k_strides, v_strides,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Stream the keys [start, stop) past one tile of queries: new dq, unscaled."""
    for start_n in range(start, stop, BLOCK_N):
        k_tile = load_rows(
            k, b, kv_h, start_n, S, D, k_strides[2], k_strides[3], BLOCK_N, BLOCK_D, TMA
        )
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        v_tile = load_rows(
            v, b, kv_h, start_n, S, D, v_strides[2], v_strides[3], BLOCK_N, BLOCK_D, TMA
        )
        dp = tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee")
        exponent = s * scale2 - lse2[:, None]
        if MASKED:
            seen = visible(q_pos, start_n + tl.arange(0, BLOCK_N), S, CAUSAL, WINDOW)
            exponent = tl.where(seen, exponent, -float("inf"))
        p = tl.exp2(exponent)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")
    return dq


@triton.jit(do_not_specialize=["T", "S", "padded", "offset", "heads", "group", "together"])
def _tuned_dq_kernel(
    q, k, v, do, delta_ptr, lse2_ptr, dq_ptr, only_if,
    q_strides, k_strides, v_strides, do_strides,
    T, S, padded, offset, heads, group, together, scale, scale2,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TMA: tl.constexpr, SPLIT_MASKS: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head against every key that they can see.

    Grid      (cdiv(T, BLOCK_M) * B * Hq,), last rows first: causal ones see most, see `turn`
    Writes    dq (B, Hq, T, D) contiguous; else as `_tuned_dkdv_kernel`
    """
    blocks = tl.cdiv(T, BLOCK_M)
    block, bh = turn(blocks, together)
    first_row = (blocks - 1 - block) * BLOCK_M
    b = bh // heads
    h = bh % heads
    kv_h = h // group
    q = head_of(q, b, h, q_strides, TMA)
    k = head_of(k, b, kv_h, k_strides, TMA)
    v = head_of(v, b, kv_h, v_strides, TMA)
    do = head_of(do, b, h, do_strides, TMA)
    q_tile = load_rows(q, b, h, first_row, T, D, q_strides[2], q_strides[3], BLOCK_M, BLOCK_D, TMA)
    do_tile = load_rows(
        do, b, h, first_row, T, D, do_strides[2], do_strides[3], BLOCK_M, BLOCK_D, TMA
    )
    offs_m = first_row + tl.arange(0, BLOCK_M)
    row = bh.to(tl.int64) * padded
    lse2 = tl.load(lse2_ptr + row + offs_m)
    delta = tl.load(delta_ptr + row + offs_m)

    first_pos = offset + first_row
    last_pos = offset + tl.minimum(first_row + BLOCK_M, T) - 1
    start, stop = key_range(first_pos, last_pos, S, CAUSAL, WINDOW)
    start = start // BLOCK_N * BLOCK_N
    left, right = start, start
    if SPLIT_MASKS:
        left, right = plain_range(start, stop, first_pos, last_pos, S, CAUSAL, WINDOW, BLOCK_N)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    if WINDOW > 0:
        dq = walk_keys(
            dq, q_tile, do_tile, lse2, delta, offset + offs_m, k, v, b, kv_h, start, left, S, D,
            scale2, k_strides, v_strides, True, CAUSAL, WINDOW, BLOCK_N, BLOCK_D, TMA,
        )  # fmt: skip
    dq = walk_keys(
        dq, q_tile, do_tile, lse2, delta, offset + offs_m, k, v, b, kv_h, left, right, S, D,
        scale2, k_strides, v_strides, False, CAUSAL, WINDOW, BLOCK_N, BLOCK_D, TMA,
    )  # fmt: skip
    dq = walk_keys(
        dq, q_tile, do_tile, lse2, delta, offset + offs_m, k, v, b, kv_h, right, stop, S, D,
        scale2, k_strides, v_strides, True, CAUSAL, WINDOW, BLOCK_N, BLOCK_D, TMA,
    )  # fmt: skip

    note_wrong(only_if, dq, offs_m, T)
    offs_d = tl.arange(0, BLOCK_D)
    where = offs_m.to(tl.int64)
    store_tile(dq_ptr + bh.to(tl.int64) * T * D, dq * scale, where, offs_d, D, 1, T, D)
