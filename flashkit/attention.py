"""The public calls on the kernels: check what is given, choose tile sizes and splits, launch.

Both take q (B, Hq, T, D) and k, v (B, Hkv, S, D) of any strides, Hq a multiple of Hkv, D from 16
to 256, in float32 (true float32), float16 or, on a GPU, bfloat16. Both return o in q's shape and
dtype and, if asked for, lse (B, Hq, T) float32, natural log. A row that sees no key gives 0 and
-inf; a row that sees a value that is not finite gives NaN. They raise ValueError for other inputs
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
    check_offset,
    check_positive,
    require,
)
from flashkit.cost import DEVICES, decode_splits


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


def flash_decode(
    q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, window: int | None = None,
    num_splits: int | None = None, return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of one query per sequence, T = 1, over a long KV cache split over programs.

    Sequence b holds lengths[b] keys, integers (B,) from 0 to S, by default S; its query is the
    newest of them, and what the cache holds beyond is never read. num_splits defaults to what
    fills the GPU. Source: Dao et al., Flash-Decoding for long-context inference (2023).
    """
    dims = _checked(q, k, v, window)
    require(dims.t == 1, f"q must have shape (B, Hq, 1, D), got {tuple(q.shape)}")
    check_positive("num_splits", num_splits)
    lengths = _checked_lengths(lengths, dims, q.device)
    from flashkit.kernels.decode import decode_merge_fwd, decode_split_fwd

    block_n = 64 if dims.d <= 128 else 32
    if num_splits is None:
        num_splits = decode_splits(dims.batch, dims.kv_heads, dims.s, _multiprocessors(), block_n)
    partial = decode_split_fwd(
        q, k, v, lengths, dims,
        window=window, num_splits=num_splits, scale=_scale(None, dims), block_n=block_n,
    )  # fmt: skip
    o, lse = decode_merge_fwd(*partial, q.dtype)
    return (o, lse) if return_lse else o


def _checked(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Dims:
    dims = check_kernel_inputs(q, k, v)
    check_positive("window", window)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError(
            "the Triton kernels have no backward pass yet: use online_attention, which autograd "
            "can differentiate, or call this under torch.no_grad()"
        )
    return dims


def _checked_lengths(lengths: Tensor | None, dims: Dims, device: torch.device) -> Tensor:
    if lengths is None:
        return torch.full((dims.batch,), dims.s, dtype=torch.int32, device=device)
    lengths = torch.as_tensor(lengths, device=device)
    require(
        lengths.shape == (dims.batch,) and lengths.dtype in (torch.int32, torch.int64),
        f"lengths must be int32 or int64 of shape ({dims.batch},), "
        f"got {lengths.dtype} {tuple(lengths.shape)}",
    )
    require(
        bool(((lengths >= 0) & (lengths <= dims.s)).all()),
        f"lengths must be from 0 to S = {dims.s}, got {lengths.tolist()}",
    )
    return lengths.contiguous()


def _scale(scale: float | None, dims: Dims) -> float:
    return 1.0 / math.sqrt(dims.d) if scale is None else scale


def _tile_sizes(dims: Dims, dtype: torch.dtype) -> tuple[int, int]:
    """Tiles that fit on-chip memory; few queries take a small one, as in decode."""
    if runtime.interpreting() or dtype == torch.float32:
        block_m, block_n = 32, 32
    else:
        block_m, block_n = (128, 64) if dims.d <= 128 else (128, 32)
    return (16 if dims.t <= 16 else block_m), block_n


def _multiprocessors() -> int:
    if runtime.device() == "cpu":
        return DEVICES["laptop"].sms
    return torch.cuda.get_device_properties().multi_processor_count
