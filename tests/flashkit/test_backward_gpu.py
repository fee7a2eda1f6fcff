"""The backward kernels compiled: what only a GPU can show of them.

T and S odd, S - T a multiple of 16, one window: so many cases share one compilation.
"""

import math

import oracle
import pytest
import torch

from flashkit.contracts import check_kernel_inputs
from flashkit.kernels.backward import flash_bwd
from flashkit.kernels.backward_config import Config, Configs
from flashkit.kernels.backward_tuned import tuned_bwd
from flashkit.kernels.forward_tuned import tuned_fwd

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
WINDOW = 100
# float32 takes a minute to compile for each head dim, so it goes without some.
HEAD_DIMS = {
    torch.float32: [16, 80, 256],
    torch.float16: [40, 128, 192],
    torch.bfloat16: [16, 40, 64, 80, 128, 256],
}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def each_form(dims):
    """A test for each dtype and each of its head dims."""
    forms = [(dtype, d) for dtype, ds in dims.items() for d in ds]
    ids = [f"{str(dtype)[6:]}-{d}" for dtype, d in forms]
    return pytest.mark.parametrize(("dtype", "d"), forms, ids=ids)


@pytest.fixture(params=["teaching", "tuned"])
def bwd(request, monkeypatch):
    """Both pairs of kernels; what they leave unwritten shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)
    return flash_bwd if request.param == "teaching" else tuned_bwd


def draw(seed, heads, t, s, d, dtype, batch=1):
    """q, k, v and do."""
    q, k, v = oracle.draw(seed, batch, heads, t, s, d, dtype)
    return q, k, v, oracle.draw(seed + 1000, batch, heads, t, s, d, dtype)[0]


def gradients(bwd, q, k, v, do, offset=None, *, dlse=None, **options):
    dims = check_kernel_inputs(q, k, v)
    options = {"causal": True, "window": None, "scale": dims.d**-0.5} | options
    options["offset"] = dims.s - dims.t if offset is None else offset
    o, lse = tuned_fwd(q, k, v, dims, **options)
    return bwd(q, k, v, o, lse, do, dlse, dims, **options)


def check(bwd, q, k, v, do, offset=None, **options):
    got = gradients(bwd, q, k, v, do, offset, **options)
    oracle.assert_gradients(got, oracle.gradients(q, k, v, do, offset, **options))


@each_form(HEAD_DIMS)
def test_head_dims(bwd, dtype, d):
    """Whole and chunked, ragged, groups of 3 and 8, for each head dim."""
    for heads, t in (((6, 2), 301), ((8, 1), 301), ((6, 2), 77)):
        check(bwd, *draw(0, heads, t, 301, d, dtype, batch=2))


@each_form({torch.float32: [64], torch.float16: [80], torch.bfloat16: [64, 128]})
def test_masks(bwd, dtype, d):
    """Not causal, a window, both; more queries than keys; offsets that no tile divides."""
    check(bwd, *draw(1, (2, 1), 301, 301, d, dtype), causal=False)
    for causal in (True, False):
        check(bwd, *draw(2, (2, 1), 301, 301, d, dtype), causal=causal, window=WINDOW)
    check(bwd, *draw(3, (2, 2), 301, 77, d, dtype))
    for offset in (-40, 5, 77, 400):
        check(bwd, *draw(4, (1, 1), 301, 301, d, dtype), offset)
        check(bwd, *draw(4, (1, 1), 301, 301, d, dtype), offset, window=WINDOW)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("d", [64, 128])
def test_lengths(bwd, length, d):
    for t, s in ((length, length), (length, 129), (129, length)):
        for causal in (True, False):
            check(bwd, *draw(5, (2, 1), t, s, d, torch.float16), causal=causal)


@each_dtype
def test_any_strides(bwd, dtype):
    """Slices of one projection, a transposed do, and that of o.sum()."""
    qkv = oracle.draw(6, 2, (65, 65), 3, 3, 6 * 64, dtype)[0].view(2, 65, 3, 6, 64)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    want = draw(7, (6, 6), 65, 65, 64, dtype, batch=2)[3]
    for do in (want, want.transpose(2, 3).contiguous().transpose(2, 3), want[:1, :1, :1, :1]):
        do = do.expand(q.shape)
        check(bwd, q, k, v, do, dlse=do[..., 0].float())


@each_dtype
def test_what_is_hidden_never_matters(bwd, dtype):
    """NaN in keys beyond the last row, in rows before the first key; inf in what one row holds."""
    q, k, v, do = draw(8, (2, 1), 100, 200, 64, dtype)
    want = oracle.gradients(q, k, v, do, 50)
    k[:, :, 150:], v[:, :, 150:] = math.nan, math.inf
    oracle.assert_gradients(gradients(bwd, q, k, v, do, 50), want)
    q, k, v, do = draw(9, (2, 1), 200, 100, 64, dtype)
    want = oracle.gradients(q, k, v, do)
    q[:, :, :100], do[:, :, :100] = math.nan, math.inf
    got = gradients(bwd, q, k, v, do)
    oracle.assert_gradients(got, want)
    assert (got[0][:, :, :100] == 0).all()


@each_dtype
def test_a_very_negative_lse_beside_a_short_last_tile(bwd, dtype):
    q, k, v, do = draw(10, (1, 1), 129, 129, 64, dtype)
    for causal in (True, False):
        check(bwd, -4 * q.abs(), 4 * k.abs(), v, do, causal=causal)


def test_five_runs_give_the_same_bits(bwd):
    inputs = draw(11, (8, 2), 1025, 1025, 128, torch.bfloat16, batch=2)
    first = gradients(bwd, *inputs)
    for _ in range(4):
        assert all(map(torch.equal, first, gradients(bwd, *inputs)))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_a_long_group(bwd, d, causal):
    """64 query heads on 8 KV heads, against the kernels of float32 inputs' worth in float64."""
    check(bwd, *draw(12, (64, 8), 1024, 1024, d, torch.bfloat16), causal=causal)


def test_without_descriptors_and_with_masks_everywhere(monkeypatch):
    oracle.poison_new_tensors(monkeypatch)
    plain = Config(64, 64, 4, 2, tma=False, split_masks=False)
    config = Configs(plain, plain)
    for options in ({}, {"window": WINDOW}, {"causal": False}):
        check(
            lambda *args, **kwargs: tuned_bwd(*args, **kwargs, config=config),
            *draw(13, (2, 1), 301, 301, 128, torch.bfloat16), **options,
        )  # fmt: skip


def test_more_programs_than_a_second_axis_holds(bwd):
    check(bwd, *draw(14, (8, 8), 2, 2, 16, torch.float16, batch=8200))


def test_a_head_beyond_31_bits(bwd):
    """A view whose second head begins 2^31 elements in."""
    room = torch.empty(2**31 + 2**16, dtype=torch.float16, device="cuda")
    small = draw(15, (2, 2), 65, 65, 64, torch.float16)
    far = [room.as_strided(x.shape, (0, 2**31, 64, 1), n * 2**14) for n, x in enumerate(small)]
    for x, y in zip(far, small, strict=True):
        x.copy_(y)
    oracle.assert_gradients(gradients(bwd, *far), oracle.gradients(*small))
