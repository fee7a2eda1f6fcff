"""What the FP8 kernels may err: float64 attention on the rounded inputs, and a bound around it."""

import math

import oracle
import torch

from flashkit import fp8


def unpack(pair, rows: int | None = None) -> torch.Tensor:
    """The numbers that e4m3 (B, H, N, D) and its scales stand for, float32.

    With rows, e4m3 is V's: (B, H, D, N') with the keys of each 16 in the order of the weights.
    """
    y, scales = pair
    if rows is not None:
        places = torch.arange(y.shape[3], device=y.device)
        keys = places // 16 * 16 + places % 4 // 2 * 8 + places % 16 // 4 * 2 + places % 2
        y = torch.empty(y.shape, device=y.device).index_copy_(3, keys, y.float()).mT[:, :, :rows]
    return fp8.dequantize(y, scales, fp8.BLOCK)


def inputs(q, k, v, rotate: bool):
    """q, k, v as the kernels round them; D of q and k may be padded, and q is scaled for that."""
    parts = fp8.round_inputs(q, k, v, rotate)
    q8, k8, v8 = unpack(parts.q), unpack(parts.k), unpack(parts.v, v.shape[2])
    return q8 * math.sqrt(q8.shape[3] / q.shape[3]), k8, v8[..., : v.shape[3]]


def check(o, lse, q, k, v, offset=None, *, rotate=True, **mask) -> None:
    """Weights are off by at most 1 part in 16 each, and like independent noise on the whole.

    The first bounds each element of o by the sum of |weight * value|, the second the norm.
    """
    q8, k8, v8 = inputs(q, k, v, rotate)
    want, want_lse = oracle.exact(q8, k8, v8, offset, **mask)
    sizes, _ = oracle.exact(q8, k8, v8.abs(), offset, **mask)
    assert o.isfinite().all()
    bound = (2**-4 + 2**-8 + torch.finfo(o.dtype).eps) * sizes + 1e-6
    excess = ((o.double() - want).abs() - bound).max()
    assert excess <= 0, f"an element is {excess:.2e} beyond its bound"
    error = (o.double() - want).norm() / want.norm().clamp(min=1e-30)
    assert error <= 0.04, f"relative error {error:.3f}"
    oracle.assert_same(lse, want_lse.cpu(), 4e-3)
