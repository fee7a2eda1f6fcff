# exercise: decode_split
# dies by: three query heads to a KV head
# bug: none

import math

import torch
import triton
import triton.language as tl


@triton.jit
def _decode_split_kernel(
    q_ptr, k_ptr, v_ptr, m_ptr, l_ptr, acc_ptr,
    stride_qb, stride_qh, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    S, kv_heads, group, num_splits, scale,
    D: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    b = tl.program_id(0) // kv_heads
    kv_h = tl.program_id(0) % kv_heads
    size = tl.cdiv(S, num_splits)
    begin = split * size
    stop = tl.minimum(S, begin + size)

    offs_g = tl.arange(0, BLOCK_G)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    heads = kv_h * group + offs_g
    real = offs_g < group
    q_base = q_ptr + b * stride_qb
    q_ptrs = q_base + heads[:, None] * stride_qh + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=real[:, None], other=0.0)  # (BLOCK_G, D)
    k_base = k_ptr + b * stride_kb + kv_h * stride_kh
    v_base = v_ptr + b * stride_vb + kv_h * stride_vh

    m = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, D), tl.float32)
    for start in range(begin, stop, BLOCK_N):
        keys = start + offs_n
        mine = keys < stop
        k_ptrs = k_base + keys[:, None] * stride_ks + offs_d[None, :] * stride_kd
        v_ptrs = v_base + keys[:, None] * stride_vs + offs_d[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=mine[:, None], other=0.0)  # (BLOCK_N, D)
        v = tl.load(v_ptrs, mask=mine[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_G, BLOCK_N)
        s = tl.where(mine[None, :], s, -float("inf"))

        # Every tile of the loop holds a key that every row sees, so m_new is finite.
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp(m - m_new)
        p = tl.exp(s - m_new[:, None])
        l = alpha * l + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new

    rows = (b * kv_heads * group + offs_g * kv_heads + kv_h) * num_splits + split
    tl.store(m_ptr + rows, m, mask=real)
    tl.store(l_ptr + rows, l, mask=real)
    tl.store(acc_ptr + rows[:, None] * D + offs_d[None, :], acc, mask=real[:, None])


def decode_split(q, k, v, num_splits):
    """Partial m, l (B, Hq, num_splits) and acc (B, Hq, num_splits, D), float32."""
    batch, q_heads, _, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    group = q_heads // kv_heads
    m = torch.empty(batch, q_heads, num_splits, dtype=torch.float32, device=q.device)
    l = torch.empty_like(m)
    acc = torch.empty(batch, q_heads, num_splits, d, dtype=torch.float32, device=q.device)
    stride_qb, stride_qh, _, stride_qd = q.stride()
    _decode_split_kernel[(batch * kv_heads, num_splits)](
        q, k, v, m, l, acc, stride_qb, stride_qh, stride_qd, *k.stride(), *v.stride(),
        s, kv_heads, group, num_splits, 1.0 / math.sqrt(d),
        D=d, BLOCK_G=max(16, triton.next_power_of_2(group)), BLOCK_N=16,
    )  # fmt: skip
    return m, l, acc
