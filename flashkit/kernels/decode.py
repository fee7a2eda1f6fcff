"""Flash-decoding: the keys of one query cut into splits, one program each, and a kernel to merge.

Source: Dao et al., Flash-Decoding for long-context inference (2023).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit.contracts import Dims
from flashkit.kernels.primitives import (
    key_range,
    load_tile,
    merge,
    normalise,
    softmax_step,
    store_tile,
    visible,
    weigh,
)


@triton.jit
def _decode_split_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, m_ptr, l_ptr, acc_ptr,
    stride_qb, stride_qh, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    D, kv_heads, group, num_splits, scale,
    WINDOW: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: the query heads of one KV head against one split of its keys.

    Grid      (num_splits * B * Hkv,)
    Reads     the group's q rows once; its split of k and v once for all of them
    Writes    m, l (B, Hq, num_splits) and acc (B, Hq, num_splits, D), float32, contiguous
    Tile      group heads as rows, padded to BLOCK_G >= 16, the least that tl.dot takes
    """
    split = tl.program_id(0) % num_splits
    bh = (tl.program_id(0) // num_splits).to(tl.int64)
    b = bh // kv_heads
    kv_h = bh % kv_heads
    length = tl.load(lengths_ptr + b).to(tl.int32)

    heads = kv_h * group + tl.arange(0, BLOCK_G)
    offs_d = tl.arange(0, BLOCK_D)
    k_ptr += b * stride_kb + kv_h * stride_kh
    v_ptr += b * stride_vb + kv_h * stride_vh
    last_head = (kv_h + 1) * group
    q = load_tile(q_ptr + b * stride_qb, heads, offs_d, stride_qh, stride_qd, last_head, D)
    q_pos = length - 1 + tl.zeros((BLOCK_G,), tl.int32)

    m = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    first, last = key_range(length - 1, length - 1, length, True, WINDOW)
    size = tl.cdiv(tl.cdiv(last - first, num_splits), BLOCK_N) * BLOCK_N
    start = first + split * size
    stop = tl.minimum(start + size, last)
    for start_n in range(start, stop, BLOCK_N):
        offs_n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_ks, stride_kd, stop, D)
        v = load_tile(v_ptr, offs_n, offs_d, stride_vs, stride_vd, stop, D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = visible(q_pos, offs_n, stop, True, WINDOW)
        m, l, alpha, p = softmax_step(m, l, tl.where(seen, s, -float("inf")))
        acc = acc * alpha[:, None] + weigh(p, v, seen)

    rows = (b * kv_heads * group + heads) * num_splits + split
    inside = heads < last_head
    tl.store(m_ptr + rows, m, mask=inside)
    tl.store(l_ptr + rows, l, mask=inside)
    row_stop = (b * kv_heads * group + last_head) * num_splits
    store_tile(acc_ptr, acc, rows, offs_d, D, 1, row_stop, D)


def decode_split_fwd(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, dims: Dims, *,
    window: int | None, num_splits: int, scale: float, block_n: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch the split kernel on checked inputs: q (B, Hq, 1, D), lengths (B,) on q's device.

    Returns the partial m, l (B, Hq, num_splits) and acc (B, Hq, num_splits, D), float32. A split
    without keys is the identity of the merge: m = -inf, l = 0, acc = 0.
    """
    shape = (dims.batch, dims.q_heads, num_splits)
    m = torch.empty(shape, dtype=torch.float32, device=q.device)
    l = torch.empty_like(m)
    acc = torch.empty(*shape, dims.d, dtype=torch.float32, device=q.device)
    grid = (num_splits * dims.batch * dims.kv_heads,)
    if grid[0] == 0 or dims.q_heads == 0:
        return m, l, acc
    stride_qb, stride_qh, _, stride_qd = q.stride()
    _decode_split_kernel[grid](
        q, k, v, lengths, m, l, acc,
        stride_qb, stride_qh, stride_qd, *k.stride(), *v.stride(),
        dims.d, dims.kv_heads, dims.group, num_splits, scale, WINDOW=window or 0,
        BLOCK_G=max(16, triton.next_power_of_2(dims.group)), BLOCK_N=block_n,
        BLOCK_D=triton.next_power_of_2(dims.d),
    )  # fmt: skip
    return m, l, acc


@triton.jit
def _decode_merge_kernel(
    m_ptr, l_ptr, acc_ptr, o_ptr, lse_ptr, D, num_splits, BLOCK_D: tl.constexpr
):
    """One program: the splits of one row, joined one after another by the rule of `merge`.

    Grid      (rows,)
    Reads     m, l (rows, num_splits), acc (rows, num_splits, D), float32, contiguous
    Writes    o (rows, D) in its own dtype; lse (rows,) float32, natural log
    """
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    offs_d = tl.arange(0, BLOCK_D)
    m = tl.full((1,), -float("inf"), tl.float32)
    l = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, BLOCK_D), tl.float32)
    for split in range(num_splits):
        part = row * num_splits + split
        m_i = tl.load(m_ptr + part)
        l_i = tl.load(l_ptr + part)
        acc_i = load_tile(acc_ptr, part, offs_d, D, 1, (row + 1) * num_splits, D)
        m, l, acc = merge(m, l, acc, m_i, l_i, acc_i)
    o, lse = normalise(m, l, acc)
    store_tile(o_ptr, o, row, offs_d, D, 1, row + 1, D)
    tl.store(lse_ptr + row, lse)


def decode_merge_fwd(
    m: Tensor, l: Tensor, acc: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Launch the merge kernel: m, l (B, Hq, num_splits), acc (B, Hq, num_splits, D), contiguous.

    Returns o (B, Hq, 1, D) of the given dtype and lse (B, Hq, 1) float32.
    """
    batch, heads, num_splits, d = acc.shape
    o = torch.empty(batch, heads, 1, d, dtype=dtype, device=acc.device)
    lse = torch.empty(batch, heads, 1, dtype=torch.float32, device=acc.device)
    if batch * heads > 0:
        _decode_merge_kernel[(batch * heads,)](
            m, l, acc, o, lse, d, num_splits, BLOCK_D=triton.next_power_of_2(d)
        )
    return o, lse
