"""The forward kernel: one program for a block of queries, keys and values streamed past it.

Source: Dao, FlashAttention-2 (2023), Algorithm 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import FP8_DTYPES, Dims
from flashkit.kernels.primitives import (
    key_range,
    load_tile,
    normalise,
    softmax_step,
    store_tile,
    visible,
    weigh,
)


@triton.jit
def _flash_fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_ob, stride_oh, stride_ot, stride_od,
    T, S, D, offset, heads, group, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head against every key that they can see.

    Grid      (cdiv(T, BLOCK_M) * B * Hq,), query blocks of one head next to one another; one axis,
              because the other two end at 65535
    Reads     its q tile once, each visible k and v tile once
    Writes    o (B, Hq, T, D) in q's dtype; lse (B, Hq, T) float32, natural log, contiguous
    State     m, l (BLOCK_M,) and acc (BLOCK_M, BLOCK_D), float32
    Ragged    rows >= T, keys >= S and columns >= D are masked
    """
    blocks = tl.cdiv(T, BLOCK_M)
    pid_m = tl.program_id(0) % blocks
    bh = tl.program_id(0) // blocks
    b = (bh // heads).to(tl.int64)
    h = (bh % heads).to(tl.int64)
    kv_h = h // group  # grouped-query attention: several query heads read one KV head

    offs_m = pid_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + kv_h * stride_kh
    v_ptr += b * stride_vb + kv_h * stride_vh
    q = load_tile(q_ptr, offs_m, offs_d, stride_qt, stride_qd, T, D)
    q_pos = offset + offs_m

    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    first_pos = offset + pid_m * BLOCK_M
    last_pos = offset + tl.minimum((pid_m + 1) * BLOCK_M, T) - 1
    start, stop = key_range(first_pos, last_pos, S, CAUSAL, WINDOW)
    for start_n in range(start // BLOCK_N * BLOCK_N, stop, BLOCK_N):
        offs_n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_ks, stride_kd, S, D)
        v = load_tile(v_ptr, offs_n, offs_d, stride_vs, stride_vd, S, D)
        # "ieee": float32 means float32, not the 10-bit mantissa of TF32
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = visible(q_pos, offs_n, S, CAUSAL, WINDOW)
        m, l, alpha, p = softmax_step(m, l, tl.where(seen, s, -float("inf")))
        acc = acc * alpha[:, None] + weigh(p, v, seen)

    o, lse = normalise(m, l, acc)
    o_ptr += b * stride_ob + h * stride_oh
    store_tile(o_ptr, o, offs_m, offs_d, stride_ot, stride_od, T, D)
    tl.store(lse_ptr + bh.to(tl.int64) * T + offs_m, lse, mask=offs_m < T)


def serves(q: Tensor, *_, **__) -> str:
    """Why the teaching kernel does not serve these inputs, or nothing."""
    return f"it takes no {q.dtype}" if q.dtype in FP8_DTYPES else ""


def flash_fwd(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, *, offset: int, causal: bool,
    window: int | None, scale: float, block_m: int | None = None, block_n: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the forward kernel on checked inputs of any strides.

    Returns o (B, Hq, T, D) in q's dtype and lse (B, Hq, T) float32; see `attention`.
    """
    default_m, default_n = tile_sizes(dims, q.dtype)
    block_m, block_n = block_m or default_m, block_n or default_n
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(dims.t, block_m) * dims.batch * dims.q_heads,)
    if grid[0] == 0:
        return o, lse
    _flash_fwd_kernel[grid](
        q, k, v, o, lse, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        dims.t, dims.s, dims.d, offset, dims.q_heads, dims.group, scale,
        CAUSAL=causal, WINDOW=window or 0,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=triton.next_power_of_2(dims.d),
        num_warps=8 if block_m >= 128 else 4,  # four warps have no room for 128 rows of acc
    )  # fmt: skip
    return o, lse


def tile_sizes(dims: Dims, dtype: torch.dtype) -> tuple[int, int]:
    """Tiles that fit on-chip memory; few queries take a small one, as in decode."""
    if runtime.interpreting() or dtype == torch.float32:
        block_m, block_n = 32, 32
    else:
        block_m, block_n = (128, 64) if dims.d <= 128 else (128, 32)
    return (16 if dims.t <= 16 else block_m), block_n
