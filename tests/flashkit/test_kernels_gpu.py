"""What only a GPU can show: compiled kernels, bfloat16, TF32, large grids, 64-bit addresses.

The shapes are chosen so that many cases share one compilation: T and S odd, S - T a multiple of
16, one window.
"""

import math
from functools import partial

import oracle
import pytest
import torch

from flashkit import flash_attention, flash_decode

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HEAD_DIMS = [16, 32, 40, 64, 80, 96, 128, 192, 256]
WINDOW = 100
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


@pytest.fixture(autouse=True, params=["teaching", "triton", "auto"])
def backend(request, monkeypatch):
    """Every case runs on the chapter's kernel, on the tuned one, and on what is chosen."""
    name = request.param
    monkeypatch.setitem(globals(), "flash_attention", partial(flash_attention, backend=name))
    return name


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel does not write shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def judge(o, lse, q, k, v, offset=None, **mask):
    """Output within the budget of its dtype (float32: 1e-5), lse within 1e-5 of float64."""
    want, want_lse = oracle.exact(q, k, v, offset, **mask)
    assert lse.dtype == torch.float32
    oracle.assert_within_budget(o, want, oracle.eager(q, k, v, offset, **mask))
    oracle.assert_same(lse, want_lse.cpu(), 1e-5)
    if q.dtype == torch.float32:
        oracle.assert_same(o, want.cpu(), 1e-5)


def check(q, k, v, offset=None, **mask):
    o, lse = flash_attention(q, k, v, offset, return_lse=True, **mask)
    judge(o, lse, q, k, v, offset, **mask)


def check_decode(q, k, v, lengths=None, *, window=None, num_splits=None):
    """flash_decode, with NaN in the cache beyond each length."""
    given = torch.full((len(q),), k.shape[2]) if lengths is None else torch.tensor(lengths)
    want, want_lse = oracle.exact(q, k, v, given.cuda() - 1, window=window)
    baseline = oracle.eager(q, k, v, given.cuda() - 1, window=window)
    for b, length in enumerate(given.tolist()):
        k[b, :, length:] = math.nan
        v[b, :, length:] = math.nan
    o, lse = flash_decode(
        q, k, v, lengths=given.cuda(), window=window, num_splits=num_splits, return_lse=True
    )
    oracle.assert_within_budget(o, want, baseline)
    oracle.assert_same(lse, want_lse.cpu(), 1e-5)


@each_dtype
@pytest.mark.parametrize("d", HEAD_DIMS)
def test_head_dims(dtype, d):
    """Prefill and chunked prefill, ragged, groups of 3 and of 8, and decode, for each head dim."""
    for heads, t in (((6, 2), 301), ((8, 1), 301), ((6, 2), 77)):
        check(*oracle.draw(0, 2, heads, t, 301, d, dtype))
    check_decode(*oracle.draw(1, 3, (6, 2), 1, 301, d, dtype), [0, 77, 301])


@each_dtype
@pytest.mark.parametrize("d", [16, 24, 64, 80, 128])
def test_masks(dtype, d):
    """Group 1, one query, a window, no mask, rows that see nothing."""
    check(*oracle.draw(2, 2, (4, 4), 301, 301, d, dtype))
    check(*oracle.draw(3, 2, (6, 2), 1, 301, d, dtype))
    check(*oracle.draw(4, 2, (6, 2), 301, 301, d, dtype), window=WINDOW)
    check(*oracle.draw(5, 2, (6, 2), 77, 301, d, dtype), window=WINDOW)
    check(*oracle.draw(6, 2, (6, 2), 77, 301, d, dtype), causal=False)
    check(*oracle.draw(7, 2, (6, 2), 301, 77, d, dtype))


@pytest.mark.parametrize(("t", "s"), [(1, 1), (3, 5), (127, 127), (128, 128), (129, 129)])
def test_lengths_around_the_tile(t, s):
    check(*oracle.draw(8, 1, (2, 1), t, s, 64, torch.float16))
    check(*oracle.draw(8, 1, (2, 1), t, s, 64, torch.float16), causal=False)


@pytest.mark.parametrize("blocks", [(16, 16), (32, 128), (64, 64), (128, 32)])
def test_tile_sizes(blocks):
    q, k, v = oracle.draw(9, 1, (2, 1), 301, 301, 64, torch.float16)
    o, lse = flash_attention(q, k, v, block_m=blocks[0], block_n=blocks[1], return_lse=True)
    judge(o, lse, q, k, v)


@each_dtype
@pytest.mark.parametrize("num_splits", [None, 1, 7, 300])
def test_decode(dtype, num_splits):
    """Lengths with 0 among them, a window, few and many splits, groups 1, 3, 8 and 17."""
    for heads in ((4, 4), (6, 2), (8, 1), (17, 1)):
        inputs = oracle.draw(10, 4, heads, 1, 2001, 64, dtype)
        check_decode(*inputs, [0, 1, 777, 2001], num_splits=num_splits)
    inputs = oracle.draw(11, 4, (8, 2), 1, 2001, 128, dtype)
    check_decode(*inputs, [0, 50, 777, 2001], window=WINDOW, num_splits=num_splits)


@each_dtype
def test_long_sequences(dtype):
    """Many tiles: the running maximum and the rescaling, far from one tile's worth."""
    check(*oracle.draw(12, 1, (2, 1), 2049, 4097, 64, dtype))
    check_decode(*oracle.draw(13, 1, (8, 1), 1, 30001, 64, dtype))


def every_second_row(x):
    return x.repeat_interleave(2, dim=2)[:, :, ::2]


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def column_major(x):
    return x.mT.contiguous().mT


@pytest.mark.parametrize("layout", [every_second_row, transposed, column_major])
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
def test_strides(layout, which):
    """Each tensor by its own strides (flagos-ai/FlagAttention#45, flagos-ai/FlagGems#5896)."""
    inputs = list(oracle.draw(14, 2, (4, 2), 77, 301, 64, torch.float16))
    one = list(oracle.draw(15, 2, (4, 2), 1, 301, 64, torch.float16))
    for i in which:
        inputs[i], one[i] = layout(inputs[i]), layout(one[i])
    check(*inputs)
    judge(*flash_decode(*one, return_lse=True), *one)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_hidden_never_matters(bad):
    """On a GPU tl.max drops NaN: the interpreter alone would not show a NaN that slips in.

    The careful pass of a fast kernel may round in another order, so the last bits are free.
    """
    for dtype in DTYPES:
        q, k, v = oracle.draw(16, 1, (2, 1), 3, 301, 64, dtype)
        want = flash_attention(q, k, v, 150, window=WINDOW)
        one = flash_decode(q[:, :, :1], k, v, lengths=torch.tensor([151]), window=WINDOW)
        hidden = [*range(51), *range(153, 301)]
        k[:, :, hidden] = bad
        v[:, :, hidden] = bad
        near = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
        torch.testing.assert_close(flash_attention(q, k, v, 150, window=WINDOW), want, **near)
        got = flash_decode(q[:, :, :1], k, v, lengths=torch.tensor([151]), window=WINDOW)
        assert torch.equal(got, one)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_matters_only_to_the_rows_that_see_it(bad):
    q, k, v = oracle.draw(17, 1, (2, 1), 301, 301, 64, torch.float16)
    want = flash_attention(q, k, v)
    v[0, 0, 207, 3] = bad
    o = flash_attention(q, k, v)
    eps = torch.finfo(torch.float16).eps
    torch.testing.assert_close(o[:, :, :207], want[:, :, :207], rtol=4 * eps, atol=2 * eps)
    assert not o[:, :, 207:, 3].isfinite().any()


def test_large_scores():
    """Scores beyond float16; values at the end of bfloat16's reach (pytorch/pytorch#121558)."""
    v = oracle.draw(18, 1, (1, 1), 5, 5, 64, torch.float16)[2]
    q = k = torch.full_like(v, 240.0)
    want, _ = oracle.exact(q, k, v)
    oracle.assert_within_budget(flash_attention(q, k, v), want, oracle.eager(q, k, v))
    x = torch.full((1, 1, 1, 64), 133120.0, dtype=torch.bfloat16, device="cuda")
    assert torch.equal(flash_attention(x, x, x), x)
    assert torch.equal(flash_decode(x, x, x), x)


@each_dtype
def test_runs_are_bit_identical(dtype):
    """A race would show as a difference between runs.

    Seen in triton-lang/triton#621, Dao-AILab/flash-attention#429, triton-lang/triton#11153.
    """
    inputs = oracle.draw(19, 2, (8, 2), 1001, 1001, 64, dtype)
    one = oracle.draw(20, 2, (8, 2), 1, 2001, 64, dtype)
    for attention, args in ((flash_attention, inputs), (flash_decode, one)):
        first = attention(*args, return_lse=True)
        for _ in range(4):
            again = attention(*args, return_lse=True)
            assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize(("batch", "heads", "t"), [(1, 65537, 1), (8192, 8, 16)])
def test_more_heads_than_a_grid_axis_holds(batch, heads, t):
    """Grid axes 1 and 2 end at 65535 (fla-org/flash-linear-attention#172)."""
    q, k, v = oracle.draw(21, batch, (heads, heads), t, 17, 16, torch.float16)
    check(q, k, v)
    one = q[:, :, :1]
    judge(*flash_decode(one, k, v, return_lse=True), one, k, v)


def spread(x, axis: int, first: int = 0):
    """x with its elements laid out so that offsets along `axis` pass 2^31 elements."""
    strides = list(x.stride())
    strides[axis] = 2**31 // (x.shape[axis] - 1) // 16 * 16 + 16 * x.numel()
    reach = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
    assert (x.shape[axis] - 1) * strides[axis] > 2**31
    far = torch.zeros(first + reach, dtype=x.dtype, device=x.device)
    return far.as_strided(x.shape, strides, first).copy_(x)


@pytest.mark.parametrize("axis", range(4), ids=["batch", "head", "row", "column"])
def test_offsets_beyond_32_bits(axis):
    """q, k and v by 64-bit addresses along each of their axes, by descriptors and by pointers."""
    inputs = oracle.draw(22, 2, (2, 2), 77, 77, 64, torch.float16)
    check(*(spread(x, axis) for x in inputs))
    check(*(spread(x, axis, first=1) for x in inputs))
    q, k, v = inputs
    one = q[:, :, :1]
    far = one if axis == 2 else spread(one, axis), spread(k, axis), spread(v, axis)
    judge(*flash_decode(*far, return_lse=True), one, k, v)


def test_output_beyond_32_bits():
    """More than 2^31 elements in and out; a window of one returns the values as they are."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (1, 2049, 65536, 16)
    x = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float16)
    assert x.numel() > 2**31
    o = flash_attention(x, x, x, window=1)
    for got, want in zip(o[0].split(256), x[0].split(256), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(("batch", "t", "s"), [(2, 3, 0), (2, 0, 5), (0, 3, 5)])
def test_nothing_to_do(batch, t, s):
    """No launch with an empty grid, and zeros where there is no key.

    Seen in Dao-AILab/flash-attention#2470.
    """
    inputs = oracle.draw(24, batch, (2, 1), t, s, 16, torch.float16)
    o, lse = flash_attention(*inputs, return_lse=True)
    assert o.shape == inputs[0].shape
    assert (o == 0).all()
    assert (lse == -math.inf).all()
    one = oracle.draw(24, batch, (2, 1), 1, 0, 16, torch.float16)
    assert (flash_decode(*one) == 0).all()


def test_tensors_on_the_cpu_are_refused_by_name():
    x = torch.zeros(1, 1, 1, 16)
    with pytest.raises(ValueError, match="a compiled kernel needs tensors on a GPU"):
        flash_attention(x, x, x)


def test_tiles_that_do_not_fit_are_refused_by_name(backend):
    inputs = oracle.draw(30, 1, (1, 1), 300, 300, 256, torch.float16)
    with pytest.raises(ValueError, match="block_m = 64, block_n = 256 do not fit this GPU at D"):
        flash_attention(*inputs, block_m=64, block_n=256)


def test_as_exact_as_it_says_on_a_large_case():
    """float32 means float32: TF32 would err by 1e-3 here (triton-lang/triton#1671)."""
    check(*oracle.draw(23, 1, (2, 2), 101, 101, 32))


@each_dtype
@pytest.mark.parametrize("scale", [0, -0.3])
def test_any_scale(dtype, scale):
    """Times a negative scale the largest score is the smallest."""
    q, k, v = oracle.draw(25, 1, (2, 1), 301, 301, 64, dtype)
    o = flash_attention(q, k, v, scale=scale)
    queries = (q.double() * scale * 8).to(dtype)  # float64's 1 / sqrt(64) undone
    if dtype == torch.float32:
        oracle.assert_same(o, oracle.exact(queries, k, v)[0].cpu(), 1e-5)
    else:
        oracle.assert_within_budget(
            o, oracle.exact(q.double() * scale * 8, k, v)[0], oracle.eager(queries, k, v)
        )


def test_compiled_and_captured():
    """torch.compile in one graph; a CUDA graph that is replayed on new inputs."""
    q, k, v = oracle.draw(26, 2, (4, 2), 301, 301, 64, torch.float16)
    want = flash_attention(q, k, v, return_lse=True)
    compiled = torch.compile(
        lambda *x: flash_attention(*x, return_lse=True), fullgraph=True, backend="aot_eager"
    )
    assert all(torch.equal(x, y) for x, y in zip(compiled(q, k, v), want, strict=True))
    held = [torch.zeros_like(x) for x in (q, k, v)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flash_attention(*held, return_lse=True)
    for x, y in zip(held, (q, k, v), strict=True):
        x.copy_(y)
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(captured, want, strict=True))


def test_the_current_stream_is_used():
    """Work that was queued before on the same stream is waited for, and on no other."""
    q, k, v = oracle.draw(27, 1, (2, 1), 301, 301, 64, torch.float16)
    want = flash_attention(q, k, v)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        late = torch.zeros_like(q)
        torch.cuda._sleep(50_000_000)
        late.copy_(q)
        got = flash_attention(late, k, v)
    torch.cuda.synchronize()
    assert torch.equal(got, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu():
    """Launched where the tensors are, wherever the caller is (triton-lang/triton#2441)."""
    inputs = oracle.draw(28, 1, (2, 1), 301, 301, 64, torch.float16)
    want = flash_attention(*inputs)
    got = flash_attention(*(x.to("cuda:1") for x in inputs))
    assert got.device == torch.device("cuda:1")
    assert torch.equal(got.cpu(), want.cpu())


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9),
    reason="needs a GPU with FP8",
)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("d", [16, 24, 64, 80, 128])
def test_fp8(backend, dtype, d):
    """As exact as float16 on the same values, whatever FP8 they are stored in."""
    if backend == "teaching":
        with pytest.raises(ValueError, match="'teaching' does not serve these inputs"):
            flash_attention(*oracle.draw(29, 1, (1, 1), 1, 1, d, dtype))
        return
    for t, mask in ((301, {}), (77, {"window": WINDOW}), (77, {"causal": False}), (1, {})):
        inputs = oracle.draw(29, 2, (4, 2), t, 301, d, dtype)
        o, lse = flash_attention(*inputs, return_lse=True, **mask)
        want, want_lse = oracle.exact(*inputs, **mask)
        halves = (x.half() for x in inputs)
        oracle.assert_within_budget(o, want, oracle.eager(*halves, **mask))
        oracle.assert_same(lse, want_lse.cpu(), 1e-3)
    q, k, v = inputs
    assert torch.equal(
        flash_attention(q, k, v, scale=-0.1),
        flash_attention((-q.float()).to(dtype), k, v, scale=0.1),
    )
    v.view(torch.int8)[:, :, 200:] = 0x7F  # NaN
    flash_attention(q, k, v, 199)
    assert flash_attention(q, k, v, 199).isfinite().all()
