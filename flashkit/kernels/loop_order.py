"""Two orders of the same loops, to be timed side by side: what FlashAttention-2 turned about.

FlashAttention puts the keys outside: each tile of K and V is read once, but every row of queries
comes back for each of them, with its o, m and l, to memory and away again. FlashAttention-2 puts
the queries outside: o, m and l never leave the registers, and blocks of queries have nothing to do
with each other, so that each can be a program of its own. Teaching kernels: use `forward`.
Sources: Dao et al., FlashAttention (2022), Algorithm 1; Dao, FlashAttention-2 (2023), Algorithm 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit.contracts import Dims
from flashkit.kernels.backward import query_range
from flashkit.kernels.careful import fresh
from flashkit.kernels.forward import tile_sizes
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
def _keys_outside_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, m_ptr, l_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    T, S, D, offset, heads, group, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: a whole head, tile of keys by tile of keys.

    Grid      (B * Hq,): rows of one head wait for each other's tiles, so they share one program
    Reads     each k and v tile once; q, o, m and l once for each tile of keys that they see
    Writes    o (B, Hq, T, D), m and l (B, Hq, T), float32, contiguous, as often. They come as 0,
              -inf and 0; after each tile of keys o is the answer for the keys so far
    """
    bh = tl.program_id(0).to(tl.int64)
    b = bh // heads
    h = bh % heads
    kv_h = h // group
    offs_d = tl.arange(0, BLOCK_D)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + kv_h * stride_kh
    v_ptr += b * stride_vb + kv_h * stride_vh
    o_ptr += bh * T * D
    m_ptr += bh * T
    l_ptr += bh * T
    for start_n in range(0, S, BLOCK_N):
        offs_n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_ks, stride_kd, S, D)
        v = load_tile(v_ptr, offs_n, offs_d, stride_vs, stride_vd, S, D)
        start, stop = query_range(start_n, start_n + BLOCK_N - 1, T, offset, CAUSAL, WINDOW)
        tl.debug_barrier()  # what any thread wrote for the tile before, every thread sees
        for start_m in range(start // BLOCK_M * BLOCK_M, stop, BLOCK_M):
            offs_m = (start_m + tl.arange(0, BLOCK_M)).to(tl.int64)
            inside = offs_m < T
            q = load_tile(q_ptr, offs_m, offs_d, stride_qt, stride_qd, T, D)
            o = load_tile(o_ptr, offs_m, offs_d, D, 1, T, D)
            m = tl.load(m_ptr + offs_m, inside, -float("inf"))
            l = tl.load(l_ptr + offs_m, inside, 0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            seen = visible(offset + offs_m, offs_n, S, CAUSAL, WINDOW)
            m, l_new, alpha, p = softmax_step(m, l, tl.where(seen, s, -float("inf")))
            acc = o * (l * alpha)[:, None] + weigh(p, v, seen)
            o, _ = normalise(m, l_new, acc)
            store_tile(o_ptr, o, offs_m, offs_d, D, 1, T, D)
            tl.store(m_ptr + offs_m, m, inside)
            tl.store(l_ptr + offs_m, l_new, inside)


def keys_outside_fwd(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, *, offset: int, causal: bool,
    window: int | None, scale: float, block_m: int | None = None, block_n: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """FlashAttention's order on checked inputs of any strides; returns as `flash_fwd` does."""
    o = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    m = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
    l = torch.zeros_like(m)
    if m.numel() > 0:
        constants = _constants(dims, q.dtype, block_m, block_n)
        _keys_outside_kernel[(dims.batch * dims.q_heads,)](
            q, k, v, o, m, l, *q.stride(), *k.stride(), *v.stride(),
            dims.t, dims.s, dims.d, offset, dims.q_heads, dims.group, scale,
            CAUSAL=causal, WINDOW=window or 0, **constants,
        )  # fmt: skip
    return o.to(q.dtype), m + l.log()


@triton.jit
def _queries_outside_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    T, S, D, offset, heads, group, scale, programs,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: every block of queries of one head whose number leaves it as rest.

    Grid      (programs * B * Hq,): one program a head up to one a block of queries
    Reads     each q tile once, each visible k and v tile once for each block of queries
    Writes    o (B, Hq, T, D) in its own dtype and lse (B, Hq, T) float32, contiguous, once
    """
    bh = (tl.program_id(0) // programs).to(tl.int64)
    b = bh // heads
    h = bh % heads
    kv_h = h // group
    offs_d = tl.arange(0, BLOCK_D)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + kv_h * stride_kh
    v_ptr += b * stride_vb + kv_h * stride_vh
    for start_m in range(tl.program_id(0) % programs * BLOCK_M, T, programs * BLOCK_M):
        offs_m = (start_m + tl.arange(0, BLOCK_M)).to(tl.int64)
        q = load_tile(q_ptr, offs_m, offs_d, stride_qt, stride_qd, T, D)
        m, l, acc = fresh(BLOCK_M, BLOCK_D)
        last_row = tl.minimum(start_m + BLOCK_M, T) - 1
        start, stop = key_range(offset + start_m, offset + last_row, S, CAUSAL, WINDOW)
        for start_n in range(start // BLOCK_N * BLOCK_N, stop, BLOCK_N):
            offs_n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
            k = load_tile(k_ptr, offs_n, offs_d, stride_ks, stride_kd, S, D)
            v = load_tile(v_ptr, offs_n, offs_d, stride_vs, stride_vd, S, D)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            seen = visible(offset + offs_m, offs_n, S, CAUSAL, WINDOW)
            m, l, alpha, p = softmax_step(m, l, tl.where(seen, s, -float("inf")))
            acc = acc * alpha[:, None] + weigh(p, v, seen)
        o, lse = normalise(m, l, acc)
        store_tile(o_ptr + bh * T * D, o, offs_m, offs_d, D, 1, T, D)
        tl.store(lse_ptr + bh * T + offs_m, lse, mask=offs_m < T)


def queries_outside_fwd(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, *, offset: int, causal: bool,
    window: int | None, scale: float, programs: int | None = None,
    block_m: int | None = None, block_n: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """FlashAttention-2's order; returns as `flash_fwd` does.

    programs: how many share the rows of a head; one for each block of queries if not given.
    """
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if lse.numel() > 0:
        constants = _constants(dims, q.dtype, block_m, block_n)
        programs = programs or triton.cdiv(dims.t, constants["BLOCK_M"])
        _queries_outside_kernel[(programs * dims.batch * dims.q_heads,)](
            q, k, v, o, lse, *q.stride(), *k.stride(), *v.stride(),
            dims.t, dims.s, dims.d, offset, dims.q_heads, dims.group, scale, programs,
            CAUSAL=causal, WINDOW=window or 0, **constants,
        )  # fmt: skip
    return o, lse


def _constants(dims: Dims, dtype: torch.dtype, block_m: int | None, block_n: int | None) -> dict:
    """The tiles of the teaching kernel, so that nothing but the loops differs from it."""
    default_m, default_n = tile_sizes(dims, dtype)
    block_m, block_n = block_m or default_m, block_n or default_n
    block_d = triton.next_power_of_2(dims.d)
    warps = 8 if block_m >= 128 else 4
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": block_d, "num_warps": warps}
