"""The backward kernels, split in two: one walks the queries for dk and dv, one the keys for dq.

Neither stores p: each computes it again from the scores and lse. A program adds up all of what it
writes, a group's heads included, so nothing is added in memory and the same inputs give the same
bits. The price is two products more than a kernel of one piece: s and dp are computed twice.
Sources: Dao et al., FlashAttention (2022), Algorithm 4; Dao, FlashAttention-2 (2023), Algorithm 2.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import FP8_DTYPES, Dims
from flashkit.kernels.delta import row_terms
from flashkit.kernels.primitives import (
    key_range,
    load_tile,
    store_tile,
    visible,
    weigh,
)


@triton.jit
def query_range(first_key, last_key, T, offset, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The query rows [start, stop) that see any of the keys first_key .. last_key: `key_range`
    turned about."""
    start = 0
    stop = T
    if CAUSAL:
        start = tl.maximum(first_key - offset, 0)
    if WINDOW > 0:
        stop = tl.minimum(T, last_key + WINDOW - offset)
    return start, stop


@triton.jit
def weights(s, dp, lse2, delta, seen):
    """The weights p (M, N) from scores s and lse2 (M,) in base 2, and ds = p * (dp - delta).

    The mask comes last: what is hidden may be infinite or NaN until then.
    """
    p = tl.exp2(tl.where(seen, s - lse2[:, None], -float("inf")))
    return p, tl.where(seen, p * (dp - delta[:, None]), 0.0)


# One compilation serves every length and number of heads.
@triton.jit(do_not_specialize=["T", "S", "padded", "offset", "kv_heads", "group"])
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, dk_ptr, dv_ptr, only_if,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_gb, stride_gh, stride_gt, stride_gd,
    T, S, D, padded, offset, kv_heads, group, scale, scale2,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N keys of one KV head against every query of its group that sees them.

    Grid      (cdiv(S, BLOCK_N) * B * Hkv,)
    Reads     its k and v tile once, each q and do tile that sees them; delta and lse2
              (B, Hq, padded) of `row_terms`: lse2 = inf makes p = 0 past T
    Writes    dk, dv (B, Hkv, S, D) in k's dtype, contiguous
    Strides   stride_g* of do
    only_if   int32: 0 there says that dk and dv stand already, and nothing is done; None: never so
    """
    if only_if is not None and tl.load(only_if) == 0:
        return
    blocks = tl.cdiv(S, BLOCK_N)
    first_key = tl.program_id(0) % blocks * BLOCK_N
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // kv_heads
    kv_h = bh % kv_heads
    offs_n = first_key.to(tl.int64) + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    k_ptr += b * stride_kb + kv_h * stride_kh
    v_ptr += b * stride_vb + kv_h * stride_vh
    k = load_tile(k_ptr, offs_n, offs_d, stride_ks, stride_kd, S, D)
    v = load_tile(v_ptr, offs_n, offs_d, stride_vs, stride_vd, S, D)

    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    last_key = tl.minimum(first_key + BLOCK_N, S) - 1
    start, stop = query_range(first_key, last_key, T, offset, CAUSAL, WINDOW)
    for h in range(kv_h * group, (kv_h + 1) * group):  # what the group reads, it adds up
        q_head = q_ptr + b * stride_qb + h * stride_qh
        do_head = do_ptr + b * stride_gb + h * stride_gh
        row = (b * kv_heads * group + h) * padded
        for start_m in range(start // BLOCK_M * BLOCK_M, stop, BLOCK_M):
            offs_m = (start_m + tl.arange(0, BLOCK_M)).to(tl.int64)
            q = load_tile(q_head, offs_m, offs_d, stride_qt, stride_qd, T, D)
            do = load_tile(do_head, offs_m, offs_d, stride_gt, stride_gd, T, D)
            delta = tl.load(delta_ptr + row + offs_m)
            lse2 = tl.load(lse2_ptr + row + offs_m)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale2
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            # Rows past T have p = 0, but one that saw a key no row sees would make its NaN matter.
            seen = visible(offset + offs_m, offs_n, S, CAUSAL, WINDOW) & (offs_m < T)[:, None]
            p, ds = weights(s, dp, lse2, delta, seen)
            dv += weigh(tl.trans(p), do, tl.trans(seen))
            dk += weigh(tl.trans(ds), q, tl.trans(seen))

    store_tile(dk_ptr + bh * S * D, dk * scale, offs_n, offs_d, D, 1, S, D)
    store_tile(dv_ptr + bh * S * D, dv, offs_n, offs_d, D, 1, S, D)


@triton.jit(do_not_specialize=["T", "S", "padded", "offset", "heads", "group"])
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, dq_ptr, only_if,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_gb, stride_gh, stride_gt, stride_gd,
    T, S, D, padded, offset, heads, group, scale, scale2,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head against every key that they can see.

    Grid      (cdiv(T, BLOCK_M) * B * Hq,)
    Writes    dq (B, Hq, T, D) in q's dtype, contiguous
    Strides, only_if   as for `_dkdv_kernel`
    """
    if only_if is not None and tl.load(only_if) == 0:
        return
    blocks = tl.cdiv(T, BLOCK_M)
    first_row = tl.program_id(0) % blocks * BLOCK_M
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // heads
    h = bh % heads
    kv_h = h // group
    offs_m = first_row.to(tl.int64) + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    q_ptr += b * stride_qb + h * stride_qh
    do_ptr += b * stride_gb + h * stride_gh
    k_ptr += b * stride_kb + kv_h * stride_kh
    v_ptr += b * stride_vb + kv_h * stride_vh
    q = load_tile(q_ptr, offs_m, offs_d, stride_qt, stride_qd, T, D)
    do = load_tile(do_ptr, offs_m, offs_d, stride_gt, stride_gd, T, D)
    delta = tl.load(delta_ptr + bh * padded + offs_m)
    lse2 = tl.load(lse2_ptr + bh * padded + offs_m)

    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    last_row = tl.minimum(first_row + BLOCK_M, T) - 1
    start, stop = key_range(offset + first_row, offset + last_row, S, CAUSAL, WINDOW)
    for start_n in range(start // BLOCK_N * BLOCK_N, stop, BLOCK_N):
        offs_n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_ks, stride_kd, S, D)
        v = load_tile(v_ptr, offs_n, offs_d, stride_vs, stride_vd, S, D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale2
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        seen = visible(offset + offs_m, offs_n, S, CAUSAL, WINDOW)
        _, ds = weights(s, dp, lse2, delta, seen)
        dq += weigh(ds, k, seen)

    store_tile(dq_ptr + bh * T * D, dq * scale, offs_m, offs_d, D, 1, T, D)


def serves(q: Tensor, *_, **__) -> str:
    """Why these kernels do not serve the inputs, or nothing."""
    return f"it gives no gradient in {q.dtype}" if q.dtype in FP8_DTYPES else ""


def flash_bwd(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, dlse: Tensor | None,
    dims: Dims, *, offset: int, causal: bool, window: int | None, scale: float,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients dq, dk, dv of checked inputs of any strides, in their shapes and dtypes.

    o and lse are what the forward returned, do (B, Hq, T, D) and dlse (B, Hq, T) or None the
    gradients of both, of any strides. A row that sees no key has gradient 0; what a mask hides
    never matters, even NaN. Deterministic. needs: of dq, of dk and dv; what is not needed is
    left empty, (0,).
    """
    grads = new_gradients(q, k, v, needs)
    terms = row_terms(o, lse, do, dlse, dims)
    careful_bwd(
        q, k, v, do, terms, grads, dims,
        offset=offset, causal=causal, window=window, scale=scale,
    )  # fmt: skip
    return grads


def new_gradients(
    q: Tensor, k: Tensor, v: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Contiguous room for dq, dk, dv; none, (0,), for what is not needed, which no walk writes."""
    rooms = zip((q, k, v), (needs[0], needs[1], needs[1]), strict=True)
    return tuple(x.new_empty(tuple(x.shape) if need else 0) for x, need in rooms)


def careful_bwd(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, terms: tuple[Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor], dims: Dims, *, offset: int, causal: bool,
    window: int | None, scale: float, only_if: Tensor | None = None,
) -> None:  # fmt: skip
    """Write dq, dk, dv into grads, contiguous; if only_if, int32 (1,), holds 0, leave them alone.

    terms is what `row_terms` returned. A faster kernel that met something not finite says so in
    only_if, and this launch behind it does the work again; else its programs end at once.
    """
    dq, dk, dv = grads
    tile = tile_size(q.dtype)
    sources = q, k, v, do
    strides = [stride for x in sources for stride in x.stride()]
    sizes = dims.t, dims.s, dims.d, terms[0].shape[2], offset
    constants = {"CAUSAL": causal, "WINDOW": window or 0, "BLOCK_M": tile, "BLOCK_N": tile}
    constants["BLOCK_D"] = triton.next_power_of_2(dims.d)
    constants["num_warps"] = 8 if dims.d > 128 else 4  # four have no room for two accumulators
    constants["num_stages"] = 1  # float32 tiles in flight would not fit the smallest cards
    if dk.numel() > 0:
        _dkdv_kernel[(triton.cdiv(dims.s, tile) * dims.batch * dims.kv_heads,)](
            *sources, *terms, dk, dv, only_if, *strides, *sizes,
            dims.kv_heads, dims.group, scale, scale / math.log(2.0), **constants,
        )  # fmt: skip
    if dq.numel() > 0:
        _dq_kernel[(triton.cdiv(dims.t, tile) * dims.batch * dims.q_heads,)](
            *sources, *terms, dq, only_if, *strides, *sizes,
            dims.q_heads, dims.group, scale, scale / math.log(2.0), **constants,
        )  # fmt: skip


def tile_size(dtype: torch.dtype) -> int:
    """Queries, and keys, of a tile: float32 is multiplied in registers, which hold fewer."""
    return 32 if runtime.interpreting() or dtype.itemsize == 2 else 16
