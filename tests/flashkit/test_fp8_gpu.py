"""FP8 attention on a Hopper GPU, against float64 on the rounded inputs, on shapes that hurt."""

import math

import oracle
import pytest
import rounded
import torch

from flashkit import flash_attention, fp8
from flashkit.fp8 import fp8_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]

each_mask = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
each_head_dim = pytest.mark.parametrize("d", [64, 128, 256, 40], ids=lambda d: f"D{d}")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel does not write shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def check(q, k, v, offset=None, *, rotate=True, **mask):
    o, lse = fp8_attention(q, k, v, offset, rotate=rotate, return_lse=True, **mask)
    rounded.check(o, lse, q, k, v, offset, rotate=rotate, **mask)


@each_head_dim
@each_mask
def test_lengths_and_groups(d, causal):
    """Whole and ragged tiles, one row, one key, more rows than keys; groups 1, 2 and 3."""
    heads = {(128, 128): (1, 1), (256, 256): (4, 2)}
    sizes = [(128, 128), (256, 256), (301, 301), (77, 555), (555, 77), (1, 1), (1, 1000), (65, 3)]
    for t, s in [*sizes, (129, 191), (2049, 4097)]:
        inputs = oracle.draw(t, 2, heads.get((t, s), (6, 2)), t, s, d, torch.bfloat16)
        check(*inputs, causal=causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_without_rotation(dtype):
    check(*oracle.draw(1, 2, (4, 2), 301, 333, 128, dtype), rotate=False)


@each_head_dim
@each_mask
@pytest.mark.parametrize("offset", [-(10**12), -500, -50, 0, 350, 10**12])
def test_offsets_and_windows(d, causal, offset):
    """Rows that see nothing among them, and positions past 32 bits."""
    inputs = oracle.draw(2, 2, (3, 1), 200, 300, d, torch.bfloat16)
    for window in (None, 1, 100, 128):
        check(*inputs, offset, causal=causal, window=window)


@each_head_dim
@each_mask
def test_scales_of_blocks_differ_greatly(d, causal):
    """Each block of keys has its own scale, from 2^-20 to 2^20, and so has V."""
    q, k, v = oracle.draw(3, 1, (2, 1), 515, 515, d, torch.bfloat16)
    powers = torch.tensor([-20.0, 3.0, -3.0, 20.0, 0.0], device="cuda")
    factors = torch.exp2(powers).repeat_interleave(128)[:515, None]
    check(q, k, (v * factors).bfloat16(), causal=causal)
    check(q, (k * factors.clamp(max=2)).bfloat16(), v, causal=causal)


@pytest.mark.parametrize("layout", ["transposed", "every second row", "one head for all"])
def test_strides(layout):
    q, k, v = oracle.draw(4, 2, (4, 2), 77, 301, 128, torch.float16)
    if layout == "transposed":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    elif layout == "every second row":
        q, k, v = (x.repeat_interleave(2, dim=2)[:, :, ::2] for x in (q, k, v))
    else:
        k, v = (x[:, :1].expand(x.shape) for x in (k, v))
    check(q, k, v)


@each_head_dim
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_hidden_never_matters(d, bad):
    """Hidden by the offset and by the window: the answer is what exact attention gives."""
    q, k, v = oracle.draw(5, 2, (2, 1), 3, 301, d, torch.bfloat16)
    want, want_lse = oracle.exact(q, k, v, 150, window=100)
    hidden = [*range(51), *range(153, 301)]
    k[:, :, hidden] = bad
    v[:, :, hidden] = bad
    o, lse = fp8_attention(q, k, v, 150, window=100, return_lse=True)
    assert (o.double() - want).norm() <= 0.08 * want.norm()
    oracle.assert_same(lse, want_lse.cpu(), 0.1)


@each_head_dim
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_seen_does_matter(d, bad):
    q, k, v = oracle.draw(6, 1, (2, 1), 301, 301, d, torch.bfloat16)
    v[0, 0, 207, 3] = bad
    o = fp8_attention(q, k, v)
    assert not o[:, :, 207:, 3].isfinite().any()
    assert o[:, :, :207].isfinite().all()
    k[0, 0, 207] = math.nan
    o, lse = fp8_attention(q, k, v, return_lse=True)
    assert o[:, :, 207:].isnan().all()
    assert lse[:, :, 207:].isnan().all()
    assert o[:, :, :207].isfinite().all()


@each_head_dim
@each_mask
def test_runs_are_bit_identical(d, causal):
    """A hundred runs: weights overwritten in flight would show (triton-lang/triton#9433)."""
    inputs = oracle.draw(9, 2, (8, 2), 1101, 1101, d, torch.bfloat16)
    options = {"causal": causal, "return_lse": True}
    first = fp8_attention(*inputs, **options)
    for _ in range(100):
        again = fp8_attention(*inputs, **options)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("rotate", [True, False])
def test_the_kernel_rounds_as_pytorch_does(rotate):
    """Up to a last bit of a scale, and the ties that it decides."""
    q, k, v = oracle.draw(7, 2, (2, 2), 300, 300, 128, torch.bfloat16)
    got = rounded.inputs(q, k, v, rotate)
    if rotate:
        q, k = (fp8.hadamard(x.float(), fp8.random_signs(128)) for x in (q, k))
    for x, y in zip((q, k, v), got, strict=True):
        want = fp8.dequantize(*fp8.quantize(x, fp8.BLOCK), fp8.BLOCK)
        assert ((y - want).abs() > 1e-5 * want.abs()).float().mean() < 1e-3
        assert ((y - x.float()).abs() <= 2**-4 * x.float().abs() + 1e-4).all()


@each_head_dim
def test_long_sums_lose_nothing(d):
    """16k values of one sign: summed up in the tensor cores alone, o would be 18 % too small."""
    q, k, v = oracle.draw(8, 1, (1, 1), 130, 16384, d, torch.bfloat16)
    v = v.abs()
    o = fp8_attention(q, k, v, causal=False).double()
    want, _ = oracle.exact(*rounded.inputs(q, k, v, True), causal=False)
    assert abs((o - want).mean() / want.mean()) <= 5e-3


def test_outliers_cost_little_after_rotation():
    """Entries of 1 in 1000 ten times as large: as in the paper's test of incoherent processing."""
    generator = torch.Generator("cuda").manual_seed(0)
    draw = {"device": "cuda", "generator": generator}
    inputs = []
    for _ in range(3):
        x = torch.randn(1, 4, 2048, 128, **draw)
        rare = torch.rand(x.shape, **draw) < 1e-3
        inputs.append((x + 10 * rare * torch.randn(x.shape, **draw)).bfloat16())
    want, _ = oracle.exact(*inputs, causal=False)
    errors = {
        rotate: (fp8_attention(*inputs, causal=False, rotate=rotate).double() - want).norm()
        for rotate in (True, False)
    }
    errors["bf16"] = (flash_attention(*inputs, causal=False).double() - want).norm()
    assert errors["bf16"] < errors[True] < 0.8 * errors[False]


@each_head_dim
def test_scores_beyond_float32s_integers(d):
    """There m is rounded by more than the headroom of the weights, and rows are done with care."""
    x = torch.full((1, 1, 130, d), 133120.0, dtype=torch.bfloat16, device="cuda")
    assert torch.equal(fp8_attention(x, x, x), x)


def test_captured_in_a_graph_on_another_stream():
    q, k, v = oracle.draw(13, 1, (2, 1), 301, 301, 128, torch.bfloat16)
    want = fp8_attention(q, k, v)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            got = fp8_attention(q, k, v)
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, want)


@pytest.mark.parametrize(("batch", "t", "s"), [(2, 3, 0), (2, 0, 5), (0, 3, 5)])
def test_nothing_to_do(batch, t, s):
    o, lse = fp8_attention(
        *oracle.draw(10, batch, (2, 1), t, s, 64, torch.float16), return_lse=True
    )
    assert o.shape == (batch, 2, t, 64)
    assert (o == 0).all()
    assert (lse == -math.inf).all()
