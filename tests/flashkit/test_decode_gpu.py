"""What only a GPU can show of decode: bfloat16, graphs, streams, large caches, no waiting."""

import math

import oracle
import pytest
import torch

from flashkit import flash_decode, paged_decode

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def paged(k, v, page, lengths):
    """k and v in pages; entries beyond a length are garbage."""
    (k_pages, table), (v_pages, _) = (oracle.paginate(x, page) for x in (k, v))
    for b, length in enumerate(lengths):
        table[b, -(-length // page) :] = -(2**30)
    return k_pages, v_pages, table


def check(q, k, v, lengths, *, window=None, num_splits=None, pages=(16, 64, 128)):
    """Contiguous and paged, with NaN beyond each length, against float64."""
    on_gpu = torch.tensor(lengths, device="cuda")
    want, want_lse = oracle.exact(q, k, v, on_gpu - 1, window=window)
    baseline = oracle.eager(q, k, v, on_gpu - 1, window=window)
    for b, length in enumerate(lengths):
        k[b, :, length:] = math.nan
        v[b, :, length:] = math.nan
    options = {"window": window, "num_splits": num_splits, "return_lse": True}
    results = [flash_decode(q, k, v, lengths=on_gpu, **options)]
    for page in pages:
        results.append(paged_decode(q, *paged(k, v, page, lengths), on_gpu.int(), **options))
    for o, lse in results:
        oracle.assert_within_budget(o, want, baseline)
        oracle.assert_same(lse, want_lse.cpu(), 1e-5)


@each_dtype
@pytest.mark.parametrize("d", [64, 80, 128, 256])
def test_head_dims(dtype, d):
    check(*oracle.draw(0, 3, (6, 2), 1, 301, d, dtype), [0, 77, 301], num_splits=3)


@each_dtype
@pytest.mark.parametrize("group", [1, 5, 16, 20, 70])
def test_groups(dtype, group):
    check(*oracle.draw(1, 2, (2 * group, 2), 1, 400, 128, dtype), [400, 130], pages=(16,))


@pytest.mark.parametrize("window", [1, 64, 100, 333])
@pytest.mark.parametrize("num_splits", [None, 1, 7, 300])
def test_windows_and_splits(window, num_splits):
    inputs = oracle.draw(2, 4, (8, 2), 1, 1000, 128, torch.bfloat16)
    check(*inputs, [0, 50, 777, 1000], window=window, num_splits=num_splits)


@pytest.mark.parametrize("s", [4096, 40000])
def test_many_tiles(s):
    check(*oracle.draw(3, 2, (8, 2), 1, s, 128, torch.bfloat16), [s, s - 1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_a_seen_value_that_is_not_finite_shows(bad, num_splits):
    q, k, v = oracle.draw(4, 2, (4, 2), 1, 600, 64, torch.bfloat16)
    v[1, 1, 300, 5] = bad
    o = flash_decode(q, k, v, num_splits=num_splits)
    assert not o[1, 2:, 0, 5].isfinite().any()
    assert o[0].isfinite().all()
    assert o[1, :2].isfinite().all()


def test_lengths_on_the_gpu_are_clamped_without_waiting():
    q, k, v = oracle.draw(5, 2, (4, 2), 1, 300, 64, torch.float16)
    clamped = flash_decode(q, k, v, lengths=torch.tensor([300, 0], device="cuda"))
    lengths = torch.tensor([10**6, -5], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = flash_decode(q, k, v, lengths=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(got, clamped)


def test_a_cuda_graph_follows_the_lengths():
    q, k, v = oracle.draw(6, 3, (8, 2), 1, 1000, 128, torch.bfloat16)
    lengths = torch.tensor([1000, 1000, 1000], device="cuda")
    k_pages, v_pages, table = paged(k, v, 64, [1000] * 3)

    def step():
        return (
            flash_decode(q, k, v, lengths=lengths),
            paged_decode(q, k_pages, v_pages, table, lengths),
        )

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for now in ([1000, 1, 64], [0, 999, 500]):
        lengths.copy_(torch.tensor(now))
        graph.replay()
        want, _ = oracle.exact(q, k, v, lengths - 1)
        for o in results:
            oracle.assert_within_budget(o, want, oracle.eager(q, k, v, lengths - 1))


def test_compiled_without_a_break():
    q, k, v = oracle.draw(7, 2, (8, 2), 1, 300, 64, torch.float16)
    lengths = torch.tensor([300, 7], device="cuda")
    pages = paged(k, v, 16, [300, 7])
    for call, args, kwargs in (
        (flash_decode, (q, k, v), {"lengths": lengths}),
        (paged_decode, (q, *pages, lengths), {}),
    ):

        def twice(*inputs, call=call, kwargs=kwargs):
            return 2 * call(*inputs, **kwargs)

        assert torch.equal(torch.compile(twice, fullgraph=True)(*args), twice(*args))


@pytest.mark.parametrize("num_splits", [1, 2, 33])
def test_a_hundred_runs_give_the_same_bits(num_splits):
    """A merge that did not wait for the splits would differ now and then."""
    q, k, v = oracle.draw(8, 2, (32, 8), 1, 5000, 128, torch.bfloat16)
    first = flash_decode(q, k, v, num_splits=num_splits)
    for _ in range(100):
        assert torch.equal(flash_decode(q, k, v, num_splits=num_splits), first)


def test_more_heads_than_a_grid_axis_holds():
    q, k, v = oracle.draw(9, 8200, (8, 8), 1, 17, 16, torch.float16)
    check(q, k, v, [17] * len(q), num_splits=2, pages=())


def test_caches_beyond_32_bits():
    """Keys past 2^31 elements, contiguous as (B, S, H, D) and in pages."""
    s, heads, d = 262144, 8, 128
    x = torch.empty(9, s, heads, d, dtype=torch.bfloat16, device="cuda")
    x[8].normal_()
    cache = x.transpose(1, 2)
    assert cache.numel() > 2**31
    q = torch.randn(9, 32, 1, d, dtype=torch.bfloat16, device="cuda")
    want, _ = oracle.exact(q[8:], cache[8:], cache[8:])
    lengths = torch.tensor([0] * 8 + [s], device="cuda")
    pages = x.view(9 * s // 64, 64, heads, d)
    table = torch.arange(9 * s // 64, dtype=torch.int32, device="cuda").view(9, -1)
    for o in (
        flash_decode(q, cache, cache, lengths=lengths),
        paged_decode(q, pages, pages, table, lengths),
    ):
        assert (o[:8] == 0).all()
        assert (o[8:].double() - want).norm() <= 5e-3 * want.norm()


def test_on_the_current_stream():
    q, k, v = oracle.draw(10, 1, (8, 2), 1, 2000, 64, torch.float16)
    want = flash_decode(q, k, v)
    late = torch.zeros_like(k)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**7)
        late.copy_(k)
        o = flash_decode(q, late, v)
    stream.synchronize()
    assert torch.equal(o, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_another_gpu():
    inputs = oracle.draw(11, 1, (8, 2), 1, 2000, 64, torch.float16)
    want = flash_decode(*inputs)
    o = flash_decode(*(x.to("cuda:1") for x in inputs))
    assert o.device == torch.device("cuda:1")
    assert torch.equal(o.cpu(), want.cpu())


def test_memory_is_that_of_the_partial_results():
    q, k, v = oracle.draw(12, 2, (8, 2), 1, 4096, 128, torch.bfloat16)
    flash_decode(q, k, v, num_splits=16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o = flash_decode(q, k, v, num_splits=16)
    parts = 2 * 8 * 16 * (128 + 1) * 4
    assert torch.cuda.max_memory_allocated() - before <= parts + 16 * 1024
    assert torch.cuda.memory_allocated() - before <= o.nbytes + 4 * 1024
