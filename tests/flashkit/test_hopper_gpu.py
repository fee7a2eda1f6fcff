"""The Hopper forward on a Hopper GPU, against float64, on shapes that hurt tiles and pipelines."""

import math

import oracle
import pytest
import torch

from flashkit.contracts import check_qkv
from flashkit.kernels import hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]

HEAD_DIMS = [64, 128, 256]
WINDOW = 100
each_head_dim = pytest.mark.parametrize("d", HEAD_DIMS, ids=lambda d: f"D{d}")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
each_mask = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel does not write shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def attend(q, k, v, offset=None, *, causal=True, window=None, scale=None, plan=None):
    dims = check_qkv(q, k, v)
    scale = 1 / math.sqrt(dims.d) if scale is None else scale
    assert hopper.serves(q, k, v, dims, causal=causal, window=window, scale=scale) == ""
    offset = dims.s - dims.t if offset is None else offset
    return hopper.hopper_fwd(
        q, k, v, dims, offset=offset, causal=causal, window=window, scale=scale, plan=plan
    )


def check(q, k, v, offset=None, plan=None, **mask):
    o, lse = attend(q, k, v, offset, plan=plan, **mask)
    want, want_lse = oracle.exact(q, k, v, offset, **mask)
    oracle.assert_within_budget(o, want, oracle.eager(q, k, v, offset, **mask))
    oracle.assert_same(lse, want_lse.cpu(), 2e-5)


@each_dtype
@each_head_dim
@each_mask
def test_lengths_and_groups(dtype, d, causal):
    """Whole and ragged tiles, one row, one key, more rows than keys; groups 1, 2 and 3."""
    heads = {(128, 128): (1, 1), (256, 256): (4, 2)}
    sizes = [(128, 128), (256, 256), (301, 301), (77, 555), (555, 77), (1, 1), (1, 1000), (65, 3)]
    for t, s in [*sizes, (129, 191), (2049, 4097)]:
        check(*oracle.draw(t, 2, heads.get((t, s), (6, 2)), t, s, d, dtype), causal=causal)


@each_head_dim
@each_mask
@pytest.mark.parametrize("offset", [-(10**12), -500, -50, 0, 50, 350, 500, 10**12])
def test_offsets(d, causal, offset):
    """Rows that see nothing among them, and positions past 32 bits; with a window and without."""
    inputs = oracle.draw(1, 2, (3, 1), 200, 300, d, torch.bfloat16)
    check(*inputs, offset, causal=causal)
    check(*inputs, offset, causal=causal, window=WINDOW)


@each_head_dim
@each_mask
@pytest.mark.parametrize("window", [1, 64, WINDOW, 128, 10**12])
def test_windows(d, causal, window):
    for t, s in ((301, 301), (77, 555)):
        inputs = oracle.draw(2, 2, (4, 2), t, s, d, torch.bfloat16)
        check(*inputs, causal=causal, window=window)
    check(*oracle.draw(3, 1, (2, 2), 2049, 2049, d, torch.bfloat16), causal=causal, window=window)


@each_head_dim
@each_mask
@pytest.mark.parametrize("workers", [1, 2, 7, 132])
def test_any_number_of_workers(d, causal, workers):
    """Many items in turn through the same barriers; sections of heads that come out uneven."""
    inputs = oracle.draw(4, 2, (6, 2), 301, 301, d, torch.bfloat16)
    for section in (1, 2, 5, 12):
        check(*inputs, causal=causal, plan=hopper.Schedule(workers, section))


@each_head_dim
def test_scales(d):
    for scale in (1e-30, 0.01, 1.0, 3.0):
        q, k, v = oracle.draw(5, 1, (2, 1), 301, 301, d, torch.float16)
        o, lse = attend(q, k, v, scale=scale)
        factor = scale * math.sqrt(d)  # the oracle's scale is 1 / sqrt(d)
        want, want_lse = oracle.exact(q.double() * factor, k.double(), v.double())
        assert (o.double() - want).abs().max() <= 2e-3 * want.abs().max()
        assert (lse.double() - want_lse).abs().max() <= 1e-4 * max(1.0, want_lse.abs().max())


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def every_second_row(x):
    return x.repeat_interleave(2, dim=2)[:, :, ::2]


@each_head_dim
@pytest.mark.parametrize("layout", [transposed, every_second_row])
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
def test_strides(d, layout, which):
    inputs = list(oracle.draw(6, 2, (4, 2), 77, 301, d, torch.float16))
    for i in which:
        inputs[i] = layout(inputs[i])
    check(*inputs)


@each_head_dim
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_hidden_never_matters(d, bad):
    """Hidden by the offset, by the window, and past the end of a head."""
    q, k, v = oracle.draw(7, 2, (2, 1), 3, 301, d, torch.bfloat16)
    want, want_lse = oracle.exact(q, k, v, 150, window=WINDOW)
    budget = oracle.eager(q, k, v, 150, window=WINDOW)
    hidden = [*range(51), *range(153, 301)]
    k[:, :, hidden] = bad
    v[:, :, hidden] = bad
    o, lse = attend(q, k, v, 150, window=WINDOW)
    oracle.assert_within_budget(o, want, budget)
    oracle.assert_same(lse, want_lse.cpu(), 2e-5)
    buffer = torch.full((2, 1, 600, d), bad, dtype=q.dtype, device="cuda")
    fenced = buffer[:, :, 100:401]
    fenced.copy_(torch.where(k.isfinite(), k, 0.0))
    check(q, fenced, fenced, causal=False)


@each_head_dim
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_seen_does_matter(d, bad):
    """A value that is not finite reaches the rows that see it, and no other row."""
    q, k, v = oracle.draw(8, 1, (2, 1), 301, 301, d, torch.bfloat16)
    want, _ = oracle.exact(q, k, v)
    budget = oracle.eager(q, k, v)
    spoilt_v, spoilt_k = v.clone(), k.clone()
    spoilt_v[0, 0, 207, 3] = bad
    o, _ = attend(q, k, spoilt_v)
    assert not o[:, :, 207:, 3].isfinite().any()
    oracle.assert_within_budget(o[:, :, :207], want[:, :, :207], budget[:, :, :207])
    spoilt_k[0, 0, 207] = math.nan
    o, lse = attend(q, spoilt_k, v)
    assert not o[:, :, 207:].isfinite().any()
    assert not lse[:, :, 207:].isfinite().any()
    oracle.assert_within_budget(o[:, :, :207], want[:, :, :207], budget[:, :, :207])


@each_head_dim
def test_large_scores(d):
    """Scores at the end of bfloat16's reach, where s * scale2 - m is not exact."""
    for value in (240.0, 133120.0):
        x = torch.full((1, 1, 130, d), value, dtype=torch.bfloat16, device="cuda")
        assert torch.equal(attend(x, x, x)[0], x)


@each_dtype
@each_head_dim
@each_mask
def test_runs_are_bit_identical(dtype, d, causal):
    """A hundred runs: weights overwritten in flight would show (triton-lang/triton#9433)."""
    inputs = oracle.draw(9, 2, (8, 2), 1101, 1101, d, dtype)
    first = attend(*inputs, causal=causal)
    for _ in range(100):
        again = attend(*inputs, causal=causal)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize(("batch", "t", "s"), [(2, 3, 0), (2, 0, 5), (0, 3, 5)])
def test_nothing_to_do(batch, t, s):
    o, lse = attend(*oracle.draw(10, batch, (2, 1), t, s, 64, torch.float16))
    assert o.shape == (batch, 2, t, 64)
    assert (o == 0).all()
    assert (lse == -math.inf).all()


def test_more_heads_than_a_grid_axis_holds():
    check(*oracle.draw(11, 1, (65537, 65537), 1, 17, 64, torch.float16))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "head", "row"])
def test_offsets_beyond_32_bits(axis):
    """Also where the careful path reads k and v by pointers."""
    inputs = list(oracle.draw(12, 2, (2, 2), 77, 77, 64, torch.float16))
    strides = list(inputs[0].stride())
    strides[axis] = 2**31 // (inputs[0].shape[axis] - 1) // 16 * 16 + 16 * inputs[0].numel()
    reach = 1 + sum((n - 1) * a for n, a in zip(inputs[0].shape, strides, strict=True))
    far = [
        torch.zeros(reach, dtype=x.dtype, device="cuda").as_strided(x.shape, strides).copy_(x)
        for x in inputs
    ]
    check(*far)
    far[2][:, :, -1] = math.nan
    o, _ = attend(*far)
    want, _ = oracle.exact(*inputs)
    oracle.assert_within_budget(o[:, :, :-1], want[:, :, :-1], oracle.eager(*inputs)[:, :, :-1])


def test_captured_in_a_graph_on_another_stream():
    q, k, v = oracle.draw(13, 1, (2, 1), 301, 301, 128, torch.bfloat16)
    want = attend(q, k, v)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            got = attend(q, k, v)
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu():
    inputs = [x.to("cuda:1") for x in oracle.draw(14, 1, (2, 1), 301, 301, 64, torch.bfloat16)]
    check(*inputs)
