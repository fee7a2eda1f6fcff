"""The producer of the Hopper forward, and how the work is shared out.

Producer and consumers meet at mbarriers alone. A ring is a few tiles of shared memory and, for
each, one barrier `full` (the copy engine has written it) and one `empty` (every consumer has read
it). The n-th tile that passes through a ring of R lies in slot n % R, and the barriers are waited
for by the parity of n // R. See docs/hopper.md for the timeline.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

ROWS = gl.constexpr(64)  # query rows of one consumer: what one warpgroup's wgmma takes


@gluon.jit
def work_of(turn, problem, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr):
    """This program's item in the given turn -> head (over B * Hq), first query row.

    Workers take items in a snake (0 1 2, 2 1 0, ...), so that sums of falling lengths even out.
    Items run over sections of heads whose keys fit the L2; in a section over row blocks, longest
    first if causal; in a row block over heads. An item >= items is no work.
    """
    _, _, blocks, heads, section, _, _ = problem
    worker, workers = gl.program_id(0), gl.num_programs(0)
    item = turn * workers + gl.where(turn % 2 == 0, worker, workers - 1 - worker)
    first = item // (section * blocks) * section
    width = gl.maximum(gl.minimum(section, heads - first), 1)  # 1: an item past the last
    within = item - first * blocks
    block = within // width
    if CAUSAL:
        block = blocks - 1 - block
    return item, first + within % width, block * BLOCK_M


@gluon.jit
def keys_of(
    row, problem, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """The keys that rows row .. row + BLOCK_M see between them -> first tile, tiles (>= 1)."""
    T, S, _, _, _, diagonal, left = problem
    start = 0
    stop = S
    if CAUSAL:
        stop = gl.maximum(gl.minimum(S, diagonal + gl.minimum(row + BLOCK_M, T)), 0)
    if WINDOW:
        start = gl.maximum(left + row, 0)
    first = start // BLOCK_N
    return first, gl.maximum((stop + BLOCK_N - 1) // BLOCK_N - first, 1)


@gluon.jit
def load_role(
    source, shared, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """The producer, one warp: keep Q, K and V coming, from the last visible tile to the first."""
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    q_desc, k_desc, v_desc = source
    problem, q_tiles, k_tiles, v_tiles, _, q_bars, k_bars, v_bars = shared
    q_heads = q_desc.shape[1]
    group = q_heads // k_desc.shape[1]
    items = problem[2] * problem[3]
    n = 0  # tiles loaded so far
    for turn in range((items + gl.num_programs(0) - 1) // gl.num_programs(0)):
        item, head, row = work_of(turn, problem, BLOCK_M, CAUSAL)
        if item < items:
            first, tiles = keys_of(row, problem, BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
            b = head // q_heads
            h = head % q_heads
            for j in range(tiles):
                key = (first + tiles - 1 - j) * BLOCK_N
                slot = n % STAGES
                parity = (n // STAGES & 1) ^ 1
                mbarrier.wait(k_bars[1].index(slot), parity)
                mbarrier.expect(k_bars[0].index(slot), k_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    k_desc, [b, h // group, key, 0], k_bars[0].index(slot), k_tiles.index(slot)
                )
                if j == 0:  # after the first K, which need not wait for Q's buffer
                    for c in gl.static_range(CONSUMERS):
                        mbarrier.wait(q_bars[1].index(c), (turn & 1) ^ 1)
                        mbarrier.expect(q_bars[0].index(c), q_desc.block_type.nbytes)
                        tma.async_copy_global_to_shared(
                            q_desc, [b, h, row + c * ROWS, 0], q_bars[0].index(c), q_tiles.index(c)
                        )
                mbarrier.wait(v_bars[1].index(slot), parity)
                mbarrier.expect(v_bars[0].index(slot), v_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    v_desc, [b, h // group, key, 0], v_bars[0].index(slot), v_tiles.index(slot)
                )
                n += 1
