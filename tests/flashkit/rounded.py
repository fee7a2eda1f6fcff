"""What the FP8 kernels may err: float64 attention on the rounded inputs, and a bound around it."""

import math

import oracle
import torch
import torch.nn.functional as F

from flashkit import fp8


def inputs(q, k, v, rotate: bool):
    """q, k, v as the kernels round them, float32; D of q and k padded, q scaled accordingly."""
    d = q.shape[-1]
    block_d = max(64, 1 << (d - 1).bit_length())
    q, k = (F.pad(x.float(), (0, block_d - d)) for x in (q, k))
    if rotate:
        q, k = (fp8.hadamard(x, fp8.random_signs(block_d)) for x in (q, k))
    q, k, v = (fp8.dequantize(*fp8.quantize(x, fp8.BLOCK), fp8.BLOCK) for x in (q, k, v))
    return q * math.sqrt(block_d / d), k, v


def check(o, lse, q, k, v, offset=None, *, rotate=True, **mask) -> None:
    """Weights are off by at most 1 part in 16 each, and like independent noise on the whole.

    The first bounds each element of o by the sum of |weight * value|, the second the norm.
    """
    q8, k8, v8 = inputs(q, k, v, rotate)
    want, want_lse = oracle.exact(q8, k8, v8, offset, **mask)
    sizes, _ = oracle.exact(q8, k8, v8.abs(), offset, **mask)
    assert o.isfinite().all()
    bound = (2**-4 + 2**-9 + torch.finfo(o.dtype).eps) * sizes + 1e-6
    excess = ((o.double() - want).abs() - bound).max()
    assert excess <= 0, f"an element is {excess:.2e} beyond its bound"
    error = (o.double() - want).norm() / want.norm().clamp(min=1e-30)
    assert error <= 0.04, f"relative error {error:.3f}"
    oracle.assert_same(lse, want_lse.cpu(), 4e-3)
