"""What the functions of this package accept; everything else is a ValueError that says so.

Each check names what must hold and what was given, before any work is done.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit import runtime

KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)  # read by the tuned forward alone
MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256


class Dims(NamedTuple):
    """The sizes of one attention problem: q (B, Hq, T, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv)."""

    batch: int
    q_heads: int
    kv_heads: int
    t: int
    s: int
    d: int
    value_dim: int

    @property
    def group(self) -> int:
        """Query heads per KV head; query head h reads KV head h // group."""
        return self.q_heads // self.kv_heads


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> Dims:
    """Check shapes, dtypes and devices of q (B, Hq, T, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv).

    Every call of a kernel comes by here, so a message is written only when it is needed.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
        if x.dtype != q.dtype:
            raise ValueError(f"{name} must have q's dtype {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {x.device}")
    batch, q_heads, t, d = q.shape
    k_batch, kv_heads, s, k_dim = k.shape
    if k_batch != batch or k_dim != d:
        wanted = f"({batch}, Hkv, S, {d})"
        raise ValueError(f"k must have shape (B, Hkv, S, D) = {wanted}, got {tuple(k.shape)}")
    if v.shape[:3] != k.shape[:3]:
        wanted = f"({batch}, {kv_heads}, {s}, Dv)"
        raise ValueError(f"v must have shape (B, Hkv, S, Dv) = {wanted}, got {tuple(v.shape)}")
    if kv_heads == 0 or q_heads % kv_heads:
        raise ValueError(
            f"query heads must be a multiple of KV heads, got Hq = {q_heads}, Hkv = {kv_heads}"
        )
    return Dims(batch, q_heads, kv_heads, t, s, d, v.shape[3])


def check_tensor(name: str, x: Tensor) -> None:
    """Check one of q, k, v by itself: a floating point tensor of 4 dimensions."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.ndim != 4:
        raise ValueError(f"{name} must have 4 dimensions (B, H, T, D), got {tuple(x.shape)}")
    if not x.dtype.is_floating_point:
        raise ValueError(f"{name} must be a floating point tensor, got {x.dtype}")


def check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Check that a tensor has this very shape."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(x.shape)}")


def check_positive(name: str, value: int | None) -> None:
    """Check a tile, window or number of splits: an integer of at least 1, or None where unset."""
    if value is None:
        return
    is_int = isinstance(value, int) and not isinstance(value, bool)
    require(is_int and value >= 1, f"{name} must be an integer >= 1, got {value!r}")


def check_offset(query_offset: int) -> None:
    """Check the position of query row 0: any integer."""
    is_int = isinstance(query_offset, int) and not isinstance(query_offset, bool)
    require(is_int, f"query_offset must be an integer, got {query_offset!r}")


def check_scale(scale: float | None) -> None:
    """Check what scores are multiplied by: a finite number of either sign, or None where unset."""
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    ok = scale is None or (is_number and math.isfinite(scale))
    require(ok, f"scale must be a finite number, got {scale!r}")


def check_block(name: str, value: int) -> int:
    """The tile size of a kernel: tl.dot needs at least 16, tl.arange a power of two."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    ok = is_int and value >= 16 and value & (value - 1) == 0
    require(ok, f"{name} must be a power of two >= 16, got {value!r}")
    return value


def check_kernel_inputs(q: Tensor, k: Tensor, v: Tensor) -> Dims:
    """Check what only the kernels ask for: D from 16 to 256, Dv = D, dtype, a place to run."""
    dims = check_qkv(q, k, v)
    if not MIN_HEAD_DIM <= dims.d <= MAX_HEAD_DIM:
        raise ValueError(f"head dim D must be from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}, got {dims.d}")
    if dims.value_dim != dims.d:
        raise ValueError(
            f"the kernels need v's head dim to be q's: {dims.d}, got {dims.value_dim}"
        )
    if q.dtype not in KERNEL_DTYPES + FP8_DTYPES:
        raise ValueError(
            f"the kernels take float32, float16 or bfloat16, got {q.dtype}; "
            "online_attention takes float64"
        )
    check_runnable(q)
    return dims


def output_dtype(dtype: torch.dtype) -> torch.dtype:
    """What o comes in: the inputs' dtype; float16 for FP8, whose values it holds exactly."""
    return torch.float16 if dtype in FP8_DTYPES else dtype


def check_no_gradient(*tensors: Tensor) -> None:
    """Refuse tensors that autograd would have to follow: decoding has no backward pass."""
    if _followed(tensors):
        raise NotImplementedError(
            "decoding has no backward pass: use online_attention or flash_attention, which "
            "autograd can differentiate, or call this under torch.no_grad()"
        )


def check_differentiable(*tensors: Tensor) -> None:
    """Refuse FP8 tensors that autograd would have to follow: no gradient fits into 8 bits."""
    if tensors[0].dtype in FP8_DTYPES and _followed(tensors):
        raise NotImplementedError(
            f"there is no backward pass for {tensors[0].dtype}: convert to float16 or bfloat16, "
            "or call this under torch.no_grad()"
        )


def _followed(tensors: tuple[Tensor, ...]) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def check_runnable(x: Tensor) -> None:
    """Check that a kernel can run where x is, in the mode that was chosen at import."""
    if not runtime.has_triton():
        raise ImportError(
            "the kernels need the package triton, which is not installed here (there is none for "
            "macOS): online_attention gives the same result in PyTorch"
        )
    if runtime.interpreting():
        require(
            x.dtype != torch.bfloat16,
            "bfloat16 gives wrong numbers in Triton's interpreter: use float16 or float32 there, "
            "or a GPU",
        )
    elif not x.is_cuda:
        raise ValueError(
            f"a compiled kernel needs tensors on a GPU, got {x.device}: move them with .cuda(), "
            "or set TRITON_INTERPRET=1 before flashkit is imported (restart first)"
        )
