"""The tuned forward on the FP8 tensor cores: both products of 8-bit numbers, sums in float32.

Blocks of 128 rows of q, of k and of v have a scale each (`quantize`). Those of q and k are part of
the one factor that a score is multiplied by. acc is kept in units of the scale of the newest tile
of V, so that changing the unit is part of the rescaling by alpha. Neither costs anything.

The FP8 tensor cores keep some 14 bits of a sum. Each tile is therefore a sum of its own, added to
acc outside of them: 16k values of one sign, summed up inside, came out 18 % too small.
Source: Shah et al., FlashAttention-3 (2024), section 3.3; the rest as in `forward_tuned`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit.contracts import Dims
from flashkit.kernels.careful import careful, fresh, store_rows
from flashkit.kernels.descriptors import descriptor
from flashkit.kernels.forward_tuned import LOG2_E, load_rows, nearby, plain_range
from flashkit.kernels.primitives import exp_reference, key_range, turn, visible
from flashkit.kernels.quantize import BLOCK, Quantized, e4m3

# Weights are times 2^8: e4m3 reaches from 2^-9 to 448, and a weight is at most 1. The reference m
# is 8 below the maximum, so l holds the same factor, and o and lse need no correction.
HEADROOM = tl.constexpr(8.0)
LARGE = tl.constexpr(2.0**22)
CAREFUL = tl.constexpr(32)  # keys of a careful tile: 16 or 32 bits each, and seldom


@triton.jit
def in_place(p):
    """Weights (M, N) with their keys in the order that V's have (`quantize.key_at`)."""
    M: tl.constexpr = p.shape[0]
    N: tl.constexpr = p.shape[1]
    return p.reshape(M, N // 16, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(M, N)


@triton.jit
def scales_of(k_scales, v_scales, start_n, S, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr):
    """The scale of a tile of K, and that of V's tile before it over that of this one."""
    last = tl.cdiv(S, BLOCK) - 1
    here = tl.minimum(start_n // BLOCK, last)
    before = tl.maximum(start_n - BLOCK_N, 0) // BLOCK  # for the first tile any: acc is 0
    change = tl.load(v_scales + tl.minimum(before, last)) / tl.load(v_scales + here)
    return tl.load(k_scales + here), change


@triton.jit
def attend(
    m, l, acc, q, factor, q_pos, k, v, k_scales, v_scales, b, kv_h, start, stop, S,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Stream the keys [start, stop) past one tile of queries: new m, l, acc.

    acc is in units of the scale of V's last tile.
    """
    k_scale, change = scales_of(k_scales, v_scales, start, S, BLOCK, BLOCK_N)
    for start_n in range(start, stop, BLOCK_N):
        k_tile = load_rows(k, b, kv_h, start_n, S, BLOCK_D, 0, 1, BLOCK_N, BLOCK_D, True)
        s = tl.dot(q, tl.trans(k_tile))
        scale2 = factor * k_scale
        if MASKED:
            seen = visible(q_pos, start_n + tl.arange(0, BLOCK_N), S, CAUSAL, WINDOW)
            s = tl.where(seen, s, -float("inf"))
            m_new = tl.maximum(m, tl.max(s, axis=1) * scale2 - HEADROOM)
            reference = exp_reference(m_new)
        else:
            m_new = tl.maximum(m, tl.max(s, axis=1) * scale2 - HEADROOM)
            reference = m_new
        alpha = tl.exp2(m - reference)
        p = tl.exp2(s * scale2[:, None] - reference[:, None])
        l = alpha * l + tl.sum(p, axis=1)
        m = m_new
        rescale = alpha * change
        # The scales of the next tile are asked for while this one is at work.
        k_scale, change = scales_of(k_scales, v_scales, start_n + BLOCK_N, S, BLOCK, BLOCK_N)
        v_tile = v.load([b, kv_h, 0, start_n]).reshape(BLOCK_D, BLOCK_N)
        acc = acc * rescale[:, None] + tl.dot(in_place(e4m3(p)), tl.trans(v_tile))
    return m, l, acc


@triton.jit(do_not_specialize=["T", "S", "offset", "heads", "group", "together"])
def _fp8_fwd_kernel(
    q, k, v, q_scales, k_scales, v_scales, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    T, S, offset, heads, group, scale2, together,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head against every key that they can see.

    Grid      (cdiv(T, BLOCK_M) * B * Hq,), ordered as in `forward_tuned`
    Reads     q, k, v: descriptors of what `quantize_rows` made, v's keys adjacent; *_ptr: what it
              was made of, for rows in which something is not finite
    Writes    o (B, Hq, T, D) in its own dtype and lse (B, Hq, T) float32, both contiguous
    """
    blocks = tl.cdiv(T, BLOCK_M)
    block, bh = turn(blocks, together)
    first_row = (blocks - 1 - block) * BLOCK_M
    b = bh // heads
    h = bh % heads
    kv_h = h // group
    base = bh.to(tl.int64) * T
    kv_blocks = tl.cdiv(S, BLOCK)
    k_scales += (b * (heads // group) + kv_h).to(tl.int64) * kv_blocks
    v_scales += (b * (heads // group) + kv_h).to(tl.int64) * kv_blocks

    q_tile = load_rows(q, b, h, first_row, T, BLOCK_D, 0, 1, BLOCK_M, BLOCK_D, True)
    rows = first_row + tl.arange(0, BLOCK_M)
    q_blocks = tl.cdiv(T, BLOCK)
    q_scale = tl.load(
        q_scales + bh.to(tl.int64) * q_blocks + tl.minimum(rows // BLOCK, q_blocks - 1)
    )
    factor = q_scale * scale2
    row_stop = tl.minimum(first_row + BLOCK_M, T)
    first_pos = offset + first_row
    last_pos = offset + row_stop - 1
    q_pos = offset + rows
    start, stop = key_range(first_pos, last_pos, S, CAUSAL, WINDOW)
    start = start // BLOCK_N * BLOCK_N
    left, right = plain_range(start, stop, first_pos, last_pos, S, CAUSAL, WINDOW, BLOCK_N)
    m, l, acc = fresh(BLOCK_M, BLOCK_D)
    if WINDOW > 0:
        m, l, acc = attend(
            m, l, acc, q_tile, factor, q_pos, k, v, k_scales, v_scales, b, kv_h,
            start, left, S, True, CAUSAL, WINDOW, BLOCK, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    m, l, acc = attend(
        m, l, acc, q_tile, factor, q_pos, k, v, k_scales, v_scales, b, kv_h,
        left, right, S, False, CAUSAL, WINDOW, BLOCK, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    m, l, acc = attend(
        m, l, acc, q_tile, factor, q_pos, k, v, k_scales, v_scales, b, kv_h,
        right, stop, S, True, CAUSAL, WINDOW, BLOCK, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    # As in `forward_tuned`: what is not finite shows here, and those rows are done from the
    # tensors as they were given. So are scores so large that m is rounded by much: weights could
    # pass 448, where e4m3 ends.
    finite = tl.max((tl.abs(acc) < float("inf")).to(tl.int32) ^ 1) == 0
    if finite & (tl.max(tl.where(m == -float("inf"), 0.0, tl.abs(m))) < LARGE):
        unit = tl.load(v_scales + tl.maximum(stop - 1, 0) // BLOCK)
        store_rows(o_ptr, lse_ptr, m, l, acc * unit, base + rows, base + T, D, BLOCK_D)
    else:
        careful(
            q_ptr + b.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh,
            k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh,
            v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh,
            o_ptr, lse_ptr, first_row, row_stop, base, T, S, D, offset,
            scale2, stride_qt, stride_qd, stride_ks, stride_kd, stride_vs, stride_vd,
            CAUSAL, WINDOW, CAREFUL, BLOCK_D,
        )  # fmt: skip


class Config(NamedTuple):
    """Rows of queries and of keys in a tile, warps, tiles in flight, registers, heads together."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    registers: int | None = None
    together: int = 4


# Two or three programs an SM, each of 64 rows, beat one of 128.
# At D 256 a warp has no room for a second sum beside acc, so twice as many share 64 rows.
CONFIGS = {
    64: Config(64, 128, 4, 2, 128),
    128: Config(64, 128, 4, 2, 168),
    256: Config(64, 128, 8, 2),
}


def fp8_fwd(
    q: Tensor, k: Tensor, v: Tensor, quantized: Quantized, dims: Dims, *, offset: int,
    causal: bool, window: int | None, scale: float, config: Config | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the FP8 forward; T, S >= 1, scale >= 0; returns as `flash_fwd` does."""
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    (q8, q_scales), (k8, k_scales), (v8, v_scales) = quantized
    block_d = q8.shape[3]
    offset, window = nearby(dims, offset, window)
    config = config or CONFIGS[block_d]
    grid = (-(-dims.t // config.block_m) * dims.batch * dims.q_heads,)
    _fp8_fwd_kernel[grid](
        descriptor(q8, config.block_m, block_d), descriptor(k8, config.block_n, block_d),
        descriptor(v8, block_d, config.block_n), q_scales, k_scales, v_scales,
        q, k, v, o, lse, *q.stride(), *k.stride(), *v.stride(), dims.t, dims.s, offset,
        dims.q_heads, dims.group, scale * LOG2_E, config.together if causal else 1,
        CAUSAL=causal, WINDOW=window or 0, D=dims.d, BLOCK=BLOCK,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=block_d,
        num_warps=config.warps, num_stages=config.stages, maxnreg=config.registers,
    )  # fmt: skip
    return o, lse
