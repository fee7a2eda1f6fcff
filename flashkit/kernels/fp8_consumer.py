"""The consumer of the Gluon FP8 forward: `hopper_consumer` with 8-bit tiles and their scales.

The scales are those of `fp8`: q's and k's go into the factor of the scores, and acc is kept in
units of the scale of V's last tile. Weights go from the softmax into the next product without
leaving their thread, because V's keys lie in their order (`quantize.key_at`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashkit.kernels.hopper_consumer import LARGE, LN2, careful_rows, fold, limits_of, masked
from flashkit.kernels.hopper_producer import ROWS, keys_of, work_of
from flashkit.kernels.quantize import BLOCK

HEADROOM = gl.constexpr(8.0)  # weights times 2^8: see `fp8`
SCALED = gl.constexpr(BLOCK)


@gluon.jit
def softmax_step(s, m, scale2):
    """As in `hopper_consumer`, with m HEADROOM below the maximum."""
    top = gl.convert_layout(gl.max(gl.max(fold(s), 1), 1), m.type.layout, assert_trivial=True)
    m_new = gl.maximum(m, top * scale2 - HEADROOM)
    reference = gl.where(m_new == -float("inf"), 0.0, m_new)
    alpha = gl.exp2(m - reference)
    return m_new, alpha, gl.exp2(s * scale2 - reference[:, None])


@gluon.jit
def packed(weights):
    """Weights (ROWS, N) as e4m3, four of one word (ROWS, N / 4) int32, in the order of V's keys.

    Carried through a loop as bytes, each would take a register of its own.
    """
    N: gl.constexpr = weights.shape[1]
    x = gl.permute(gl.reshape(weights, [ROWS, N // 16, 2, 4, 2]), (0, 1, 3, 2, 4))
    even, odd = gl.split(gl.reshape(x, [ROWS, N // 4, 2, 2]))
    p0, p2 = gl.split(even)
    p1, p3 = gl.split(odd)
    return gl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high};
        }""",
        "=r,r,r,r,r", [p0, p1, p2, p3], dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.constexpr_function
def words_layout(n):
    """The layout of p (ROWS, n) as a matmul takes it, with the four keys of a word first."""
    more = [[0, 1 << i] for i in range(4, n.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], *more], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, n],
    )  # fmt: skip


@gluon.jit
def operand(words, LAYOUT: gl.constexpr):
    """What `packed` made, as the weights (ROWS, N) that a matmul takes: no instruction."""
    N: gl.constexpr = words.shape[1] * 4
    WORDS: gl.constexpr = words_layout(N)
    four = gl.join(gl.join(words, words), gl.join(words, words))
    four = gl.convert_layout(gl.reshape(four, [ROWS, N]), WORDS, assert_trivial=True)
    p = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r,r,r,r", [four], dtype=gl.float8e4nv, is_pure=True, pack=4
    )
    return gl.convert_layout(p, LAYOUT, assert_trivial=True)


@gluon.jit
def scales_of(k_scales, v_scales, tile, last, BLOCK_N: gl.constexpr):
    """The scale of a tile of K, and that of V's tile after it over that of this one."""
    here = gl.maximum(tile, 0) * BLOCK_N // SCALED
    after = gl.minimum((tile + 1) * BLOCK_N // SCALED, last)
    here = gl.minimum(here, last)
    return gl.load(k_scales + here), gl.load(v_scales + after) / gl.load(v_scales + here)


@gluon.jit
def attend(
    q_tile, q_empty, k_tiles, v_tiles, k_bars, v_bars, n, first, tiles, limits, factor,
    k_scales, v_scales, last_block,
    D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    S_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr,
):  # fmt: skip
    """64 rows against `tiles` tiles of keys, from the last to the first -> m, l, acc."""
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O_LAYOUT, k_width=4)
    m = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)

    k_scale, change = scales_of(k_scales, v_scales, first + tiles - 1, last_block, BLOCK_N)
    slot = n % STAGES
    mbarrier.wait(k_bars[0].index(slot), n // STAGES & 1)
    k = k_tiles.index(slot).reshape([BLOCK_N, D])
    s = warpgroup_mma(q_tile, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_bars[1].index(slot), count=1)
    s = masked(s, (first + tiles - 1) * BLOCK_N, limits, S_LAYOUT)
    m, _, weights = softmax_step(s, m, factor * k_scale)
    k_scale, change = scales_of(k_scales, v_scales, first + tiles - 2, last_block, BLOCK_N)
    l = gl.sum(fold(weights), 1)
    L_ROWS: gl.constexpr = gl.SliceLayout(1, l.type.layout)
    p = packed(weights)
    mbarrier.wait(k_bars[0].index((n + 1) % STAGES), (n + 1) // STAGES & 1, pred=tiles > 1)
    for j in range(1, tiles):
        slot = (n + j) % STAGES
        before = (n + j - 1) % STAGES
        k = k_tiles.index(slot).reshape([BLOCK_N, D])
        s_token = warpgroup_mma(q_tile, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_bars[0].index(before), (n + j - 1) // STAGES & 1)
        v = v_tiles.index(before).reshape([D, BLOCK_N])
        acc_token = warpgroup_mma(operand(p, P_LAYOUT), v.permute((1, 0)), acc, is_async=True)
        scale2 = factor * k_scale
        change_now = change
        k_scale, change = scales_of(k_scales, v_scales, first + tiles - 2 - j, last_block, BLOCK_N)
        s = warpgroup_mma_wait(1, deps=(s_token,))
        mbarrier.arrive(k_bars[1].index(slot), count=1)
        s = masked(s, (first + tiles - 1 - j) * BLOCK_N, limits, S_LAYOUT)
        m, alpha, weights = softmax_step(s, m, scale2)
        l = l * gl.convert_layout(alpha, L_ROWS, assert_trivial=True)[:, None]
        l += gl.sum(fold(weights), 1)
        after = n + j + 1
        mbarrier.wait(k_bars[0].index(after % STAGES), after // STAGES & 1, pred=j + 1 < tiles)
        # The old p is read until here: so the new one, made behind this wait, can take its place.
        acc, weights = warpgroup_mma_wait(0, deps=(acc_token, weights))
        p = packed(weights)
        rescale = gl.convert_layout(
            alpha * change_now, gl.SliceLayout(1, O_LAYOUT), assert_trivial=True
        )
        mbarrier.arrive(v_bars[1].index(before), count=1)
        acc = acc * rescale[:, None]

    mbarrier.arrive(q_empty, count=1)
    last = n + tiles - 1
    mbarrier.wait(v_bars[0].index(last % STAGES), last // STAGES & 1)
    v = v_tiles.index(last % STAGES).reshape([D, BLOCK_N])
    acc = warpgroup_mma(operand(p, P_LAYOUT), v.permute((1, 0)), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(v_bars[1].index(last % STAGES), count=1)
    l = gl.convert_layout(gl.sum(l, 1), gl.SliceLayout(1, S_LAYOUT), assert_trivial=True)
    unit = gl.load(v_scales + gl.minimum(first * BLOCK_N // SCALED, last_block))
    return m, l, acc * unit


@gluon.jit
def attend_role(
    target, shared, C: gl.constexpr, CONSUMERS: gl.constexpr, D: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Consumer C: its 64 rows of each item, through attend, to o and lse."""
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32])
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    q_desc, k_desc, o_desc, scales, given, lse_ptr, scale2 = target
    q_scales, k_scales, v_scales = scales
    q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides = given
    problem, q_tiles, k_tiles, v_tiles, o_tiles, q_bars, k_bars, v_bars = shared
    T, S, blocks, heads, _, _, _ = problem
    items = blocks * heads
    kv_heads = k_desc.shape[1]
    last_block = (S + SCALED - 1) // SCALED - 1
    q_tile = q_tiles.index(C).reshape([ROWS, D])
    n = 0
    for turn in range((items + gl.num_programs(0) - 1) // gl.num_programs(0)):
        item, head, block_row = work_of(turn, problem, BLOCK_M, CAUSAL)
        if item < items:
            first, tiles = keys_of(block_row, problem, BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
            row = block_row + C * ROWS
            limits = limits_of(row, problem, gl.SliceLayout(1, S_LAYOUT), CAUSAL, WINDOW)
            b = head // q_desc.shape[1]
            h = head % q_desc.shape[1]
            kv_h = h // (q_desc.shape[1] // kv_heads)
            q_blocks = (T + SCALED - 1) // SCALED
            q_block = gl.minimum(row // SCALED, q_blocks - 1)
            factor = gl.load(q_scales + head.to(gl.int64) * q_blocks + q_block) * scale2
            kv_at = (b * kv_heads + kv_h).to(gl.int64) * (last_block + 1)
            mbarrier.wait(q_bars[0].index(C), turn & 1)
            m, l, acc = attend(
                q_tile, q_bars[1].index(C), k_tiles, v_tiles, k_bars, v_bars, n, first, tiles,
                limits, factor, k_scales + kv_at, v_scales + kv_at, last_block,
                D, BLOCK_N, STAGES, S_LAYOUT, O_LAYOUT,
            )  # fmt: skip
            n += tiles
            m = gl.convert_layout(m, O_ROWS, assert_trivial=True)
            l = gl.convert_layout(l, O_ROWS, assert_trivial=True)
            rows = row + gl.arange(0, ROWS, O_ROWS)
            finite = gl.sum(acc * 0.0, 1) == 0.0
            good = (finite & ((gl.abs(m) < LARGE) | (m == -float("inf")))) | (rows >= T)
            if gl.min(good.to(gl.int32), 0) == 0:
                lo, hi, _, _ = limits_of(row, problem, O_ROWS, CAUSAL, WINDOW)
                far_b = b.to(gl.int64)
                m, l, acc = careful_rows(
                    q_ptr + far_b * q_strides[0] + h.to(gl.int64) * q_strides[1]
                    + rows.to(gl.int64) * q_strides[2],
                    k_ptr + far_b * k_strides[0] + kv_h.to(gl.int64) * k_strides[1],
                    v_ptr + far_b * v_strides[0] + kv_h.to(gl.int64) * v_strides[1],
                    k_strides[2], v_strides[2],
                    gl.minimum(first * BLOCK_N, S), gl.minimum((first + tiles) * BLOCK_N, S),
                    rows < T, lo, hi, scale2, D, O_LAYOUT,
                )  # fmt: skip
            blind = l == 0.0
            l = gl.where(blind, 1.0, l)
            lse = gl.where(blind, -float("inf"), (m + gl.log2(l)) * LN2)
            gl.store(lse_ptr + head.to(gl.int64) * T + rows, lse, mask=rows < T)
            o = acc * (1.0 / l)[:, None]
            o_tiles.index(C).reshape([ROWS, D]).store(o.to(o_desc.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(o_desc, [b, h, row, 0], o_tiles.index(C))
            tma.store_wait(0)
