"""The forward kernel again, tuned: the same recurrence as in `forward`, with less to do a tile.

What each step buys is said where it is taken. The words are those of the teaching kernel; what is
new is `attend`, one loop body compiled for tiles that every row sees whole and again, with masks,
for those at an edge. Where something was not finite, `careful` does the rows once more.
Source: Dao, FlashAttention-2 (2023), Algorithm 1; Shah et al., FlashAttention-3 (2024), for the
order of the programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit.contracts import FP8_DTYPES, Dims, output_dtype
from flashkit.kernels.careful import careful, fresh, half, softmax_step2, store_rows
from flashkit.kernels.descriptors import describable, descriptor
from flashkit.kernels.forward_config import Config, choose
from flashkit.kernels.primitives import key_range, load_tile, turn, visible

LOG2_E = 1.4426950408889634


@triton.jit
def load_rows(
    x, b, h, first, stop, D, stride_row, stride_col,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Rows first .. first + BLOCK of one head (BLOCK, BLOCK_D); what lies outside reads as 0.

    x is a descriptor of (B, H, rows, D), or a pointer to row 0 of the head.
    """
    if TMA:
        # One thread asks the copy engine for the whole tile: no addresses in registers, no masks.
        tile = x.load([b, h, first, 0]).reshape(BLOCK, BLOCK_D)
    else:
        rows = (first + tl.arange(0, BLOCK)).to(tl.int64)
        tile = load_tile(x, rows, tl.arange(0, BLOCK_D), stride_row, stride_col, stop, D)
    return tile


@triton.jit
def plain_range(
    start, stop, first_pos, last_pos, S,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The tiles [left, right) within [start, stop) of which every row sees every key."""
    left = start
    right = S // BLOCK_N * BLOCK_N
    if WINDOW > 0:
        left = tl.cdiv(tl.maximum(last_pos - WINDOW + 1, 0), BLOCK_N) * BLOCK_N
        left = tl.minimum(tl.maximum(left, start), tl.maximum(stop, start))
    if CAUSAL:
        right = tl.minimum(right, tl.maximum(first_pos + 1, 0) // BLOCK_N * BLOCK_N)
    return left, tl.maximum(left, right)


@triton.jit
def attend(
    m, l, acc, q, q_pos, k, v, b, kv_h, start, stop, S, D, scale2,
    stride_ks, stride_kd, stride_vs, stride_vd,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Stream the keys [start, stop) past one tile of queries: new m, l, acc; m in base 2."""
    for start_n in range(start, stop, BLOCK_N):
        k_tile = load_rows(k, b, kv_h, start_n, S, D, stride_ks, stride_kd, BLOCK_N, BLOCK_D, TMA)
        s = tl.dot(q, tl.trans(k_tile), input_precision="ieee")
        if MASKED:
            seen = visible(q_pos, start_n + tl.arange(0, BLOCK_N), S, CAUSAL, WINDOW)
            s = tl.where(seen, s * scale2, -float("inf"))
            m, l, alpha, p = softmax_step2(m, l, s)
        else:
            # The maximum is scaled, not the scores: exp2's argument is then one multiply-add.
            m_new = tl.maximum(m, tl.max(s, axis=1) * scale2)
            alpha = tl.exp2(m - m_new)
            p = tl.exp2(s * scale2 - m_new[:, None])
            l = alpha * l + tl.sum(p, axis=1)
            m = m_new
        v_tile = load_rows(v, b, kv_h, start_n, S, D, stride_vs, stride_vd, BLOCK_N, BLOCK_D, TMA)
        v_tile = half(v_tile)
        # Accumulating in the dot keeps acc where the tensor cores left it. Rescaling only when m
        # has grown much would save work, but behind a branch the products no longer overlap
        # (ptxas C7515; D128 388 TFLOP/s instead of 524).
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
    return m, l, acc


# One compilation serves every length and number of heads, as a cache grows.
@triton.jit(do_not_specialize=["T", "S", "offset", "heads", "group", "together"])
def _tuned_fwd_kernel(
    q, k, v, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    T, S, offset, heads, group, scale2, together,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TMA: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head against every key that they can see.

    Grid      (cdiv(T, BLOCK_M) * B * Hq,), `together` heads interleaved, last rows first
    Reads     q, k, v: descriptors of q_ptr, k_ptr, v_ptr if TMA, else unused
    Writes    o (B, Hq, T, D) in its own dtype and lse (B, Hq, T) float32, both contiguous
    """
    blocks = tl.cdiv(T, BLOCK_M)
    block, bh = turn(blocks, together)
    first_row = (blocks - 1 - block) * BLOCK_M  # the later the rows, the more keys under a mask
    b = bh // heads
    h = bh % heads
    kv_h = h // group
    # In 64 bits: a head can begin beyond 2^31 elements.
    q_ptr += b.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_ptr += b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_ptr += b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    base = bh.to(tl.int64) * T
    if not TMA:
        q, k, v = q_ptr, k_ptr, v_ptr
    q_tile = load_rows(q, b, h, first_row, T, D, stride_qt, stride_qd, BLOCK_M, BLOCK_D, TMA)

    row_stop = tl.minimum(first_row + BLOCK_M, T)
    first_pos = offset + first_row
    q_pos = first_pos + tl.arange(0, BLOCK_M)
    start, stop = key_range(first_pos, offset + row_stop - 1, S, CAUSAL, WINDOW)
    start = start // BLOCK_N * BLOCK_N
    left, right = plain_range(
        start, stop, first_pos, offset + row_stop - 1, S, CAUSAL, WINDOW, BLOCK_N
    )
    m, l, acc = fresh(BLOCK_M, BLOCK_D)
    # Comparing and selecting would double the work a score, so only tiles at an edge pay for it.
    if WINDOW > 0:
        m, l, acc = attend(
            m, l, acc, q_tile, q_pos, k, v, b, kv_h, start, left, S, D, scale2,
            stride_ks, stride_kd, stride_vs, stride_vd,
            True, CAUSAL, WINDOW, BLOCK_N, BLOCK_D, TMA,
        )  # fmt: skip
    m, l, acc = attend(
        m, l, acc, q_tile, q_pos, k, v, b, kv_h, left, right, S, D, scale2,
        stride_ks, stride_kd, stride_vs, stride_vd,
        False, CAUSAL, WINDOW, BLOCK_N, BLOCK_D, TMA,
    )  # fmt: skip
    m, l, acc = attend(
        m, l, acc, q_tile, q_pos, k, v, b, kv_h, right, stop, S, D, scale2,
        stride_ks, stride_kd, stride_vs, stride_vd,
        True, CAUSAL, WINDOW, BLOCK_N, BLOCK_D, TMA,
    )  # fmt: skip
    # A hidden key has weight 0, but 0 times NaN or infinity is NaN. That shows in acc, once a
    # program, so that no tile has to look for it; only then are the rows done again with care.
    if tl.max((tl.abs(acc) < float("inf")).to(tl.int32) ^ 1) == 0:
        rows = base + first_row + tl.arange(0, BLOCK_M)
        store_rows(o_ptr, lse_ptr, m, l, acc, rows, base + T, D, BLOCK_D)
    else:
        careful(
            q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, first_row, row_stop, base, T, S, D, offset,
            scale2, stride_qt, stride_qd, stride_ks, stride_kd, stride_vs, stride_vd,
            CAUSAL, WINDOW, BLOCK_N, BLOCK_D,
        )  # fmt: skip


def serves(q: Tensor, *_, **__) -> str:
    """Why the tuned kernel does not serve these inputs, or nothing."""
    if q.dtype in FP8_DTYPES and q.is_cuda and torch.cuda.get_device_capability(q.device) < (8, 9):
        return f"{q.dtype} needs a GPU of compute capability 8.9 or more"
    return ""


def tuned_fwd(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, *, offset: int, causal: bool,
    window: int | None, scale: float, block_m: int | None = None, block_n: int | None = None,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the tuned kernel on checked inputs of any strides; returns as `flash_fwd` does."""
    o = torch.empty(q.shape, dtype=output_dtype(q.dtype), device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if lse.numel() == 0:
        return o, lse
    if scale < 0:  # the largest score times a negative scale would be the smallest
        q, scale = (-q.float()).to(q.dtype), -scale
    offset, window = nearby(dims, offset, window)
    block_d = max(1 << (dims.d - 1).bit_length(), 32 // q.dtype.itemsize)  # a matmul's least
    capability = capability_of(q)
    config = config or choose(q.dtype, dims.t, block_d, capability, block_m, block_n)
    sources = q, k, v
    tma = config.descriptors and capability not in range(1, 9) and all(map(describable, sources))
    if tma:
        rows = (config.block_m, config.block_n, config.block_n)
        sources = (descriptor(x, n, block_d) for x, n in zip(sources, rows, strict=True))
    grid = (-(-dims.t // config.block_m) * dims.batch * dims.q_heads,)
    _tuned_fwd_kernel[grid](
        *sources, q, k, v, o, lse, *q.stride(), *k.stride(), *v.stride(), dims.t, dims.s, offset,
        dims.q_heads, dims.group, scale * LOG2_E, config.together if causal else 1,
        CAUSAL=causal, WINDOW=window or 0, TMA=tma, D=dims.d,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=block_d,
        num_warps=config.warps, num_stages=config.stages, maxnreg=config.registers,
    )  # fmt: skip
    return o, lse


def capability_of(x: Tensor) -> int:
    """The major number of the compute capability of x's GPU, 0 in the interpreter."""
    return torch.cuda.get_device_capability(x.device)[0] if x.is_cuda else 0


def nearby(dims: Dims, offset: int, window: int | None) -> tuple[int, int | None]:
    """An offset and a window that show the same keys and fit 32 bits, or no window if none hides.

    Beyond the last key, offset and window move together; before the first, nothing moves.
    """
    if window is not None and offset > dims.s:
        window -= offset - dims.s
    offset = max(-dims.t, min(offset, dims.s))
    if window is None or window >= offset + dims.t:
        return offset, None
    return (offset, window) if window > 0 else (dims.s + 1, 1)
