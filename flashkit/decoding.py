"""The public calls for one new query per sequence: check, choose the splits, launch.

flash_decode takes q (B, Hq, 1, D) and k, v (B, Hkv, S, D) of any strides, Hq a multiple of Hkv, D
from 16 to 256, in float32 (true float32), float16 or, on a GPU, bfloat16. It returns o in q's
shape and dtype and, if asked for, lse (B, Hq, 1) float32, natural log. A sequence that sees no key
gives 0 and -inf; one that sees a value that is not finite gives NaN. It raises ValueError for
other inputs and NotImplementedError for inputs that need a gradient.
"""

import math

import torch
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import (
    Dims,
    check_kernel_inputs,
    check_no_gradient,
    check_positive,
    require,
)
from flashkit.cost import DEVICES, decode_splits


def flash_decode(
    q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, window: int | None = None,
    num_splits: int | None = None, return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of one query per sequence, T = 1, over a long KV cache split over programs.

    Sequence b holds lengths[b] keys, integers (B,) from 0 to S, by default S; its query is the
    newest of them, and what the cache holds beyond is never read. num_splits defaults to what
    fills the GPU. Source: Dao et al., Flash-Decoding for long-context inference (2023).
    """
    dims = check_kernel_inputs(q, k, v)
    check_positive("window", window)
    check_no_gradient(q, k, v)
    require(dims.t == 1, f"q must have shape (B, Hq, 1, D), got {tuple(q.shape)}")
    check_positive("num_splits", num_splits)
    lengths = _checked_lengths(lengths, dims, q.device)
    from flashkit.kernels.decode import decode_merge_fwd, decode_split_fwd

    block_n = 64 if dims.d <= 128 else 32
    if num_splits is None:
        num_splits = decode_splits(dims.batch, dims.kv_heads, dims.s, _multiprocessors(), block_n)
    partial = decode_split_fwd(
        q, k, v, lengths, dims,
        window=window, num_splits=num_splits, scale=1.0 / math.sqrt(dims.d), block_n=block_n,
    )  # fmt: skip
    o, lse = decode_merge_fwd(*partial, q.dtype)
    return (o, lse) if return_lse else o


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


def _multiprocessors() -> int:
    if runtime.device() == "cpu":
        return DEVICES["laptop"].sms
    return torch.cuda.get_device_properties().multi_processor_count
