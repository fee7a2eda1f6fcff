"""What attention costs: entries, bytes, operations, tiles. Integers in, integers out.

T queries, S keys, head dim D; counts are for one head unless batch and heads are given. HBM
traffic counts each array once for each time it is streamed; caches are not modelled.

Source: Dao et al., FlashAttention (2022), section 3.2 (IO complexity) and Algorithm 4; Dao,
FlashAttention-2 (2023), section 3.1 (work outside the matmuls); Williams et al., Roofline (2009).
"""

import functools
import math
from dataclasses import dataclass

from flashkit.contracts import check_positive

SCORE_PASSES = ("write S", "read S", "write P", "read P")
"""What unfused attention does with the T x S matrix: softmax sits between two matmuls."""

BACKWARD_MATMULS = ("s = q k^T", "dp = do v^T", "dv = p^T do", "dk = ds^T q", "dq = ds k")
"""The products of a backward pass. Two kernels, one for dk and dv and one for dq, each need s and
dp: 7 products instead of 5."""

SCORE_STEPS = ("scale", "maximum", "subtract", "exponential", "sum")
"""What a forward does to each score outside the matmuls."""


@dataclass(frozen=True)
class Device:
    """A machine: dense half-precision FLOP/s, bytes/s, multiprocessors, bytes of memory."""

    name: str
    flops: float
    bandwidth: float
    sms: int
    memory: int


DEVICES = {
    d.name: d
    for d in (
        Device("H200", 989e12, 4.8e12, 132, 141 * 10**9),
        Device("A100", 312e12, 2.0e12, 108, 80 * 10**9),
        Device("T4", 65e12, 0.32e12, 40, 16 * 10**9),
        Device("laptop", 1e12, 0.1e12, 8, 16 * 10**9),
    )
}
"""Datasheet figures (the laptop's are a round guess): leads for a first estimate, not readings."""


def score_entries(t: int, s: int) -> int:
    """Entries of the score matrix of one head."""
    return t * s


def score_bytes(t: int, s: int, *, batch: int = 1, heads: int = 1, itemsize: int = 4) -> int:
    """Bytes of the score matrices of all heads; S and P are this large each."""
    return batch * heads * itemsize * score_entries(t, s)


def row_range(
    row: int, t: int, s: int, offset: int, causal: bool = True, window: int | None = None
) -> tuple[int, int]:
    """The keys [first, stop) that query `row` sees; stop <= first where it sees none."""
    position = offset + row
    first = 0 if window is None else max(0, position - window + 1)
    return first, min(s, position + 1) if causal else s


@functools.cache  # a bench asks for the same few shapes again and again
def visible_pairs(
    t: int, s: int, offset: int | None = None, window: int | None = None, causal: bool = True
) -> int:
    """How many of the T x S pairs of query and key are visible."""
    check_positive("window", window)
    if not causal and window is None:
        return t * s
    offset = s - t if offset is None else offset
    ranges = (row_range(row, t, s, offset, causal, window) for row in range(t))
    return sum(max(0, stop - first) for first, stop in ranges)


def flops(
    t: int, s: int, d: int, *, batch: int = 1, heads: int = 1, offset: int | None = None,
    window: int | None = None, causal: bool = True,
) -> int:  # fmt: skip
    """Operations of the two matmuls, 2 D each for every visible pair: 4 D x pairs."""
    return 4 * d * batch * heads * visible_pairs(t, s, offset, window, causal)


def backward_flops(
    t: int, s: int, d: int, *, batch: int = 1, heads: int = 1, offset: int | None = None,
    window: int | None = None, causal: bool = True, split: bool = False,
) -> int:  # fmt: skip
    """Operations of the backward's five matmuls: 10 D x pairs; split, with s and dp twice: 14."""
    matmuls = len(BACKWARD_MATMULS) + (2 if split else 0)
    return 2 * matmuls * d * batch * heads * visible_pairs(t, s, offset, window, causal)


def non_matmul_flops(t: int, s: int, d: int, block_n: int, *, keys_outside: bool = False) -> int:
    """Operations of a forward outside the matmuls, without a mask, in tiles of block_n keys.

    Each score costs SCORE_STEPS, each row and tile 3 for alpha and for l. Then acc is multiplied
    by alpha in each tile and divided by l at the end, D each. With keys in the outer loop, o must
    be whole after every tile: it is multiplied, added to and divided in each.
    """
    row_tiles = t * math.ceil(s / block_n)
    acc = 3 * d * row_tiles if keys_outside else d * (row_tiles + t)
    return len(SCORE_STEPS) * score_entries(t, s) + 3 * row_tiles + acc


def unfused_bytes(t: int, s: int, d: int, *, itemsize: int = 2) -> int:
    """HBM bytes of unfused attention: four passes over T x S, and q, k, v, o once each."""
    return itemsize * (len(SCORE_PASSES) * score_entries(t, s) + 2 * d * (t + s))


def flash_kv_reads(t: int, s: int, d: int, block_m: int) -> int:
    """Elements of K and V read by the tiled kernel: each block of queries streams all of both."""
    check_positive("block_m", block_m)
    return 2 * s * d * math.ceil(t / block_m)


def flash_bytes(t: int, s: int, d: int, block_m: int, *, itemsize: int = 2) -> int:
    """HBM bytes of the tiled kernel without a mask: K and V once per query block, q and o once."""
    return itemsize * (flash_kv_reads(t, s, d, block_m) + 2 * t * d)


def keys_outside_bytes(t: int, s: int, d: int, block_n: int, *, itemsize: int = 2) -> int:
    """HBM bytes with keys in the outer loop: k and v once, but for each tile of block_n keys q is
    read, and o, m and l (float32) are read and written."""
    check_positive("block_n", block_n)
    passes = math.ceil(s / block_n)
    return itemsize * d * (2 * s + passes * t) + passes * 2 * 4 * t * (d + 2)


def tile_bounds(
    i: int, t: int, s: int, offset: int, block_m: int, block_n: int,
    causal: bool = True, window: int | None = None,
) -> tuple[int, int]:  # fmt: skip
    """The key tiles [first, stop) that query tile i must visit; (0, 0) if it needs none.

    The bounds are tight: tile `first` and tile `stop` - 1 each hold a visible pair.
    """
    check_positive("window", window)
    rows = range(i * block_m, min((i + 1) * block_m, t))
    seen = [row_range(row, t, s, offset, causal, window) for row in rows]
    seen = [(first, stop) for first, stop in seen if first < stop]
    if not seen:
        return 0, 0
    return seen[0][0] // block_n, math.ceil(seen[-1][1] / block_n)


def tile_kind(
    i: int, j: int, t: int, s: int, offset: int, block_m: int, block_n: int,
    causal: bool = True, window: int | None = None,
) -> str:  # fmt: skip
    """What tile (i, j) asks for: "skip" (nothing visible), "full" (no mask needed) or "partial".

    A tile that reaches past the last key is partial: its end has to be masked.
    """
    rows = range(i * block_m, min((i + 1) * block_m, t))
    lo, hi = j * block_n, (j + 1) * block_n
    kept = [row_range(row, t, s, offset, causal, window) for row in rows]
    counts = [max(0, min(stop, hi) - max(first, lo)) for first, stop in kept]
    if not any(counts):
        return "skip"
    return "full" if all(count == block_n for count in counts) else "partial"


def tile_counts(
    t: int, s: int, offset: int, block_m: int, block_n: int,
    causal: bool = True, window: int | None = None,
) -> dict[str, int]:  # fmt: skip
    """How many tiles of the grid are of each kind."""
    counts = {"skip": 0, "partial": 0, "full": 0}
    for i in range(math.ceil(t / block_m)):
        for j in range(math.ceil(s / block_n)):
            counts[tile_kind(i, j, t, s, offset, block_m, block_n, causal, window)] += 1
    return counts


def least_bytes(
    t: int, s: int, d: int, *, batch: int = 1, q_heads: int = 1, kv_heads: int = 1,
    itemsize: int = 2,
) -> int:  # fmt: skip
    """The fewest HBM bytes of any attention: q, k, v and o, once each."""
    return 2 * batch * (q_heads * t + kv_heads * s) * d * itemsize


def saved_bytes(
    t: int, s: int, d: int, *, batch: int = 1, q_heads: int = 1, kv_heads: int = 1,
    itemsize: int = 2, store_p: bool = False,
) -> int:  # fmt: skip
    """Bytes that a forward leaves to its backward: q, k, v, o and lse (float32), linear in T.

    store_p: and P, T x S for each query head, as attention without recomputation does.
    """
    sizes = {"batch": batch, "q_heads": q_heads, "kv_heads": kv_heads, "itemsize": itemsize}
    p = score_bytes(t, s, batch=batch, heads=q_heads, itemsize=itemsize) if store_p else 0
    return least_bytes(t, s, d, **sizes) + 4 * batch * q_heads * t + p


def least_backward_bytes(
    t: int, s: int, d: int, *, batch: int = 1, q_heads: int = 1, kv_heads: int = 1,
    itemsize: int = 2,
) -> int:  # fmt: skip
    """The fewest HBM bytes of a backward: what was saved and do read, dq, dk and dv written."""
    sizes = {"batch": batch, "q_heads": q_heads, "kv_heads": kv_heads, "itemsize": itemsize}
    return saved_bytes(t, s, d, **sizes) + least_bytes(t, s, d, **sizes)


def roofline_time(flops: float, bytes: float, device: Device) -> float:
    """Seconds that the work takes at least: the slower of its arithmetic and its traffic."""
    return max(flops / device.flops, bytes / device.bandwidth)


def decode_programs(batch: int, kv_heads: int, num_splits: int = 1) -> int:
    """Programs of the split kernel for one query per sequence: one a KV head and split."""
    return batch * kv_heads * num_splits


def decode_splits(batch: int, kv_heads: int, s: int, sms: int, block_n: int = 64) -> int:
    """Splits that give every multiprocessor two programs, but no split less than one tile."""
    wanted = math.ceil(2 * sms / max(1, decode_programs(batch, kv_heads)))
    return max(1, min(wanted, math.ceil(s / block_n)))


def decode_time(
    batch: int, kv_heads: int, s: int, num_splits: int, device: Device,
    *, d: int = 128, group: int = 4, itemsize: int = 2, block_n: int = 64,
) -> float:  # fmt: skip
    """Seconds of a split decode step in a simple model: waves of programs, then one merge.

    A multiprocessor runs one program at a time and moves bytes at its share of the bandwidth. A
    program reads whole tiles of K and V; with more than one split it writes a float32 (m, l, acc)
    for each of its `group` query heads, and one merging program a query head reads them back.
    Arithmetic and launches are free, so this is a lead, not a reading.
    """
    state = 4 * (d + 2) if num_splits > 1 else 0
    tiles = math.ceil(math.ceil(s / num_splits) / block_n)
    waves = math.ceil(decode_programs(batch, kv_heads, num_splits) / device.sms)
    split = waves * (tiles * 2 * block_n * d * itemsize + group * state)
    merge = math.ceil(batch * kv_heads * group / device.sms) * num_splits * state
    return (split + merge) * device.sms / device.bandwidth
