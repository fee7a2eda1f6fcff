"""The cost model against brute force over every small case: integers, exactly."""

import itertools
import math

import oracle
import pytest
import torch

from flashkit import cost

SHAPES = list(itertools.product((0, 1, 4, 7), (0, 1, 5, 8), (-9, -3, 0, 2, 9)))
MASKS = [(True, None), (False, None), (True, 1), (True, 3), (False, 3), (True, 99)]
BLOCKS = [(2, 4), (4, 2), (3, 3), (8, 8)]
each_mask = pytest.mark.parametrize(("causal", "window"), MASKS)
each_block = pytest.mark.parametrize(("block_m", "block_n"), BLOCKS)


def visible_set(t, s, offset, causal, window) -> set[tuple[int, int]]:
    pairs = itertools.product(range(t), range(s))
    return {(i, j) for i, j in pairs if oracle.sees(offset + i, j, causal, window)}


def tiles(t, s, offset, block_m, block_n, causal, window) -> dict[tuple[int, int], set]:
    """The visible pairs of each tile of the grid."""
    grid = itertools.product(range(-(-t // block_m)), range(-(-s // block_n)))
    pairs = visible_set(t, s, offset, causal, window)
    return {
        (i, j): {(a, b) for a, b in pairs if a // block_m == i and b // block_n == j}
        for i, j in grid
    }


@each_mask
def test_visible_pairs(causal, window):
    for t, s, offset in SHAPES:
        want = len(visible_set(t, s, offset, causal, window))
        assert cost.visible_pairs(t, s, offset, window, causal) == want, (t, s, offset)
    default = len(visible_set(4, 7, 3, causal, window))
    assert cost.visible_pairs(4, 7, window=window, causal=causal) == default


@each_mask
def test_row_range(causal, window):
    for t, s, offset in SHAPES:
        for row in range(t):
            first, stop = cost.row_range(row, t, s, offset, causal, window)
            want = [j for j in range(s) if oracle.sees(offset + row, j, causal, window)]
            assert list(range(first, stop)) == want, (t, s, offset, row)


@each_mask
@each_block
def test_tile_bounds(causal, window, block_m, block_n):
    for t, s, offset in SHAPES:
        held = tiles(t, s, offset, block_m, block_n, causal, window)
        for i in range(-(-t // block_m)):
            needed = [j for (row, j), pairs in sorted(held.items()) if row == i and pairs]
            want = (needed[0], needed[-1] + 1) if needed else (0, 0)
            got = cost.tile_bounds(i, t, s, offset, block_m, block_n, causal, window)
            assert got == want, (i, t, s, offset)


@each_mask
@each_block
def test_tile_kind_and_counts(causal, window, block_m, block_n):
    for t, s, offset in SHAPES:
        counts = {"skip": 0, "partial": 0, "full": 0}
        for (i, j), pairs in tiles(t, s, offset, block_m, block_n, causal, window).items():
            rows = min((i + 1) * block_m, t) - i * block_m
            want = {0: "skip", rows * block_n: "full"}.get(len(pairs), "partial")
            counts[want] += 1
            got = cost.tile_kind(i, j, t, s, offset, block_m, block_n, causal, window)
            assert got == want, (i, j, t, s, offset)
        assert cost.tile_counts(t, s, offset, block_m, block_n, causal, window) == counts


@pytest.mark.parametrize("window", [0, -1])
def test_window_must_be_positive(window):
    with pytest.raises(ValueError, match=f"window must be an integer >= 1, got {window}"):
        cost.tile_bounds(0, 4, 4, 0, 2, 2, window=window)
    with pytest.raises(ValueError, match=f"window must be an integer >= 1, got {window}"):
        cost.visible_pairs(4, 4, window=window)


def test_flops_count_two_matmuls():
    for t, s, d in itertools.product((1, 3), (2, 5), (4, 7)):
        multiply_adds = 0
        for _ in visible_set(t, s, s - t, True, None):
            multiply_adds += d  # q . k
            multiply_adds += d  # p v
        assert cost.flops(t, s, d, batch=2, heads=3) == 2 * multiply_adds * 2 * 3
    assert cost.flops(4, 4, 8, causal=False) == 4 * 16 * 8
    assert cost.flops(1, 8, 8, offset=2) == 4 * 3 * 8


def test_a_backward_counts_five_matmuls_and_a_split_one_seven():
    for t, s, d in itertools.product((1, 3), (2, 5), (4, 7)):
        pairs = len(visible_set(t, s, s - t, True, None))
        sizes = {"batch": 2, "heads": 3}
        assert cost.backward_flops(t, s, d, **sizes) == 6 * 5 * 2 * d * pairs
        assert cost.backward_flops(t, s, d, **sizes, split=True) == 6 * 7 * 2 * d * pairs
    assert cost.backward_flops(8, 8, 4, causal=False) == 2.5 * cost.flops(8, 8, 4, causal=False)
    seen = len(visible_set(6, 9, 1, True, 3))
    assert cost.backward_flops(6, 9, 4, offset=1, window=3) == 10 * 4 * seen


class Counted(float):
    """A number whose every operation is counted."""

    done = 0

    def _operation(name):
        def operation(self, *others):
            Counted.done += 1
            return Counted(getattr(float, name)(self, *map(float, others)))

        return operation

    __mul__, __add__, __sub__, __truediv__ = map(
        _operation, ("__mul__", "__add__", "__sub__", "__truediv__")
    )

    def exp(self):
        Counted.done += 1
        return Counted(math.exp(self))


def largest(first: Counted, others: list[Counted]) -> Counted:
    """max() as so many comparisons."""
    Counted.done += len(others)
    return Counted(max(first, *others))


def attend_row(scores, width, block_n, keys_outside):
    """Online softmax over one row of scores, value by value; the products themselves are free."""
    m, l = Counted(-9.0), Counted(0.0)
    acc = [Counted(0.0)] * width
    for start in range(0, len(scores), block_n):
        tile = [x * 0.5 for x in scores[start : start + block_n]]
        m_new = largest(m, tile)
        p = [(x - m_new).exp() for x in tile]
        alpha = (m - m_new).exp()
        kept, m = alpha * l, m_new
        l = kept
        for weight in p:
            l = l + weight
        product = Counted(1.0)
        acc = [(a * kept + product) / l if keys_outside else a * alpha for a in acc]
    return acc if keys_outside else [a / l for a in acc]


@pytest.mark.parametrize("keys_outside", [False, True])
@pytest.mark.parametrize(("s", "block_n"), [(1, 4), (8, 4), (9, 4), (12, 3)])
def test_work_outside_the_matmuls_is_counted_operation_by_operation(s, block_n, keys_outside):
    t, d = 3, 5
    Counted.done = 0
    for _ in range(t):
        attend_row([Counted(j % 3) for j in range(s)], d, block_n, keys_outside)
    got = cost.non_matmul_flops(t, s, d, block_n, keys_outside=keys_outside)
    assert got == Counted.done


def test_bytes_add_up_array_by_array():
    t, s, d, block_m = 10, 12, 4, 4
    q = o = t * d
    k = v = s * d
    scores = t * s
    passes = [scores] * 4  # write S, read S, write P, read P
    assert cost.unfused_bytes(t, s, d) == 2 * sum([*passes, q, k, v, o])
    streamed = sum(k + v for _ in range(0, t, block_m))
    assert cost.flash_kv_reads(t, s, d, block_m) == streamed
    assert cost.flash_bytes(t, s, d, block_m, itemsize=4) == 4 * (streamed + q + o)
    assert cost.score_bytes(t, s, batch=2, heads=3) == 2 * 3 * 4 * scores
    assert cost.flash_kv_reads(128, 96, 64, 32) == 2 * 128 * 96 * 64 // 32


def test_keys_outside_read_and_write_the_output_once_a_tile():
    t, s, d, block_n, moved = 5, 10, 4, 4, 0
    for start in range(0, s, block_n):
        keys = min(block_n, s - start)
        moved += 2 * 2 * keys * d  # this tile of k and v, 2 bytes an element
        for _ in range(t):
            moved += 2 * d  # q
            moved += 2 * 4 * (d + 2)  # o, m and l: read and written in float32
    assert cost.keys_outside_bytes(t, s, d, block_n) == moved


def test_what_a_forward_leaves_to_its_backward():
    q, k = torch.empty(2, 6, 5, 16, dtype=torch.float16), torch.empty(2, 3, 7, 16).half()
    o, do, dq, dk = q, q, q, k
    lse = torch.empty(2, 6, 5)
    p = torch.empty(2, 6, 5, 7, dtype=torch.float16)
    sizes = {"batch": 2, "q_heads": 6, "kv_heads": 3}
    saved = sum(x.nbytes for x in (q, k, k, o, lse))
    assert cost.saved_bytes(5, 7, 16, **sizes) == saved
    assert cost.saved_bytes(5, 7, 16, **sizes, store_p=True) == saved + p.nbytes
    moved = saved + sum(x.nbytes for x in (do, dq, dk, dk))
    assert cost.least_backward_bytes(5, 7, 16, **sizes) == moved


def test_saved_bytes_are_linear_in_the_tokens_unless_p_is_among_them():
    one, two, four = (
        cost.saved_bytes(t, t, 64, q_heads=2, kv_heads=2) for t in (1024, 2048, 4096)
    )
    assert (two, four) == (2 * one, 4 * one)
    stored = [cost.saved_bytes(t, t, 64, store_p=True) for t in (16384, 32768)]
    assert stored[1] > 3.9 * stored[0]


def test_integers_out():
    results = (
        cost.score_bytes(3, 5),
        cost.unfused_bytes(3, 5, 4),
        cost.flash_bytes(3, 5, 4, 2),
        cost.flops(3, 5, 4),
        cost.backward_flops(3, 5, 4),
        cost.non_matmul_flops(3, 5, 4, 2),
        cost.keys_outside_bytes(3, 5, 4, 2),
        cost.saved_bytes(3, 5, 4),
        cost.least_backward_bytes(3, 5, 4),
        cost.decode_splits(1, 8, 8192, 132),
    )
    assert all(type(result) is int for result in results)


@pytest.mark.parametrize("name", ["H200", "A100", "T4", "laptop"])
def test_roofline_time_is_the_slower_of_the_two(name):
    device = cost.DEVICES[name]
    assert device.name == name
    assert cost.roofline_time(device.flops, 0, device) == 1.0
    assert cost.roofline_time(0, device.bandwidth, device) == 1.0
    assert cost.roofline_time(device.flops, 3 * device.bandwidth, device) == pytest.approx(3.0)


def test_decode_programs_and_splits():
    assert cost.decode_programs(1, 8) == 8
    assert cost.decode_programs(2, 8, num_splits=4) == 64
    for batch, kv_heads, s in itertools.product((1, 3, 64), (1, 8), (0, 1, 63, 64, 65, 10**6)):
        splits = cost.decode_splits(batch, kv_heads, s, 132)
        assert 1 <= splits <= max(1, -(-s // 64)), "no split without a tile of keys"
        if s == 10**6 and batch * kv_heads < 132:
            assert cost.decode_programs(batch, kv_heads, splits) >= 132


def test_least_bytes_is_what_the_four_arrays_hold():
    q, k = torch.empty(2, 6, 5, 16, dtype=torch.float16), torch.empty(2, 3, 7, 16).half()
    arrays = q.nbytes + k.nbytes + k.nbytes + q.nbytes
    assert cost.least_bytes(5, 7, 16, batch=2, q_heads=6, kv_heads=3, itemsize=2) == arrays
