"""The fused backward on a Hopper GPU, against float64, on shapes that hurt tiles and pipelines."""

import math

import oracle
import pytest
import torch

from flashkit.contracts import check_qkv
from flashkit.kernels import forward_tuned, hopper_backward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]

WINDOW = 100
each_head_dim = pytest.mark.parametrize("d", [64, 128], ids=lambda d: f"D{d}")
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"]
)
each_mask = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel does not write shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def draw(seed, batch, heads, t, s, d, dtype=torch.bfloat16):
    """q, k, v and the gradient of o."""
    q, k, v = oracle.draw(seed, batch, heads, t, s, d, dtype)
    return q, k, v, oracle.draw(seed + 1000, batch, heads, t, s, d, dtype)[0]


def differentiate(q, k, v, do, offset=None, *, dlse=None, section=8, **mask):
    """dq, dk, dv by this backward, behind the forward of any GPU."""
    dims = check_qkv(q, k, v)
    options = {"causal": True, "window": None, "scale": 1 / math.sqrt(dims.d)} | mask
    assert hopper_backward.serves(q, k, v, dims, **options) == ""
    options["offset"] = dims.s - dims.t if offset is None else offset
    o, lse = forward_tuned.tuned_fwd(q, k, v, dims, **options)
    return hopper_backward.hopper_bwd(
        q, k, v, o, lse, do, dlse, dims, section=section, **options
    )  # fmt: skip


def check(q, k, v, do, offset=None, *, dlse=None, section=8, tolerance=None, **mask):
    got = differentiate(q, k, v, do, offset, dlse=dlse, section=section, **mask)
    want = oracle.gradients(q, k, v, do, offset, dlse=dlse, **mask)
    oracle.assert_gradients(got, want, tolerance)
    return got


@each_dtype
@each_head_dim
@each_mask
def test_lengths_and_groups(dtype, d, causal):
    """Whole and ragged tiles, one row, one key, more rows than keys; groups 1, 2, 3 and 8."""
    heads = {(128, 128): (1, 1), (256, 256): (4, 2), (77, 555): (8, 1)}
    sizes = [(128, 128), (256, 256), (301, 301), (77, 555), (555, 77), (1, 1), (1, 1000), (65, 3)]
    for t, s in [*sizes, (63, 65), (129, 191), (1025, 2049)]:
        check(*draw(t, 2, heads.get((t, s), (6, 2)), t, s, d, dtype), causal=causal)


@each_head_dim
@each_mask
@pytest.mark.parametrize("offset", [-(10**12), -500, -50, 0, 50, 350, 500, 10**12])
def test_offsets(d, causal, offset):
    """Rows that see nothing among them, and positions past 32 bits; with a window and without."""
    inputs = draw(1, 2, (3, 1), 200, 300, d)
    check(*inputs, offset, causal=causal)
    check(*inputs, offset, causal=causal, window=WINDOW)


@each_head_dim
@each_mask
@pytest.mark.parametrize("window", [1, 64, WINDOW, 128, 10**12])
def test_windows(d, causal, window):
    for t, s in ((301, 301), (77, 555)):
        check(*draw(2, 2, (4, 2), t, s, d), causal=causal, window=window)
    check(*draw(3, 1, (2, 2), 1025, 1025, d), causal=causal, window=window)


@each_head_dim
@each_mask
@pytest.mark.parametrize("section", [1, 2, 5, 12])
def test_any_section(d, causal, section):
    """Sections of heads that come out uneven, and one that is larger than there are heads."""
    check(*draw(4, 3, (6, 3), 301, 301, d), causal=causal, section=section)


@each_head_dim
@pytest.mark.parametrize("scale", [1e-30, 0.01, 1.0])
def test_scales(d, scale):
    check(*draw(5, 1, (2, 1), 301, 301, d), scale=scale)


@each_head_dim
@each_mask
def test_the_gradient_of_lse(d, causal):
    q, k, v, do = draw(6, 2, (4, 2), 150, 301, d)
    dlse = oracle.draw(7, 2, (4, 2), 150, 301, d)[0][..., 3].float()
    check(q, k, v, do, dlse=dlse, causal=causal)
    check(q, k, v, torch.zeros_like(do), dlse=dlse[:, :1].expand(dlse.shape), causal=causal)


@each_head_dim
def test_very_negative_lse_and_a_short_last_tile(d):
    """Past the last key exp(0 - lse) is infinite: it must be masked, not multiplied by 0.

    ds sums to 0 over keys that are all alike here, so its rounding weighs more than elsewhere.
    """
    q, k, v, do = draw(8, 1, (2, 1), 200, 131, d)
    q, k = q.abs() + 1, -k.abs() - 1
    check(q, k, v, do, causal=False, scale=0.7, tolerance=2e-2)
    check(q, k, v, do, scale=0.7, tolerance=2e-2)


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def every_second_row(x):
    return x.repeat_interleave(2, dim=2)[:, :, ::2]


@each_head_dim
@pytest.mark.parametrize("layout", [transposed, every_second_row])
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)])
def test_strides(d, layout, which):
    inputs = list(draw(9, 2, (4, 2), 77, 301, d))
    for i in which:
        inputs[i] = layout(inputs[i])
    check(*inputs)


@each_head_dim
def test_any_output_gradient(d):
    """Stride 0, as o.sum() gives, column major, every second column, an odd start."""
    q, k, v, do = draw(10, 2, (4, 2), 77, 301, d)
    one = torch.ones((), dtype=do.dtype, device=do.device)
    odd = torch.zeros(do.numel() + 1, dtype=do.dtype, device=do.device)[1:].view(do.shape)
    for x in (
        one.expand(do.shape),
        do.mT.contiguous().mT,
        do.repeat_interleave(2, dim=3)[..., ::2],
        do[:, :, :1].expand(do.shape),
        odd.copy_(do),
    ):
        check(q, k, v, x)


@each_head_dim
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_hidden_never_matters(d, bad):
    """Keys hidden by the offset, by the window and past the end; rows that see nothing."""
    q, k, v, do = draw(11, 2, (2, 1), 3, 301, d)
    want = oracle.gradients(q, k, v, do, 150, window=WINDOW)
    hidden = [*range(51), *range(153, 301)]
    k[:, :, hidden] = bad
    v[:, :, hidden] = bad
    oracle.assert_gradients(differentiate(q, k, v, do, 150, window=WINDOW), want)
    q, k, v, do = draw(12, 1, (2, 1), 200, 150, d)  # rows 0 to 49 are blind
    want = oracle.gradients(q, k, v, do)
    q[:, :, :50] = bad
    do[:, :, :50] = bad
    oracle.assert_gradients(differentiate(q, k, v, do), want)
    buffer = torch.full((2, 2, 600, d), bad, dtype=q.dtype, device="cuda")
    fenced = [x[:, :, 100:401] for x in (buffer, buffer.clone(), buffer.clone(), buffer.clone())]
    for x, y in zip(fenced, draw(13, 2, (2, 2), 301, 301, d), strict=True):
        x.copy_(y)
    check(*fenced, causal=False)


@each_head_dim
def test_what_is_seen_does_matter(d):
    """A NaN key reaches the rows that see it, and through them nothing that they do not see."""
    q, k, v, do = draw(14, 1, (2, 1), 301, 301, d)
    k[0, 0, 207] = math.nan
    dq, dk, dv = differentiate(q, k, v, do)
    assert dq[:, :, 207:].isnan().all()
    assert dq[:, :, :207].isfinite().all()
    for x in (dk, dv):
        assert x.isnan().all()  # a row past 207 is NaN, and it sees every key up to itself
    got = differentiate(q, k, v, do, window=16)
    assert got[0][:, :, 230:].isfinite().all()
    assert got[1][:, :, 240:].isfinite().all()
    assert got[1][:, :, :190].isfinite().all()


@each_dtype
@each_head_dim
@each_mask
def test_dk_and_dv_are_bit_identical(dtype, d, causal):
    """A hundred runs: operands overwritten in flight would show (triton-lang/triton#9433)."""
    inputs = draw(15, 2, (8, 2), 1101, 1101, d, dtype)
    first = differentiate(*inputs, causal=causal)
    for _ in range(100):
        dq, dk, dv = differentiate(*inputs, causal=causal)
        assert torch.equal(dk, first[1])
        assert torch.equal(dv, first[2])
        assert (dq.float() - first[0].float()).abs().max() <= 2e-2 * first[0].abs().max()


@pytest.mark.parametrize(("batch", "t", "s"), [(2, 3, 0), (2, 0, 5), (0, 3, 5)])
def test_nothing_to_do(batch, t, s):
    q, k, v, do = draw(16, batch, (2, 1), t, s, 64)
    dims = check_qkv(q, k, v)
    o, lse = torch.zeros_like(q), torch.full(q.shape[:3], -math.inf, device="cuda")
    grads = hopper_backward.hopper_bwd(
        q, k, v, o, lse, do, None, dims, offset=s - t, causal=True, window=None, scale=0.125
    )
    for x, y in zip(grads, (q, k, v), strict=True):
        assert x.shape == y.shape
        assert (x == 0).all()


def test_more_heads_than_a_grid_axis_holds():
    check(*draw(17, 1, (65537, 65537), 1, 17, 64))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "head", "row"])
def test_offsets_beyond_32_bits(axis):
    inputs = list(draw(18, 2, (2, 2), 77, 77, 64))
    strides = list(inputs[0].stride())
    strides[axis] = 2**31 // (inputs[0].shape[axis] - 1) // 16 * 16 + 16 * inputs[0].numel()
    reach = 1 + sum((n - 1) * a for n, a in zip(inputs[0].shape, strides, strict=True))
    far = [
        torch.zeros(reach, dtype=x.dtype, device="cuda").as_strided(x.shape, strides).copy_(x)
        for x in inputs
    ]
    check(*far)


def test_captured_in_a_graph_on_another_stream():
    q, k, v, do = draw(19, 1, (2, 1), 301, 301, 128)
    want = differentiate(q, k, v, do)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            got = differentiate(q, k, v, do)
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[2], want[2])
    assert (got[0].float() - want[0].float()).abs().max() <= 2e-2 * want[0].abs().max()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu():
    check(*(x.to("cuda:1") for x in draw(20, 1, (2, 1), 301, 301, 64)))
