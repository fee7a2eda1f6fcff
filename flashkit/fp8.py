"""Attention on 8-bit numbers: round q, k and v block by block, then the FP8 tensor cores.

e4m3 keeps 4 significant bits, so a number is off by up to 1 part in 16. Two things make that
bearable: a scale for each block of rows, so that an outlier spoils its own block and no other, and
a rotation of q and k alike, which spreads an outlier over all columns and leaves q k^T as it was.
Source: Shah et al., FlashAttention-3 (2024), section 3.3.
"""

import functools
import importlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import (
    KERNEL_DTYPES,
    Dims,
    check_kernel_inputs,
    check_offset,
    check_positive,
    check_scale,
    check_tensor,
    require,
)

BLOCK = 128  # rows of q, k and v that share a scale in fp8_attention
LARGEST = 448.0  # of e4m3
TINIEST = 2.0**-100  # so that a block of zeros has a scale to divide by


def quantize(x: Tensor, block: int | None = None) -> tuple[Tensor, Tensor]:
    """x (..., N, D) as e4m3 of the same shape, and scales (..., blocks) float32.

    Each `block` rows are divided by their own scale, their largest magnitude / 448; None: one
    scale for all of x. What is not finite becomes NaN and leaves its block's scale alone.
    """
    check_positive("block", block)
    require(x.ndim >= 2 and x.numel() > 0, f"x must be (..., N, D), not empty, got {(*x.shape,)}")
    x = x.float()
    finite = x.isfinite()
    tops = torch.where(finite, x.abs(), 0.0).amax(-1)
    width = block or x.shape[-2]
    tops = F.pad(tops, (0, -x.shape[-2] % width)).unflatten(-1, (-1, width))
    tops = tops.amax(-1) if block else tops.amax(-1).amax().expand(*x.shape[:-2], 1)
    scales = tops.clamp(min=TINIEST) / LARGEST
    y = torch.where(finite, x * _of_rows(1.0 / scales, x, block), math.nan)
    return y.to(torch.float8_e4m3fn), scales


def dequantize(y: Tensor, scales: Tensor, block: int | None = None) -> Tensor:
    """The float32 numbers that y and scales, made by `quantize` with the same block, stand for."""
    return y.float() * _of_rows(scales, y, block)


def _of_rows(scales: Tensor, x: Tensor, block: int | None) -> Tensor:
    """The scale of each row of x (..., N, D), as (..., N, 1)."""
    return scales.repeat_interleave(block or x.shape[-2], -1)[..., : x.shape[-2], None]


def hadamard(x: Tensor, signs: Tensor) -> Tensor:
    """x (..., D) diag(signs) H / sqrt(D): a rotation, so dot products of rows stay as they are.

    D is a power of two and signs (D,) are 1 or -1. H is Hadamard's matrix of 1 and -1, applied by
    log2 D rounds of sums and differences.
    """
    d = x.shape[-1]
    require(d & (d - 1) == 0 and d > 0, f"D must be a power of two, got {d}")
    require(signs.shape == (d,), f"signs must have shape ({d},), got {tuple(signs.shape)}")
    y = x * signs.to(x)
    half = 1
    while half < d:
        a, b = y.unflatten(-1, (-1, 2, half)).unbind(-2)
        y = torch.stack((a + b, a - b), -2).flatten(-3)
        half *= 2
    return y * d**-0.5


def random_signs(d: int) -> Tensor:
    """d signs, 1 or -1, the same in every run, float32."""
    generator = torch.Generator().manual_seed(d)
    return torch.randint(2, (d,), generator=generator) * 2.0 - 1.0


def fp8_attention(
    q: Tensor, k: Tensor, v: Tensor, query_offset: int | None = None, *, causal: bool = True,
    window: int | None = None, scale: float | None = None, rotate: bool = True,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """As `flash_attention`, with both products on FP8 tensor cores: faster, and less exact.

    q (B, Hq, T, D) and k, v (B, Hkv, S, D), of any strides, in float32, float16 or bfloat16; o has
    their dtype. Blocks of 128 rows are rounded to e4m3, q and k after a rotation if `rotate`. For
    GPUs of compute capability 9.0 (Hopper), and the interpreter; ValueError elsewhere.
    What a mask hides matters in one way: a large hidden value coarsens the scale of its block.
    NaN and infinity do not, and rows that meet them are computed from q, k and v as they are.
    """
    dims = _checked(q, k, v, query_offset, window, scale)
    options = {"offset": dims.s - dims.t if query_offset is None else query_offset}
    options |= {"causal": causal, "window": window}
    options["scale"] = 1.0 / math.sqrt(dims.d) if scale is None else float(scale)
    with torch.cuda.device_of(q):
        o, lse = _attend(q, k, v, dims, rotate, options)
    return (o, lse) if return_lse else o


def _checked(q, k, v, query_offset, window, scale) -> Dims:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError(
            "fp8_attention has no backward pass, for no gradient fits into 8 bits: use "
            "flash_attention, or call this under torch.no_grad()"
        )
    check_offset(0 if query_offset is None else query_offset)
    check_positive("window", window)
    check_scale(scale)
    wanted = "fp8_attention rounds to 8 bits by itself: it takes 16 or 32, got"
    require(q.dtype in KERNEL_DTYPES, f"{wanted} {q.dtype}")
    dims = check_kernel_inputs(q, k, v)
    check_hopper(q)
    return dims


def check_hopper(x: Tensor) -> None:
    """Check that x lies on a GPU that the FP8 kernel is written for, or that it is interpreted."""
    if runtime.interpreting():
        return
    capability = torch.cuda.get_device_capability(x.device)
    require(
        capability == (9, 0),
        "fp8_attention needs a GPU of compute capability 9.0 (Hopper: H100, H200), whose "
        "tensor cores multiply FP8 and whose shared memory holds its tiles, got "
        f"{capability[0]}.{capability[1]}: use flash_attention",
    )


def _attend(q, k, v, dims: Dims, rotate, options: dict) -> tuple[Tensor, Tensor]:
    if q.numel() == 0 or dims.s == 0:
        return q.new_zeros(q.shape), q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
    if options["scale"] < 0:  # the largest score times a negative scale would be the smallest
        q, options["scale"] = -q, -options["scale"]
    kernels = importlib.import_module("flashkit.kernels.fp8")
    return kernels.fp8_fwd(q, k, v, round_inputs(q, k, v, rotate), dims, **options)


def round_inputs(q: Tensor, k: Tensor, v: Tensor, rotate: bool):
    """q, k and v as the kernels take them: see `kernels.quantize.Quantized`.

    D is padded to a power of two, at least 64; then q and k are rotated.
    """
    kernels = importlib.import_module("flashkit.kernels.quantize")
    block_d = max(64, 1 << (q.shape[3] - 1).bit_length())
    if rotate and q.dtype == torch.float32:  # a matmul of true float32 would cost more than it
        signs = random_signs(block_d)
        q, k = (hadamard(F.pad(x, (0, block_d - x.shape[3])), signs) for x in (q, k))
        rotate = False
    rotation = _rotation(block_d, q.dtype, q.device) if rotate else None
    return kernels.quantize_inputs(q, k, v, block_d, rotation)


@functools.cache
def _rotation(d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """diag(signs) H (d, d): 1 and -1, exact in any dtype."""
    return (hadamard(torch.eye(d), random_signs(d)) * d**0.5).round().to(device, dtype)
