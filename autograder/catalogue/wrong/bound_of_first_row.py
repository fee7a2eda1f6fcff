# exercise: flash_attention
# dies by: T < S, grouped heads
# bug: bound_of_first_row

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
    T, S, offset, q_heads, group, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(0)
    b = tl.program_id(1) // q_heads
    h = tl.program_id(1) % q_heads
    kv_h = h // group

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    q_base = q_ptr + b * stride_qb + h * stride_qh
    k_base = k_ptr + b * stride_kb + kv_h * stride_kh
    v_base = v_ptr + b * stride_vb + kv_h * stride_vh
    q_ptrs = q_base + offs_m[:, None] * stride_qt + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=offs_m[:, None] < T, other=0.0)  # (BLOCK_M, D)
    positions = offset + offs_m

    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)

    # The last real query of this tile sees the furthest ahead.
    stop = tl.minimum(S, offset + tl.minimum(T, (pid_m + 1) * BLOCK_M))
    for start in range(0, tl.minimum(stop, offset + pid_m * BLOCK_M + 1), BLOCK_N):
        keys = start + offs_n
        k_ptrs = k_base + keys[:, None] * stride_ks + offs_d[None, :] * stride_kd
        v_ptrs = v_base + keys[:, None] * stride_vs + offs_d[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=keys[:, None] < stop, other=0.0)  # (BLOCK_N, D)
        v = tl.load(v_ptrs, mask=keys[:, None] < stop, other=0.0)

        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_M, BLOCK_N)
        visible = (keys[None, :] <= positions[:, None]) & (keys[None, :] < stop)
        s = tl.where(visible, s, -float("inf"))

        m_new = tl.maximum(m, tl.max(s, axis=1))
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)
        alpha = tl.exp(m - reference)
        p = tl.exp(s - reference[:, None])
        l = alpha * l + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new

    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    o_base = o_ptr + b * stride_ob + h * stride_oh
    o_ptrs = o_base + offs_m[:, None] * stride_ot + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=offs_m[:, None] < T)


def flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32):
    """Causal attention. q (B, Hq, T, D); k, v (B, Hkv, S, D); returns o like q."""
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    offset = s - t if query_offset is None else query_offset
    o = torch.empty_like(q)
    grid = (triton.cdiv(t, block_m), batch * q_heads)
    _flash_kernel[grid](
        q, k, v, o, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        t, s, offset, q_heads, q_heads // kv_heads, 1.0 / math.sqrt(d),
        D=d, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return o
