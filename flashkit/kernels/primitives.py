"""The words that the kernels are written in: load a tile, mask it, take one softmax step.

Most have a twin in PyTorch: `masks.visible`, `masks.weigh`, `online.step`, `online.merge`.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(ptr, rows, cols, stride_row, stride_col, row_stop, col_stop):
    """Load ptr[rows, cols] (ROWS, COLS); what lies outside [0, stop) reads as 0.

    rows are int64 and cols become so: times a stride, either can pass 2^31 in a large cache.
    """
    cols = cols.to(tl.int64)
    inside = (rows[:, None] < row_stop) & (cols[None, :] < col_stop)
    return tl.load(ptr + rows[:, None] * stride_row + cols[None, :] * stride_col, inside, 0.0)


@triton.jit
def store_tile(ptr, tile, rows, cols, stride_row, stride_col, row_stop, col_stop):
    """Store a tile (ROWS, COLS) in ptr's dtype, leaving out what lies outside [0, stop)."""
    inside = (rows[:, None] < row_stop) & (cols[None, :] < col_stop)
    where = ptr + rows[:, None] * stride_row + cols[None, :] * stride_col
    tl.store(where, tile.to(ptr.dtype.element_ty), inside)


@triton.jit
def key_range(first_pos, last_pos, S, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The keys [start, stop) that queries at positions first_pos .. last_pos can see between them.

    WINDOW 0 means none. Whole tiles outside this range are never visited.
    """
    start = 0
    stop = S
    if WINDOW > 0:
        start = tl.maximum(first_pos - WINDOW + 1, 0)
    if CAUSAL:
        stop = tl.minimum(S, last_pos + 1)
    return start, stop


@triton.jit
def visible(q_pos, offs_n, stop, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether each query sees each key: positions (M,), keys (N,) below stop -> (M, N) bool."""
    query, key = tl.broadcast(q_pos[:, None], offs_n[None, :])
    seen = key < stop
    if CAUSAL:
        seen &= key <= query
    if WINDOW > 0:
        seen &= key > query - WINDOW
    return seen


@triton.jit
def exp_reference(m):
    """What exponents are measured against: m, or 0 where nothing was seen (-inf - -inf is NaN)."""
    return tl.where(m == -float("inf"), 0.0, m)


@triton.jit
def softmax_step(m, l, s):
    """One step of online softmax on scores s (M, N): new m and l (M,), alpha (M,), p (M, N)."""
    m_new = tl.maximum(m, tl.max(s, axis=1))
    reference = exp_reference(m_new)
    alpha = tl.exp(m - reference)
    p = tl.exp(s - reference[:, None])
    return m_new, alpha * l + tl.sum(p, axis=1), alpha, p


@triton.jit
def weigh(p, v, seen):
    """p (M, N) @ v (N, D) in which a hidden value never matters; p takes v's dtype for the dot.

    A weight of zero does not hide a NaN, so a key whose value is not finite is taken out, and the
    rows that do see it become NaN.
    """
    bad = tl.max((tl.abs(v.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1, axis=1)
    clean = tl.where(bad[:, None] > 0, 0.0, v).to(v.dtype)
    reached = tl.max(tl.where(seen, bad[None, :], 0), axis=1)
    acc = tl.dot(p.to(v.dtype), clean, input_precision="ieee")
    return tl.where(reached[:, None] > 0, float("nan"), acc)


@triton.jit
def merge(m, l, acc, m_i, l_i, acc_i):
    """Join two partial softmaxes over disjoint keys: m, l (M,) and acc (M, D) of each."""
    m_new = tl.maximum(m, m_i)
    reference = exp_reference(m_new)
    alpha = tl.exp(m - reference)
    alpha_i = tl.exp(m_i - reference)
    return m_new, alpha * l + alpha_i * l_i, alpha[:, None] * acc + alpha_i[:, None] * acc_i


@triton.jit
def normalise(m, l, acc):
    """The finished rows: o (M, D) and lse (M,), natural log; a row that saw no key: 0 and -inf."""
    seen_none = l == 0.0
    l_safe = tl.where(seen_none, 1.0, l)
    return acc / l_safe[:, None], tl.where(seen_none, -float("inf"), m + tl.log(l_safe))


@triton.jit
def turn(blocks, together):
    """Which block of which head a program takes: `together` heads take turns.

    Programs start in the order of their numbers. So where the first blocks are the longest, those
    of all these heads come first, and only short ones are left when the GPU runs empty.
    Neighbours share a KV head, so that its keys are still in the L2 cache.
    """
    section = tl.program_id(0) // (together * blocks)
    within = tl.program_id(0) % (together * blocks)
    width = tl.minimum(together, tl.num_programs(0) // blocks - section * together)
    return within // width, section * together + within % width
