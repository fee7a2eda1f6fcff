"""Round a tensor to 8 bits, block by block, and lay it out as the FP8 tensor cores read it.

PyTorch twins of both functions: `fp8.quantize` and `fp8.hadamard`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit import runtime
from flashkit.kernels.primitives import load_tile

BLOCK = 128  # rows that share a scale
LARGEST = tl.constexpr(448.0)  # of e4m3
TINIEST = tl.constexpr(2.0**-100)  # so that a block of zeros has a scale to divide by
INTERPRETED = tl.constexpr(runtime.interpreting())


@triton.jit
def e4m3(x):
    """float32 x rounded to e4m3, and above 448 to 448: one instruction on a GPU.

    The interpreter's cast forgets carries (124 becomes 64) and NaN. There float16, which holds
    every number of e4m3, carries what arithmetic has rounded: to 4 bits, or below 2^-6 to 2^-9.
    """
    if INTERPRETED:
        high = x * (2.0**20 + 1)
        y = tl.where(tl.abs(x) < 2.0**-6, x + 1.5 * 2.0**14 - 1.5 * 2.0**14, high - (high - x))
        y = tl.where(y > LARGEST, LARGEST, y).to(tl.float16)
    else:
        y = x.to(tl.float8e4nv)
    return y


@triton.jit
def key_at(place):
    """The key that lies at a place among keys next to one another; within 16: bits cdab -> abcd.

    A thread holds scores of the keys 2c, 2c + 1, 2c + 8, 2c + 9 when q k^T is done, and is asked
    for weights at the places 4c .. 4c + 3 when p v begins. A sum does not mind the order of its
    keys: so V is stored in this one, and no weight has to move between threads.
    """
    return place // 16 * 16 + place % 4 // 2 * 8 + place % 16 // 4 * 2 + place % 2


@triton.jit(do_not_specialize=["N", "heads"])
def _quantize_kernel(
    x_ptr, rotation_ptr, y_ptr, scales_ptr, stride_xb, stride_xh, stride_xn, stride_xd,
    N, heads, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
    ROTATE: tl.constexpr, ADJACENT: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK rows of one head, with one scale.

    Grid      (cdiv(N, BLOCK) * B * H,)
    Writes    scales (B, H, blocks) float32 and y in e4m3: (B, H, N, BLOCK_D), or, with ADJACENT,
              (B, H, BLOCK_D, blocks * BLOCK) with the keys of each row in the order of `key_at`
    """
    blocks = tl.cdiv(N, BLOCK)
    block = tl.program_id(0) % blocks
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    places = tl.arange(0, BLOCK)
    rows = (block * BLOCK + (key_at(places) if ADJACENT else places)).to(tl.int64)
    cols = tl.arange(0, BLOCK_D)
    x_ptr += bh // heads * stride_xb + bh % heads * stride_xh
    x = load_tile(x_ptr, rows, cols, stride_xn, stride_xd, N, D)
    if ROTATE:
        signs = tl.load(rotation_ptr + cols[:, None] * BLOCK_D + cols[None, :])
        x = tl.dot(x, signs) * (1.0 / BLOCK_D**0.5)
    x = x.to(tl.float32)
    # One value that is not finite must not cost its neighbours their scale: it becomes NaN alone.
    finite = tl.abs(x) < float("inf")
    top = tl.maximum(tl.max(tl.where(finite, tl.abs(x), 0.0)), TINIEST)
    scale = tl.div_rn(top, LARGEST)
    y = e4m3(tl.where(finite, x * tl.div_rn(1.0, scale), float("nan")))
    tl.store(scales_ptr + bh * blocks + block, scale)
    if ADJACENT:
        pitch = blocks * BLOCK
        y_ptr += bh * BLOCK_D * pitch + block * BLOCK
        tl.store(y_ptr + cols[:, None] * pitch.to(tl.int64) + places[None, :], tl.trans(y))
    else:
        y_ptr += bh * N * BLOCK_D
        tl.store(y_ptr + rows[:, None] * BLOCK_D + cols[None, :], y, rows[:, None] < N)


def quantize_rows(
    x: Tensor, block_d: int, rotation: Tensor | None = None, adjacent: bool = False
) -> tuple[Tensor, Tensor]:
    """x (B, H, N, D) of any strides, N >= 1 -> e4m3 of D padded to block_d, and its scales.

    rotation (block_d, block_d) of 1 and -1, in x's dtype of 16 bits: rows are multiplied by it and
    by block_d^-1/2 first. adjacent: (B, H, block_d, keys), for V. scales: (B, H, blocks) float32.
    """
    batch, heads, n, d = x.shape
    blocks = -(-n // BLOCK)
    shape = (block_d, blocks * BLOCK) if adjacent else (n, block_d)
    dtype = torch.float16 if runtime.interpreting() else torch.float8_e4m3fn
    y = torch.empty((batch, heads, *shape), dtype=dtype, device=x.device)
    scales = torch.empty((batch, heads, blocks), dtype=torch.float32, device=x.device)
    _quantize_kernel[(blocks * batch * heads,)](
        x, x if rotation is None else rotation, y, scales, *x.stride(), n, heads,
        D=d, BLOCK=BLOCK, BLOCK_D=block_d, ROTATE=rotation is not None, ADJACENT=adjacent,
        num_warps=4 if block_d <= 128 else 8,
    )  # fmt: skip
    return y, scales


class Quantized(NamedTuple):
    """q, k and v as `quantize_rows` returns them, v with its keys adjacent: (e4m3, scales)."""

    q: tuple[Tensor, Tensor]
    k: tuple[Tensor, Tensor]
    v: tuple[Tensor, Tensor]


def quantize_inputs(
    q: Tensor, k: Tensor, v: Tensor, block_d: int, rotation: Tensor | None
) -> Quantized:
    """Round q, k, v (B, H, N, D), N >= 1, to 8 bits, D padded to block_d, q and k rotated."""
    return Quantized(
        quantize_rows(q, block_d, rotation),
        quantize_rows(k, block_d, rotation),
        quantize_rows(v, block_d, adjacent=True),
    )
