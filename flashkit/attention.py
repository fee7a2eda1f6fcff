"""The public call for many queries: check what is given, choose tile sizes, launch.

It takes q (B, Hq, T, D) and k, v (B, Hkv, S, D) of any strides, Hq a multiple of Hkv, D from 16
to 256, in float32 (true float32), float16 or, on a GPU, bfloat16. It returns o in q's shape and
dtype and, if asked for, lse (B, Hq, T) float32, natural log. A row that sees no key gives 0 and
-inf; a row that sees a value that is not finite gives NaN. It raises ValueError for other inputs
and NotImplementedError for inputs that need a gradient.
"""

import math

import torch
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import (
    Dims,
    check_block,
    check_kernel_inputs,
    check_no_gradient,
    check_offset,
    check_positive,
)


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, query_offset: int | None = None, *, causal: bool = True,
    window: int | None = None, scale: float | None = None, return_lse: bool = False,
    block_m: int | None = None, block_n: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(scale q k^T) v in one Triton kernel, without ever storing the scores.

    Query row i stands at position query_offset + i, by default S - T + i: one kernel serves full
    prefill, chunked prefill and decode. It sees the keys at or before its position (all if not
    causal), with a window only those after position - window. scale defaults to 1 / sqrt(D);
    block_m and block_n, powers of two >= 16, are the tile of queries and of keys.
    Source: Dao et al., FlashAttention (2022); Dao, FlashAttention-2 (2023).
    """
    dims = _checked(q, k, v, window)
    offset = dims.s - dims.t if query_offset is None else query_offset
    check_offset(offset)
    default_m, default_n = _tile_sizes(dims, q.dtype)
    block_m = check_block("block_m", default_m if block_m is None else block_m)
    block_n = check_block("block_n", default_n if block_n is None else block_n)
    from flashkit.kernels.forward import flash_fwd

    o, lse = flash_fwd(
        q, k, v, dims, offset=offset, causal=causal, window=window, scale=_scale(scale, dims),
        block_m=block_m, block_n=block_n,
    )  # fmt: skip
    return (o, lse) if return_lse else o


def _checked(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Dims:
    dims = check_kernel_inputs(q, k, v)
    check_positive("window", window)
    check_no_gradient(q, k, v)
    return dims


def _scale(scale: float | None, dims: Dims) -> float:
    return 1.0 / math.sqrt(dims.d) if scale is None else scale


def _tile_sizes(dims: Dims, dtype: torch.dtype) -> tuple[int, int]:
    """Tiles that fit on-chip memory; few queries take a small one, as in decode."""
    if runtime.interpreting() or dtype == torch.float32:
        block_m, block_n = 32, 32
    else:
        block_m, block_n = (128, 64) if dims.d <= 128 else (128, 32)
    return (16 if dims.t <= 16 else block_m), block_n
