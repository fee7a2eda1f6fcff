"""The producer of the Hopper backward, and how the work is shared out.

As in the forward, producer and consumers meet at mbarriers alone, and the n-th tile that passes
through a ring of R lies in slot n % R, whose barriers are waited for by the parity of n // R. See
docs/hopper-backward.md for the timeline.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

KEYS = gl.constexpr(64)  # keys of one consumer: what one warpgroup's wgmma takes
BLOCK_N = gl.constexpr(128)  # keys of a program, which has two consumers


@gluon.jit
def block_of(problem):
    """This program's KV head (over B * Hkv) and its first key.

    Sections of heads, in a section block after block: neighbours read the same queries at about
    the same time, and, causal, the blocks that the most rows see come first.
    """
    _, S, _, _, heads, section, _, _ = problem
    blocks = (S + BLOCK_N - 1) // BLOCK_N
    first = gl.program_id(0) // (section * blocks) * section
    width = gl.minimum(section, heads - first)
    within = gl.program_id(0) - first * blocks
    return first + within % width, within // width * BLOCK_N


@gluon.jit
def rows_of(key, problem, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):
    """The rows that see any of the keys key .. key + 127 -> first row, tiles (>= 1) of a head."""
    T, S, _, _, _, _, diagonal, left = problem
    start = 0
    stop = T
    if CAUSAL:
        start = gl.maximum(key - diagonal, 0)
    if WINDOW:
        stop = gl.minimum(T, gl.minimum(key + BLOCK_N, S) - left)
    first = gl.minimum(start, T - 1) // BLOCK_M * BLOCK_M
    return first, gl.maximum((stop - first + BLOCK_M - 1) // BLOCK_M, 1)


@gluon.jit
def load_role(
    source, shared, BLOCK_M: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """The producer, one warp: K and V once, then Q with lse, and dO with delta, tile after tile.

    Head after head of the group, so that dk and dv are added up where they are.
    """
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = source
    problem, k_tiles, v_tiles, q_ring, do_ring, _, kv_full = shared
    q_tiles, lse_rows, q_full, q_empty = q_ring
    do_tiles, delta_rows, do_full, do_empty = do_ring
    _, _, padded, group, _, _, _, _ = problem
    head, key = block_of(problem)
    row, tiles = rows_of(key, problem, BLOCK_M, CAUSAL, WINDOW)
    b = head // k_desc.shape[1]
    kv_h = head % k_desc.shape[1]
    k_full = kv_full.index(0)
    v_full = kv_full.index(1)
    mbarrier.expect(k_full, 2 * k_desc.block_type.nbytes)
    for c in gl.static_range(2):
        where = [b, kv_h, key + c * KEYS, 0]
        tma.async_copy_global_to_shared(k_desc, where, k_full, k_tiles.index(c))
    mbarrier.expect(v_full, 2 * v_desc.block_type.nbytes)
    for c in gl.static_range(2):
        where = [b, kv_h, key + c * KEYS, 0]
        tma.async_copy_global_to_shared(v_desc, where, v_full, v_tiles.index(c))
    n = 0  # tiles loaded so far
    for g in range(group):
        for j in range(tiles):
            at = row + j * BLOCK_M
            far = (head * group + g) * padded + at
            slot = n % Q_STAGES
            full = q_full.index(slot)
            mbarrier.wait(q_empty.index(slot), (n // Q_STAGES & 1) ^ 1)
            mbarrier.expect(full, q_desc.block_type.nbytes + lse_desc.block_type.nbytes)
            where = [b, kv_h * group + g, at, 0]
            tma.async_copy_global_to_shared(q_desc, where, full, q_tiles.index(slot))
            tma.async_copy_global_to_shared(lse_desc, [far], full, lse_rows.index(slot))
            slot = n % DO_STAGES
            full = do_full.index(slot)
            mbarrier.wait(do_empty.index(slot), (n // DO_STAGES & 1) ^ 1)
            mbarrier.expect(full, do_desc.block_type.nbytes + delta_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(do_desc, where, full, do_tiles.index(slot))
            tma.async_copy_global_to_shared(delta_desc, [far], full, delta_rows.index(slot))
            n += 1
