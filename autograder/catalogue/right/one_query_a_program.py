# exercise: flash_attention
# differs: one program per query row, and sums in place of dots

import math

import torch
import triton
import triton.language as tl


@triton.jit
def _flash_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_ob, stride_oh, stride_ot, stride_od,
    S, offset, q_heads, group, scale,
    D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    b = tl.program_id(1) // q_heads
    h = tl.program_id(1) % q_heads
    kv_h = h // group

    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    q_base = q_ptr + b * stride_qb + h * stride_qh
    k_base = k_ptr + b * stride_kb + kv_h * stride_kh
    v_base = v_ptr + b * stride_vb + kv_h * stride_vh
    q = tl.load(q_base + i * stride_qt + offs_d * stride_qd).to(tl.float32)  # (D,)

    m = -float("inf")
    l = 0.0
    acc = tl.zeros((D,), tl.float32)
    stop = tl.minimum(S, offset + i + 1)
    for start in range(0, stop, BLOCK_N):
        keys = start + offs_n
        k_ptrs = k_base + keys[:, None] * stride_ks + offs_d[None, :] * stride_kd
        v_ptrs = v_base + keys[:, None] * stride_vs + offs_d[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=keys[:, None] < stop, other=0.0)  # (BLOCK_N, D)
        v = tl.load(v_ptrs, mask=keys[:, None] < stop, other=0.0)

        s = tl.sum(q[None, :] * k, axis=1) * scale  # (BLOCK_N,)
        s = tl.where(keys < stop, s, -float("inf"))

        m_new = tl.maximum(m, tl.max(s, axis=0))
        alpha = tl.exp(m - m_new)
        p = tl.exp(s - m_new)
        l = alpha * l + tl.sum(p, axis=0)
        acc = acc * alpha + tl.sum(p[:, None] * v, axis=0)
        m = m_new

    o = acc / tl.where(l == 0.0, 1.0, l)
    o_base = o_ptr + b * stride_ob + h * stride_oh
    tl.store(o_base + i * stride_ot + offs_d * stride_od, o.to(o_ptr.dtype.element_ty))


def flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32):
    """Causal attention. q (B, Hq, T, D); k, v (B, Hkv, S, D); returns o like q."""
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    offset = s - t if query_offset is None else query_offset
    o = torch.empty_like(q)
    grid = (t, batch * q_heads)
    _flash_kernel[grid](
        q, k, v, o, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        s, offset, q_heads, q_heads // kv_heads, 1.0 / math.sqrt(d),
        D=d, BLOCK_N=block_n,
    )  # fmt: skip
    return o
