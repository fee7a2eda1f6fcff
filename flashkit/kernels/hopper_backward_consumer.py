"""The consumer of the Hopper backward: a warpgroup that owns 64 keys and their dk and dv."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashkit.kernels.hopper_backward_dq import add_dq, start_dq
from flashkit.kernels.hopper_backward_producer import KEYS, block_of, rows_of


@gluon.jit
def masked(
    p, key, row, problem, LAYOUT: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr
):  # fmt: skip
    """p (KEYS, BLOCK_M) of keys key ... and rows row ..., 0 where a row does not see a key.

    After the exponent: what is hidden may well have been infinite. Whole tiles cost a comparison.
    """
    _, S, _, _, _, _, diagonal, left = problem
    BLOCK_M: gl.constexpr = p.shape[1]
    whole = key + KEYS <= S
    if CAUSAL:
        whole &= key + KEYS - 1 <= diagonal + row
    if WINDOW:
        whole &= key >= left + row + BLOCK_M - 1
    if not whole:
        keys = key + gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT))
        rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(0, LAYOUT))
        last = gl.full([BLOCK_M], S - 1, gl.int32, gl.SliceLayout(0, LAYOUT))
        if CAUSAL:
            last = gl.minimum(last, diagonal + rows)
        seen = keys[:, None] <= last[None, :]
        if WINDOW:
            seen &= keys[:, None] >= (left + rows)[None, :]
        p = gl.where(seen, p, 0.0)
    return p


@gluon.jit
def raise_unless_finite(flag_ptr, x):
    """Set flag to 1 if any of x (KEYS, D) is not finite: NaN and inf survive a product with 0."""
    bad = gl.sum(x * 0.0, 1) != 0.0
    gl.store(flag_ptr + gl.zeros_like(bad).to(gl.int32), 1, mask=bad)


@gluon.jit
def step(row, at, first, tiles, padded, BLOCK_M: gl.constexpr):
    """The next tile's first row, in its head and over all heads; after a head's last, the next."""
    row += BLOCK_M
    at += BLOCK_M
    if row == first + tiles * BLOCK_M:
        row = first
        at += padded - tiles * BLOCK_M
    return row, at


@gluon.jit
def step_back(row, at, first, tiles, padded, BLOCK_M: gl.constexpr):
    """The row over all heads at which the tile before this one began."""
    return at - gl.where(row == first, padded - (tiles - 1) * BLOCK_M, BLOCK_M)


@gluon.jit
def turn(
    i, n, key, row, late, zero, s, dk, dv, target, shared,
    C: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr, OVERLAP: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """One round: from the scores s of tile i to those of tile i + 1; -> s, dk, dv.

    Of tile i come dp, p, dv, ds and dk. dq is that of tile i - 1, at row `late` over all heads: it
    needs the other consumer's ds too, and a tile late neither has to wait for the other.
    zero is always 0, which the compiler does not know: else it computes the descriptors of K and V
    before the loop, and has no registers to keep them.
    """
    sum_ptr, scale2 = target
    problem, k_tiles, v_tiles, q_ring, do_ring, ds_ring, _ = shared
    q_tiles, lse_rows, q_full, q_empty = q_ring
    do_tiles, delta_rows, do_full, do_empty = do_ring
    ds_tiles, ds_full, ds_empty = ds_ring
    DTYPE: gl.constexpr = k_tiles.dtype
    S_LAYOUT: gl.constexpr = s.type.layout
    ROWS: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, parent=dk.type.layout, k_width=2)
    zeros = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    q = q_tiles.index(i % Q_STAGES).reshape([BLOCK_M, D])
    do = do_tiles.index(i % DO_STAGES).reshape([BLOCK_M, D])
    mbarrier.wait(do_full.index(i % DO_STAGES), i // DO_STAGES & 1)
    v = v_tiles.index(zero + C).reshape([KEYS, D])
    dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=OVERLAP)
    lse = lse_rows.index(i % Q_STAGES).load(ROWS)
    p = gl.exp2(s * scale2 - lse[None, :])
    p = masked(p, key, row, problem, S_LAYOUT, CAUSAL, WINDOW)
    p16 = gl.convert_layout(p.to(DTYPE), OPERAND, assert_trivial=True)
    dv = warpgroup_mma(p16, do, dv, is_async=True)
    dp = warpgroup_mma_wait(1 if OVERLAP else 0, deps=(dp,))  # dv may go on
    delta = delta_rows.index(i % DO_STAGES).load(ROWS)
    ds16 = (p * (dp - delta[None, :])).to(DTYPE)
    ds = gl.convert_layout(ds16, OPERAND, assert_trivial=True)
    now = (i + 1) & 1  # this tile's slot for ds; the one before's is i & 1
    mbarrier.wait(ds_empty.index(now), ((i + 1) >> 1 & 1) ^ 1)
    ds_tiles.index(2 * now + C).store(ds16)
    fence_async_shared()  # what threads wrote, the tensor cores may read
    mbarrier.arrive(ds_full.index(now), count=1)
    dv, p16 = warpgroup_mma_wait(0, deps=(dv, p16))  # p16 is read until here
    mbarrier.arrive(do_empty.index(i % DO_STAGES), count=1)
    mbarrier.wait(ds_full.index(i & 1), i >> 1 & 1)
    after = (i + 1) % Q_STAGES
    mbarrier.wait(q_full.index(after), (i + 1) // Q_STAGES & 1, pred=i + 1 < n)
    dq = start_dq(ds_tiles, k_tiles, i & 1, zero, C)
    k = k_tiles.index(zero + C).reshape([KEYS, D])
    q_after = q_tiles.index(after).reshape([BLOCK_M, D])
    s = warpgroup_mma(k, q_after.permute((1, 0)), zeros, use_acc=False, is_async=True)
    dk = warpgroup_mma(ds, q, dk, is_async=True)
    dq = warpgroup_mma_wait(2 if OVERLAP else 0, deps=(dq,))  # s and dk too
    mbarrier.arrive(ds_empty.index(i & 1), count=1)
    add_dq(sum_ptr, dq, late, C, D)
    s, dk, ds = warpgroup_mma_wait(0, deps=(s, dk, ds))
    mbarrier.arrive(q_empty.index(i % Q_STAGES), count=1)
    return s, dk, dv


@gluon.jit
def walk(
    target, shared, key, first, tiles, start, C: gl.constexpr, D: gl.constexpr,
    BLOCK_M: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
    OVERLAP: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """64 keys against `tiles` tiles of rows of each head of the group -> dk (unscaled), dv.

    first is a head's first row that counts; start the same of the first head, over all heads.
    """
    problem, k_tiles, _, q_ring, _, ds_ring, kv_full = shared
    ds_tiles, ds_full, ds_empty = ds_ring
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    _, _, padded, group, _, _, _, _ = problem
    dk = gl.zeros([KEYS, D], gl.float32, D_LAYOUT)
    dv = gl.zeros([KEYS, D], gl.float32, D_LAYOUT)
    zeros = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    # before the first ds comes one of zeros, so that no round needs a branch for its late dq
    ds_tiles.index(C).store(zeros.to(k_tiles.dtype))
    fence_async_shared()
    mbarrier.arrive(ds_full.index(0), count=1)
    mbarrier.wait(kv_full.index(0), 0)
    mbarrier.wait(q_ring[2].index(0), 0)
    q = q_ring[0].index(0).reshape([BLOCK_M, D])
    k = k_tiles.index(C).reshape([KEYS, D])
    s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.wait(kv_full.index(1), 0)
    n = group * tiles
    row = first
    at = start
    for i in range(n):
        late = gl.maximum(step_back(row, at, first, tiles, padded, BLOCK_M), start)
        s, dk, dv = turn(
            i, n, key, row, late, at >> 31, s, dk, dv, target, shared, C, D, BLOCK_M,
            Q_STAGES, DO_STAGES, OVERLAP, CAUSAL, WINDOW,
        )  # fmt: skip
        row, at = step(row, at, first, tiles, padded, BLOCK_M)
    mbarrier.wait(ds_full.index(n & 1), n >> 1 & 1)
    dq = start_dq(ds_tiles, k_tiles, n & 1, 0, C)
    dq = warpgroup_mma_wait(0, deps=(dq,))
    mbarrier.arrive(ds_empty.index(n & 1), count=1)
    late = step_back(row, at, first, tiles, padded, BLOCK_M)
    add_dq(target[0], dq, late, C, D)
    mbarrier.wait(ds_empty.index(n & 1), n >> 1 & 1)  # the other has read K for the last time
    return dk, dv


@gluon.jit
def gradients_role(
    target, shared, C: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr, OVERLAP: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Consumer C: dk and dv of its 64 keys through `walk`, then out by the way K and V came in."""
    dk_desc, dv_desc, sum_ptr, flag_ptr, scale, scale2 = target
    problem, k_tiles, v_tiles, _, _, _, _ = shared
    _, _, padded, group, _, _, _, _ = problem
    head, block_key = block_of(problem)
    first, tiles = rows_of(block_key, problem, BLOCK_M, CAUSAL, WINDOW)
    key = block_key + C * KEYS
    start = head * group * padded + first
    dk, dv = walk(
        (sum_ptr, scale2), shared, key, first, tiles, start, C, D, BLOCK_M, Q_STAGES, DO_STAGES,
        OVERLAP, CAUSAL, WINDOW,
    )  # fmt: skip
    raise_unless_finite(flag_ptr, dk)
    raise_unless_finite(flag_ptr, dv)
    b = head // dk_desc.shape[1]
    h = head % dk_desc.shape[1]
    v_tiles.index(C).reshape([KEYS, D]).store(dv.to(dv_desc.dtype))
    k_tiles.index(C).reshape([KEYS, D]).store((dk * scale).to(dk_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dv_desc, [b, h, key, 0], v_tiles.index(C))
    tma.async_copy_shared_to_global(dk_desc, [b, h, key, 0], k_tiles.index(C))
    tma.store_wait(0)
