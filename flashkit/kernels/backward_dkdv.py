"""The walk over queries: dk and dv of one tile of keys, summed over a group's heads.

Source: Dao, FlashAttention-2 (2023), Algorithm 2; Shah et al., FlashAttention-3 (2024), for
lse = inf where nothing is to be seen.
"""

import triton
import triton.language as tl

from flashkit.kernels.backward import query_range
from flashkit.kernels.backward_parts import head_of, note_wrong
from flashkit.kernels.forward_tuned import load_rows
from flashkit.kernels.primitives import store_tile, turn, visible


@triton.jit
def plain_queries(
    start, stop, first_key, last_key, offset,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The tiles [left, right) within [start, stop) of which every row sees every key:
    `plain_range` turned about. Rows past T need no mask, so the last tile may be short."""
    left = start
    right = stop
    if CAUSAL:
        left = tl.cdiv(tl.maximum(last_key - offset, 0), BLOCK_M) * BLOCK_M
        left = tl.minimum(tl.maximum(left, start), tl.maximum(stop, start))
    if WINDOW > 0:
        whole = tl.maximum(first_key + WINDOW - offset, 0) // BLOCK_M * BLOCK_M
        right = tl.minimum(whole, stop)
    return left, tl.maximum(left, right)


@triton.jit
def walk_queries(
    dk, dv, k_tile, v_tile, offs_n, q, do, lse2_ptr, delta_ptr, b, h, start, stop, T, D, offset,
    scale2, q_strides, do_strides,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Stream the rows [start, stop) of one head past one tile of keys: new dk, unscaled, and dv.

    The scores stand transposed, (keys, queries): so p and ds are the left operands of the products
    that follow and stay in the registers where the tensor cores left them.
    """
    for start_m in range(start, stop, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        q_tile = load_rows(
            q, b, h, start_m, T, D, q_strides[2], q_strides[3], BLOCK_M, BLOCK_D, TMA
        )
        s = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
        do_tile = load_rows(
            do, b, h, start_m, T, D, do_strides[2], do_strides[3], BLOCK_M, BLOCK_D, TMA
        )
        dp = tl.dot(v_tile, tl.trans(do_tile), input_precision="ieee")
        # lse2 is inf past T and where a row sees nothing: p is then 0 without a mask.
        exponent = s * scale2 - tl.load(lse2_ptr + offs_m)[None, :]
        if MASKED:
            seen = visible(offset + offs_m, offs_n, offs_n + 1, CAUSAL, WINDOW)
            exponent = tl.where(tl.trans(seen), exponent, -float("inf"))
        p = tl.exp2(exponent)
        dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision="ieee")
        ds = p * (dp - tl.load(delta_ptr + offs_m)[None, :])
        dk = tl.dot(ds.to(q_tile.dtype), q_tile, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=["T", "S", "padded", "offset", "kv_heads", "group", "together"])
def _tuned_dkdv_kernel(
    q, k, v, do, delta_ptr, lse2_ptr, dk_ptr, dv_ptr, only_if,
    q_strides, k_strides, v_strides, do_strides,
    T, S, padded, offset, kv_heads, group, together, scale, scale2,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TMA: tl.constexpr, SPLIT_MASKS: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N keys of one KV head against every query of its group that sees them.

    Grid      (cdiv(S, BLOCK_N) * B * Hkv,): under a causal mask the longest first, see `turn`
    Reads     q, k, v, do: descriptors if TMA, else pointers; lse2, delta (B, Hq, padded)
    Writes    dk, dv (B, Hkv, S, D) contiguous; only_if = 1 if not all of it is finite
    """
    blocks = tl.cdiv(S, BLOCK_N)
    block, bh = turn(blocks, together)
    first_key = block * BLOCK_N
    b = bh // kv_heads
    kv_h = bh % kv_heads
    offs_n = first_key + tl.arange(0, BLOCK_N)
    k = head_of(k, b, kv_h, k_strides, TMA)
    v = head_of(v, b, kv_h, v_strides, TMA)
    k_tile = load_rows(
        k, b, kv_h, first_key, S, D, k_strides[2], k_strides[3], BLOCK_N, BLOCK_D, TMA
    )
    v_tile = load_rows(
        v, b, kv_h, first_key, S, D, v_strides[2], v_strides[3], BLOCK_N, BLOCK_D, TMA
    )

    last_key = tl.minimum(first_key + BLOCK_N, S) - 1
    start, stop = query_range(first_key, last_key, T, offset, CAUSAL, WINDOW)
    start = start // BLOCK_M * BLOCK_M
    left, right = stop, stop
    if SPLIT_MASKS:
        left, right = plain_queries(
            start, stop, first_key, last_key, offset, CAUSAL, WINDOW, BLOCK_M
        )
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for g in range(group):
        h = kv_h * group + g
        q_head = head_of(q, b, h, q_strides, TMA)
        do_head = head_of(do, b, h, do_strides, TMA)
        row = (b * kv_heads * group + h).to(tl.int64) * padded
        if CAUSAL or not SPLIT_MASKS:
            dk, dv = walk_queries(
                dk, dv, k_tile, v_tile, offs_n, q_head, do_head, lse2_ptr + row, delta_ptr + row,
                b, h, start, left, T, D, offset, scale2, q_strides, do_strides,
                True, CAUSAL, WINDOW, BLOCK_M, BLOCK_D, TMA,
            )  # fmt: skip
        dk, dv = walk_queries(
            dk, dv, k_tile, v_tile, offs_n, q_head, do_head, lse2_ptr + row, delta_ptr + row,
            b, h, left, right, T, D, offset, scale2, q_strides, do_strides,
            False, CAUSAL, WINDOW, BLOCK_M, BLOCK_D, TMA,
        )  # fmt: skip
        if WINDOW > 0:
            dk, dv = walk_queries(
                dk, dv, k_tile, v_tile, offs_n, q_head, do_head, lse2_ptr + row, delta_ptr + row,
                b, h, right, stop, T, D, offset, scale2, q_strides, do_strides,
                True, CAUSAL, WINDOW, BLOCK_M, BLOCK_D, TMA,
            )  # fmt: skip

    # A hidden query has weight 0, but 0 times NaN or infinity is NaN: looked for once a program.
    note_wrong(only_if, dk, offs_n, S)
    note_wrong(only_if, dv, offs_n, S)
    base = bh.to(tl.int64) * S * D
    offs_d = tl.arange(0, BLOCK_D)
    store_tile(dk_ptr + base, dk * scale, offs_n.to(tl.int64), offs_d, D, 1, S, D)
    store_tile(dv_ptr + base, dv, offs_n.to(tl.int64), offs_d, D, 1, S, D)
