"""FP8 without a GPU: rounding and rotation against float64, the kernel in the interpreter."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import rounded
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit import fp8, runtime
from flashkit.fp8 import dequantize, fp8_attention, hadamard, quantize, random_signs

pytestmark = pytest.mark.filterwarnings("error")
triton = pytest.importorskip("triton", reason="the kernels need it")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
needs_tools = pytest.mark.skipif(
    not all((TOOLS / tool).exists() for tool in ("ptxas", "nvdisasm")),
    reason="this Triton brings no ptxas or nvdisasm",
)
interpreted = pytest.mark.skipif(not runtime.interpreting(), reason="tests the interpreter")


@pytest.fixture(autouse=True, scope="module")
def poisoned():
    """What a kernel does not write shows as NaN."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        oracle.poison_new_tensors(monkeypatch)
        yield


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- quantize ----


@given(st.integers(1, 40), st.sampled_from([1, 3, 16, 64, None]), st.integers(-90, 90))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_each_number_is_off_by_a_sixteenth_or_a_step(n, block, power):
    """Half a step of e4m3: 2^-4 of the number, or 2^-10 of the unit below its normal numbers."""
    x = draw(2, n, 5, seed=n) * 2.0**power
    y, scales = quantize(x, block)
    assert y.dtype == torch.float8_e4m3fn
    assert y.shape == x.shape
    assert scales.shape == (2, math.ceil(n / (block or n)))
    each = scales.repeat_interleave(block or n, -1)[:, :n, None]
    error = (dequantize(y, scales, block).double() - x.double()).abs()
    assert (error <= torch.maximum(x.abs() * 2**-4, each * 2**-10) * (1 + 1e-6)).all()


def test_the_largest_number_of_each_block_is_kept():
    x = draw(1, 2, 300, 16)
    x[:, :, 140] *= 1000
    y, scales = quantize(x, 128)
    for i in range(3):
        top = x[:, :, 128 * i : 128 * i + 128].abs().amax((-1, -2))
        torch.testing.assert_close(scales[:, :, i] * 448, top)
    assert y.float().abs().max() == 448
    _, whole = quantize(x)
    assert (whole == x.abs().max() / 448).all(), "one scale for the whole tensor"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_itself_alone(bad):
    x = draw(1, 20, 8)
    want = dequantize(*quantize(x, 16), 16)
    x[0, 3, 2] = bad
    y, scales = quantize(x, 16)
    got = dequantize(y, scales, 16)
    assert got[0, 3, 2].isnan()
    got[0, 3, 2] = want[0, 3, 2]
    assert torch.equal(got, want)


def test_zeros_stay_zeros():
    y, scales = quantize(torch.zeros(3, 7), 4)
    assert (scales > 0).all()
    assert (dequantize(y, scales, 4) == 0).all()


@pytest.mark.parametrize("shape", [(), (5,), (0, 4), (4, 0)])
def test_quantize_refuses_what_has_no_rows(shape):
    with pytest.raises(ValueError, match=r"x must be \(\.\.\., N, D\), not empty, got"):
        quantize(torch.zeros(shape))


@pytest.mark.parametrize("block", [0, -1, 1.5, True])
def test_quantize_refuses_such_blocks(block):
    with pytest.raises(ValueError, match="block must be an integer >= 1, got"):
        quantize(torch.zeros(4, 4), block)


# ---- rotation ----


@pytest.mark.parametrize("d", [1, 2, 16, 64, 256])
def test_the_rotation_is_orthogonal(d):
    """R R^T = 1, with entries of one size: no column keeps an outlier to itself."""
    rotation = hadamard(torch.eye(d, dtype=torch.float64), random_signs(d))
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(d, dtype=torch.float64))
    torch.testing.assert_close(rotation.abs(), torch.full_like(rotation, d**-0.5))
    q, k = draw(2, 9, d, dtype=torch.float64), draw(2, 7, d, seed=1, dtype=torch.float64)
    signs = random_signs(d)
    torch.testing.assert_close(hadamard(q, signs) @ hadamard(k, signs).mT, q @ k.mT)


def test_the_rotation_is_hadamards_matrix_by_its_definition():
    """H[i, j] = (-1)^(number of ones that i and j share)."""
    matrix = [[(-1.0) ** (i & j).bit_count() for j in range(16)] for i in range(16)]
    got = hadamard(torch.eye(16), torch.ones(16))
    torch.testing.assert_close(got * 4, torch.tensor(matrix))


def test_signs_are_the_same_in_every_run_and_mixed():
    for d in (64, 128, 256):
        assert torch.equal(random_signs(d), random_signs(d))
        assert d / 4 < (random_signs(d) > 0).sum() < 3 * d / 4
        assert (random_signs(d).abs() == 1).all()


def test_hadamard_refuses_other_sizes():
    with pytest.raises(ValueError, match="D must be a power of two, got 24"):
        hadamard(torch.zeros(3, 24), torch.ones(24))
    with pytest.raises(ValueError, match=r"signs must have shape \(16,\), got \(8,\)"):
        hadamard(torch.zeros(3, 16), torch.ones(8))


def outliers(seed):
    """The paper's test: N(0, 1), and 1 entry in 1000 with N(0, 100) on top."""
    x = draw(1, 2, 512, 64, seed=seed)
    rare = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed + 9)) < 1e-3
    return x + 10 * draw(*x.shape, seed=seed + 5) * rare


def rounding_error(q, k, v, block, rotate, rows=slice(None)):
    """Root mean square error of exact attention on rounded inputs."""
    want, _ = oracle.exact(q, k, v, causal=False)
    if rotate:
        q, k = (hadamard(x, random_signs(64)) for x in (q, k))
    q, k, v = (dequantize(*quantize(x, block), block) for x in (q, k, v))
    got, _ = oracle.exact(q, k, v, causal=False)
    return (got - want)[:, :, rows].pow(2).mean().sqrt().item()


def test_rotation_lowers_the_error_that_outliers_make():
    """And without outliers it changes nothing to speak of."""
    inputs = [outliers(seed) for seed in (1, 2, 3)]
    assert rounding_error(*inputs, 128, True) < 0.75 * rounding_error(*inputs, 128, False)
    plain = [draw(1, 2, 512, 64, seed=seed) for seed in (1, 2, 3)]
    assert 0.9 < rounding_error(*plain, 128, True) / rounding_error(*plain, 128, False) < 1.1


def test_a_scale_for_each_block_confines_an_outlier():
    """One number of 10^6 in the first block: with one scale, all other rows of q become 0."""
    q, k, v = (draw(1, 2, 512, 64, seed=seed) for seed in (1, 2, 3))
    plain = rounding_error(q, k, v, 128, False, slice(128, None))
    q[0, :, 3, 5] = 1e6
    assert rounding_error(q, k, v, None, False, slice(128, None)) > 5 * plain
    assert rounding_error(q, k, v, 128, False, slice(128, None)) == plain


# ---- the kernel, in the interpreter ----

CASES = {
    "causal": ((2, 1), 70, 150, 64, None, {}),
    "full": ((1, 1), 65, 259, 128, None, {"causal": False}),
    "window": ((2, 2), 40, 300, 40, None, {"window": 150}),
    "offset": ((1, 1), 33, 200, 16, -10, {}),
    "far offset": ((1, 1), 5, 30, 16, 10**12, {"window": 10**12}),
    "one key": ((3, 1), 3, 1, 32, None, {}),
}


@interpreted
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rotate", [True, False])
def test_against_float64_of_what_was_rounded(case, rotate):
    heads, t, s, d, offset, mask = CASES[case]
    q, k, v = oracle.draw(1, 1, heads, t, s, d)
    o, lse = fp8_attention(q, k, v, offset, rotate=rotate, return_lse=True, **mask)
    rounded.check(o, lse, q, k, v, offset, rotate=rotate, **mask)


@interpreted
@pytest.mark.parametrize("rotate", [True, False])
def test_the_kernel_rounds_as_pytorch_does(rotate):
    """In float16, which the kernel rotates by a matmul; the few ties may fall either way."""
    inputs = oracle.draw(9, 2, (2, 2), 140, 140, 64, torch.float16)
    inputs[2][0, 0, 5, 7] = math.inf
    got = rounded.inputs(*inputs, rotate)
    turned = [x.float() for x in inputs]
    if rotate:
        turned[:2] = (hadamard(x, random_signs(64)) for x in turned[:2])
    for x, y in zip(turned, got, strict=True):
        want = dequantize(*quantize(x, fp8.BLOCK), fp8.BLOCK)
        assert torch.equal(y.isnan(), want.isnan())
        assert ((y - want).abs() > 1e-6 * want.abs()).float().mean() < 1e-3


@interpreted
def test_half_precision_is_rotated_in_the_kernel():
    q, k, v = oracle.draw(2, 1, (2, 1), 20, 150, 40, torch.float16)
    o, lse = fp8_attention(q, k, v, return_lse=True)
    assert o.dtype == torch.float16
    rounded.check(o, lse, q, k, v)


@interpreted
def test_blocks_of_very_different_scales():
    """acc changes its unit from tile to tile, by 2^40 here, and loses nothing."""
    q, k, v = oracle.draw(3, 1, (1, 1), 30, 400, 16)
    v *= torch.exp2(torch.tensor([-20.0, 20.0, 3.0, -3.0])).repeat_interleave(128)[:400, None]
    for causal in (True, False):
        o, lse = fp8_attention(q, k, v, causal=causal, return_lse=True)
        rounded.check(o, lse, q, k, v, causal=causal)


@interpreted
def test_a_negative_scale_and_other_strides():
    q, k, v = (x.mT.contiguous().mT for x in oracle.draw(4, 1, (2, 1), 20, 40, 16))
    o, lse = fp8_attention(q, k, v, scale=-0.25, return_lse=True)
    rounded.check(o, lse, -q, k, v)


@interpreted
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_hidden_never_matters(bad):
    q, k, v = oracle.draw(5, 1, (1, 1), 3, 200, 16)
    want, _ = oracle.attention(q, k, v, 100, window=60)
    k[:, :, 103:] = v[:, :, 103:] = k[:, :, :41] = v[:, :, :41] = bad
    with np.errstate(invalid="ignore"):
        o = fp8_attention(q, k, v, 100, window=60)
    assert o.isfinite().all()
    assert np.linalg.norm(o.numpy() - want) <= 0.08 * np.linalg.norm(want)


@interpreted
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_seen_does_matter(bad):
    q, k, v = oracle.draw(6, 1, (1, 1), 96, 96, 16)
    v[0, 0, 70, 3] = bad
    with np.errstate(invalid="ignore"):
        o = fp8_attention(q, k, v)
    assert not o[0, 0, 70:, 3].isfinite().any()
    assert o[0, 0, :70].isfinite().all()


@interpreted
@pytest.mark.parametrize(("batch", "t", "s"), [(2, 3, 0), (2, 0, 5), (0, 3, 5)])
def test_nothing_to_do(batch, t, s):
    o, lse = fp8_attention(*oracle.draw(7, batch, (2, 1), t, s, 16), return_lse=True)
    assert o.shape == (batch, 2, t, 16)
    assert (o == 0).all()
    assert (lse == -math.inf).all()


# ---- what it refuses ----


def test_it_names_the_gpu_that_it_needs(monkeypatch):
    monkeypatch.setattr(runtime, "interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ValueError, match=r"compute capability 9\.0 \(Hopper.*got 8\.0: use flash"):
        fp8.check_hopper(torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    fp8.check_hopper(torch.zeros(1))


def refused(match, change=lambda q, k, v: (q, k, v), **options):
    inputs = change(*oracle.draw(8, 1, (2, 1), 4, 6, 16))
    with pytest.raises((ValueError, NotImplementedError), match=match):
        fp8_attention(*inputs, **options)


def test_it_refuses_by_name():
    refused(
        "fp8_attention rounds to 8 bits by itself",
        lambda *x: [y.to(torch.float8_e4m3fn) for y in x],
    )
    refused("fp8_attention rounds to 8 bits by itself", lambda *x: [y.double() for y in x])
    refused("k must have shape", lambda q, k, v: (q, k[..., :8], v))
    refused("scale must be a finite number, got inf", scale=math.inf)
    refused("window must be an integer >= 1, got 0", window=0)
    refused("query_offset must be an integer, got 1.5", query_offset=1.5)
    refused("has no backward pass", lambda q, k, v: (q.requires_grad_(), k, v))


# ---- machine code ----


def built(script: str, *arguments: str) -> dict:
    """What a script that builds for sm_90a prints; it needs no GPU, and a process of its own."""
    command = [sys.executable, Path(__file__).with_name(script), *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@needs_tools
@pytest.mark.slow
def test_machine_code_of_the_triton_kernel():
    """Both products are of FP8, none waits for the last (ptxas C75xx), nothing is spilled."""
    found = built("compile_fp8.py", "128")
    assert found["serialised"] == []
    assert found["spilled"] == 0
    assert found["fp8 products"] > 0
