# exercise: flash_attention
# differs: block pointers in place of pointer arithmetic

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
    q_base = q_ptr + b * stride_qb + h * stride_qh
    k_base = k_ptr + b * stride_kb + kv_h * stride_kh
    v_base = v_ptr + b * stride_vb + kv_h * stride_vh
    q_block = tl.make_block_ptr(
        q_base, (T, D), (stride_qt, stride_qd), (pid_m * BLOCK_M, 0), (BLOCK_M, D), (1, 0)
    )
    k_strides, v_strides = (stride_ks, stride_kd), (stride_vs, stride_vd)
    k_block = tl.make_block_ptr(k_base, (S, D), k_strides, (0, 0), (BLOCK_N, D), (1, 0))
    v_block = tl.make_block_ptr(v_base, (S, D), v_strides, (0, 0), (BLOCK_N, D), (1, 0))
    q = tl.load(q_block, boundary_check=(0,), padding_option="zero")  # (BLOCK_M, D)
    positions = offset + offs_m

    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)

    # The last real query of this tile sees the furthest ahead.
    stop = tl.minimum(S, offset + tl.minimum(T, (pid_m + 1) * BLOCK_M))
    for start in range(0, stop, BLOCK_N):
        keys = start + offs_n
        k = tl.load(k_block, boundary_check=(0,), padding_option="zero")  # (BLOCK_N, D)
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        k_block = tl.advance(k_block, (BLOCK_N, 0))
        v_block = tl.advance(v_block, (BLOCK_N, 0))

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
    o_block = tl.make_block_ptr(
        o_base, (T, D), (stride_ot, stride_od), (pid_m * BLOCK_M, 0), (BLOCK_M, D), (1, 0)
    )
    tl.store(o_block, o.to(o_ptr.dtype.element_ty), boundary_check=(0,))


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
