"""The careful pass of the tuned forward, for row blocks in which something was not finite.

A hidden key has weight 0, but 0 times NaN or infinity is NaN. The fast loops do not look for that;
it shows in what they summed up, and then the rows are done again here, by the teaching kernel's
loop. The words that both loops finish with stand here too.
"""

import triton
import triton.language as tl

from flashkit.kernels.primitives import (
    exp_reference,
    key_range,
    load_tile,
    normalise,
    store_tile,
    visible,
    weigh,
)

LN_2 = tl.constexpr(0.6931471805599453)
ROWS = tl.constexpr(16)  # of a careful tile: the least that tl.dot takes


@triton.jit
def fresh(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """The state of rows that have seen nothing: m = -inf, l = 0, acc = 0."""
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    return m, tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M, BLOCK_D), tl.float32)


@triton.jit
def half(v):
    """v as the weights meet it: FP8 as float16, which holds it exactly.

    Weights of 8 bits would err by 3 %, and the FP8 tensor cores want V with its keys adjacent.
    """
    if v.dtype.primitive_bitwidth == 8:
        v = v.to(tl.float16)
    return v


@triton.jit
def softmax_step2(m, l, s):
    """`softmax_step` in base 2, on scores times log2 e: new m and l (M,), alpha (M,), p (M, N)."""
    m_new = tl.maximum(m, tl.max(s, axis=1))
    reference = exp_reference(m_new)
    alpha = tl.exp2(m - reference)
    p = tl.exp2(s - reference[:, None])
    return m_new, alpha * l + tl.sum(p, axis=1), alpha, p


@triton.jit
def store_rows(o_ptr, lse_ptr, m, l, acc, rows, stop, D, BLOCK_D: tl.constexpr):
    """Finish rows of o (rows, D) and lse (rows,), both contiguous; m is in base 2."""
    o, lse = normalise(m * LN_2, l, acc)
    store_tile(o_ptr, o, rows, tl.arange(0, BLOCK_D), D, 1, stop, D)
    tl.store(lse_ptr + rows, lse, mask=rows < stop)


@triton.jit
def careful(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, first_row, row_stop, base, T, S, D, offset, scale2,
    stride_qt, stride_qd, stride_ks, stride_kd, stride_vs, stride_vd,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The rows first_row .. row_stop of one head as the teaching kernel does them, ROWS at a time.

    So few rows take no registers from the fast loops, and no hidden value reaches them (`weigh`).
    """
    offs_d = tl.arange(0, BLOCK_D)
    for row in range(first_row, row_stop, ROWS):
        offs_m = (row + tl.arange(0, ROWS)).to(tl.int64)
        q = load_tile(q_ptr, offs_m, offs_d, stride_qt, stride_qd, T, D)
        last_pos = offset + tl.minimum(row + ROWS, T) - 1
        start, stop = key_range(offset + row, last_pos, S, CAUSAL, WINDOW)
        m, l, acc = fresh(ROWS, BLOCK_D)
        for start_n in tl.range(start // BLOCK_N * BLOCK_N, stop, BLOCK_N, num_stages=1):
            offs_n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
            k = load_tile(k_ptr, offs_n, offs_d, stride_ks, stride_kd, S, D)
            v = load_tile(v_ptr, offs_n, offs_d, stride_vs, stride_vd, S, D)
            v = half(v)
            seen = visible(offset + offs_m, offs_n, S, CAUSAL, WINDOW)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale2
            m, l, alpha, p = softmax_step2(m, l, tl.where(seen, s, -float("inf")))
            acc = acc * alpha[:, None] + weigh(p, v, seen)
        store_rows(o_ptr, lse_ptr, m, l, acc, base + offs_m, base + T, D, BLOCK_D)
