"""The consumer of the Hopper forward: a warpgroup that attends for 64 query rows at a time."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashkit.kernels.hopper_producer import ROWS, keys_of, work_of

# m and s * scale2 are rounded apart: beyond this their difference is no longer near 0 at the max
LARGE = gl.constexpr(2.0**22)
LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def limits_of(row, problem, LAYOUT: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):
    """Rows row .. row + 63 see keys lo .. hi, each (ROWS,); all see whole_lo .. whole_hi - 1."""
    _, S, _, _, _, diagonal, left = problem
    rows = row + gl.arange(0, ROWS, LAYOUT)
    lo = gl.zeros([ROWS], gl.int32, LAYOUT)
    hi = gl.full([ROWS], S - 1, gl.int32, LAYOUT)
    whole_lo = 0
    whole_hi = S
    if CAUSAL:
        hi = gl.minimum(hi, diagonal + rows)
        whole_hi = gl.minimum(S, diagonal + row + 1)
    if WINDOW:
        lo = left + rows
        whole_lo = left + row + ROWS - 1
    return lo, hi, whole_lo, whole_hi


@gluon.jit
def fold(x):
    """x (ROWS, N) as (ROWS, N / 8, 8): what a thread holds of a row lies along the middle axis."""
    return gl.reshape(x, [ROWS, x.shape[1] // 8, 8])


@gluon.jit
def softmax_step(s, m, scale2):
    """One step of online softmax in base 2 -> new m, alpha (each (ROWS,)), p (ROWS, N).

    Per score one FMA and one exp2: s * scale2 - m, with scale2 = scale * log2(e).
    """
    top = gl.convert_layout(gl.max(gl.max(fold(s), 1), 1), m.type.layout, assert_trivial=True)
    m_new = gl.maximum(m, top * scale2)
    reference = gl.where(m_new == -float("inf"), 0.0, m_new)
    alpha = gl.exp2(m - reference)
    return m_new, alpha, gl.exp2(s * scale2 - reference[:, None])


@gluon.jit
def masked(s, key, limits, LAYOUT: gl.constexpr):
    """Scores (ROWS, N) of keys key, key + 1, ...; what a row does not see is -inf.

    A tile that all rows see whole, as most are, costs one comparison.
    """
    lo, hi, whole_lo, whole_hi = limits
    if (key < whole_lo) | (key + s.shape[1] > whole_hi):
        keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT))
        seen = (keys[None, :] >= lo[:, None]) & (keys[None, :] <= hi[:, None])
        s = gl.where(seen, s, -float("inf"))
    return s


@gluon.jit
def attend(
    q_tile, q_empty, k_tiles, v_tiles, k_bars, v_bars, n, first, tiles, limits, scale2,
    D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, OVERLAP: gl.constexpr,
    OWN_O: gl.constexpr, S_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr,
):  # fmt: skip
    """64 rows against `tiles` tiles of keys, from the last to the first -> m, l, acc.

    n counts the tiles before these. In each round the tensor cores work on q k^T of one tile and
    p v of the tile before it, while the softmax of this one runs.
    """
    DTYPE: gl.constexpr = q_tile.dtype
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O_LAYOUT, k_width=2)
    m = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)

    slot = n % STAGES
    mbarrier.wait(k_bars[0].index(slot), n // STAGES & 1)
    k = k_tiles.index(slot).reshape([BLOCK_N, D])
    s = warpgroup_mma(q_tile, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_bars[1].index(slot), count=1)
    s = masked(s, (first + tiles - 1) * BLOCK_N, limits, S_LAYOUT)
    m, _, weights = softmax_step(s, m, scale2)
    l = gl.sum(fold(weights), 1)  # each thread's part: joined once, at the end
    L_ROWS: gl.constexpr = gl.SliceLayout(1, l.type.layout)
    p = gl.convert_layout(weights.to(DTYPE), P_LAYOUT, assert_trivial=True)
    mbarrier.wait(k_bars[0].index((n + 1) % STAGES), (n + 1) // STAGES & 1, pred=tiles > 1)
    for j in range(1, tiles):
        slot = (n + j) % STAGES
        before = (n + j - 1) % STAGES
        k = k_tiles.index(slot).reshape([BLOCK_N, D])
        s_token = warpgroup_mma(q_tile, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_bars[0].index(before), (n + j - 1) // STAGES & 1)
        v = v_tiles.index(before).reshape([BLOCK_N, D])
        acc_token = warpgroup_mma(p, v, acc, is_async=True)
        # one may stay in flight: the older of the two, q k^T, has finished
        s = warpgroup_mma_wait(1 if OVERLAP else 0, deps=(s_token,))
        mbarrier.arrive(k_bars[1].index(slot), count=1)
        s = masked(s, (first + tiles - 1 - j) * BLOCK_N, limits, S_LAYOUT)
        m, alpha, weights = softmax_step(s, m, scale2)
        l = l * gl.convert_layout(alpha, L_ROWS, assert_trivial=True)[:, None]
        l += gl.sum(fold(weights), 1)
        p_next = gl.convert_layout(weights.to(DTYPE), P_LAYOUT, assert_trivial=True)
        # This wait stands here, not at the top of the loop, because it is a loop of its own, and
        # ptxas moves nothing across: else it would hoist the wait below above the softmax.
        after = n + j + 1
        mbarrier.wait(k_bars[0].index(after % STAGES), after // STAGES & 1, pred=j + 1 < tiles)
        acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))  # p: its registers are read until here
        rescale = gl.convert_layout(alpha, gl.SliceLayout(1, O_LAYOUT), assert_trivial=True)
        mbarrier.arrive(v_bars[1].index(before), count=1)
        acc = acc * rescale[:, None]
        p = p_next

    if OWN_O:  # else its buffer is still to carry o out
        mbarrier.arrive(q_empty, count=1)
    last = n + tiles - 1
    mbarrier.wait(v_bars[0].index(last % STAGES), last // STAGES & 1)
    v = v_tiles.index(last % STAGES).reshape([BLOCK_N, D])
    acc = warpgroup_mma(p, v, acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, deps=(acc, p))
    mbarrier.arrive(v_bars[1].index(last % STAGES), count=1)
    l = gl.convert_layout(gl.sum(l, 1), gl.SliceLayout(1, S_LAYOUT), assert_trivial=True)
    return m, l, acc


@gluon.jit
def careful_rows(
    q_ptr, k_ptr, v_ptr, stride_ks, stride_vs, start, stop, inside, lo, hi, scale2,
    D: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The same rows again, one key at a time, for values that tiles cannot handle -> m, l, acc.

    A hidden value is left out, where a tile would multiply it by 0 (0 * NaN is NaN); and scores
    are subtracted before they are scaled, which no magnitude disturbs. q_ptr points to the rows.
    """
    m = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, LAYOUT))
    l = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, LAYOUT))
    acc = gl.zeros([ROWS, D], gl.float32, LAYOUT)
    columns = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    for key in range(start, stop):
        far = key.to(gl.int64)
        q = gl.load(q_ptr[:, None] + columns[None, :], inside[:, None], 0.0).to(gl.float32)
        k = gl.load(k_ptr + far * stride_ks + columns).to(gl.float32)
        v = gl.load(v_ptr + far * stride_vs + columns).to(gl.float32)
        seen = (key >= lo) & (key <= hi)
        s = gl.where(seen, gl.sum(q * k[None, :], 1), -float("inf"))
        m_new = gl.maximum(m, s)
        reference = gl.where(m_new == -float("inf"), 0.0, m_new)
        alpha = gl.exp2((m - reference) * scale2)
        p = gl.exp2((s - reference) * scale2)
        m = m_new
        l = l * alpha + p
        acc = acc * alpha[:, None] + gl.where(seen[:, None], p[:, None] * v[None, :], 0.0)
    return m * scale2, l, acc


@gluon.jit
def attend_role(
    target, shared, C: gl.constexpr, CONSUMERS: gl.constexpr, D: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, OVERLAP: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Consumer C: its 64 rows of each item, through attend, to o and lse."""
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    OWN_O: gl.constexpr = D < 256  # at 256 there is no room for o beside q
    q_desc, k_desc, v_desc, o_desc, q_ptr, k_ptr, v_ptr, lse_ptr, scale2 = target
    problem, q_tiles, k_tiles, v_tiles, o_tiles, q_bars, k_bars, v_bars = shared
    T, S, blocks, heads, _, _, _ = problem
    items = blocks * heads
    q_tile = q_tiles.index(C).reshape([ROWS, D])
    n = 0  # tiles seen so far
    for turn in range((items + gl.num_programs(0) - 1) // gl.num_programs(0)):
        item, head, block_row = work_of(turn, problem, BLOCK_M, CAUSAL)
        if item < items:
            first, tiles = keys_of(block_row, problem, BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
            row = block_row + C * ROWS
            limits = limits_of(row, problem, gl.SliceLayout(1, S_LAYOUT), CAUSAL, WINDOW)
            mbarrier.wait(q_bars[0].index(C), turn & 1)
            m, l, acc = attend(
                q_tile, q_bars[1].index(C), k_tiles, v_tiles, k_bars, v_bars, n, first, tiles,
                limits, scale2, D, BLOCK_N, STAGES, OVERLAP, OWN_O, S_LAYOUT, O_LAYOUT,
            )  # fmt: skip
            n += tiles
            m = gl.convert_layout(m, O_ROWS, assert_trivial=True)
            l = gl.convert_layout(l, O_ROWS, assert_trivial=True)
            rows = row + gl.arange(0, ROWS, O_ROWS)
            # one look at the end, where values that need care show: 0 * NaN, inf, a lost maximum
            finite = gl.sum(acc * 0.0, 1) == 0.0
            good = (finite & ((gl.abs(m) < LARGE) | (m == -float("inf")))) | (rows >= T)
            if gl.min(good.to(gl.int32), 0) == 0:
                far_b = (head // q_desc.shape[1]).to(gl.int64)
                far_h = (head % q_desc.shape[1]).to(gl.int64)
                kv_h = far_h // (q_desc.shape[1] // k_desc.shape[1])
                lo, hi, _, _ = limits_of(row, problem, O_ROWS, CAUSAL, WINDOW)
                q_at = far_b * q_desc.strides[0] + far_h * q_desc.strides[1]
                m, l, acc = careful_rows(
                    q_ptr + q_at + rows.to(gl.int64) * q_desc.strides[2],
                    k_ptr + far_b * k_desc.strides[0] + kv_h * k_desc.strides[1],
                    v_ptr + far_b * v_desc.strides[0] + kv_h * v_desc.strides[1],
                    k_desc.strides[2], v_desc.strides[2],
                    gl.minimum(first * BLOCK_N, S), gl.minimum((first + tiles) * BLOCK_N, S),
                    rows < T, lo, hi, scale2, D, O_LAYOUT,
                )  # fmt: skip
            blind = l == 0.0  # a row that saw no key: 0 and -inf
            l = gl.where(blind, 1.0, l)
            lse = gl.where(blind, -float("inf"), (m + gl.log2(l)) * LN2)
            gl.store(lse_ptr + head.to(gl.int64) * T + rows, lse, mask=rows < T)
            o = acc * (1.0 / l)[:, None]
            o_tiles.index(C).reshape([ROWS, D]).store(o.to(o_desc.dtype))
            fence_async_shared()  # what threads wrote, the copy engine may read
            b = head // q_desc.shape[1]
            h = head % q_desc.shape[1]
            tma.async_copy_shared_to_global(o_desc, [b, h, row, 0], o_tiles.index(C))
            tma.store_wait(0)
            if not OWN_O:
                mbarrier.arrive(q_bars[1].index(C), count=1)
