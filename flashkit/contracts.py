"""What the functions of this package accept; everything else is a ValueError that says so.

Each check names what must hold and what was given, before any work is done.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from flashkit import runtime

KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
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
    """Check shapes, dtypes and devices of q (B, Hq, T, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv)."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(isinstance(x, Tensor), f"{name} must be a torch.Tensor, got {type(x).__name__}")
        require(x.ndim == 4, f"{name} must have 4 dimensions (B, H, T, D), got {tuple(x.shape)}")
        require(x.is_floating_point(), f"{name} must be a floating point tensor, got {x.dtype}")
        require(x.dtype == q.dtype, f"{name} must have q's dtype {q.dtype}, got {x.dtype}")
        require(x.device == q.device, f"{name} must be on q's device {q.device}, got {x.device}")
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    require(
        (k.shape[0], k.shape[3]) == (batch, d),
        f"k must have shape (B, Hkv, S, D) = ({batch}, Hkv, S, {d}), got {tuple(k.shape)}",
    )
    require(
        v.shape[:3] == k.shape[:3],
        f"v must have shape (B, Hkv, S, Dv) = ({batch}, {kv_heads}, {s}, Dv), "
        f"got {tuple(v.shape)}",
    )
    require(
        kv_heads > 0 and q_heads % kv_heads == 0,
        f"query heads must be a multiple of KV heads, got Hq = {q_heads}, Hkv = {kv_heads}",
    )
    return Dims(batch, q_heads, kv_heads, t, s, d, v.shape[3])


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


def check_block(name: str, value: int) -> int:
    """The tile size of a kernel: tl.dot needs at least 16, tl.arange a power of two."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    ok = is_int and value >= 16 and value & (value - 1) == 0
    require(ok, f"{name} must be a power of two >= 16, got {value!r}")
    return value


def check_kernel_inputs(q: Tensor, k: Tensor, v: Tensor) -> Dims:
    """Check what only the kernels ask for: D from 16 to 256, Dv = D, dtype, a place to run."""
    dims = check_qkv(q, k, v)
    require(
        MIN_HEAD_DIM <= dims.d <= MAX_HEAD_DIM,
        f"head dim D must be from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}, got {dims.d}",
    )
    require(
        dims.value_dim == dims.d,
        f"the kernels need v's head dim to be q's: {dims.d}, got {dims.value_dim}",
    )
    require(
        q.dtype in KERNEL_DTYPES,
        f"the kernels take float32, float16 or bfloat16, got {q.dtype}; "
        "online_attention takes float64",
    )
    check_runnable(q)
    return dims


def check_no_gradient(*tensors: Tensor) -> None:
    """Refuse tensors that autograd would have to follow: the kernels have no backward pass."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise NotImplementedError(
            "the Triton kernels have no backward pass yet: use online_attention, which autograd "
            "can differentiate, or call this under torch.no_grad()"
        )


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
    else:
        require(
            x.device.type == "cuda",
            f"a compiled kernel needs tensors on a GPU, got {x.device}: move them with .cuda(), "
            "or set TRITON_INTERPRET=1 before flashkit is imported (restart first)",
        )
