"""Who is timed: our backends and the peers, each a name, a maker of calls and its options.

A maker gets the shape and the options and returns a function from Inputs to o, or to dq, dk and dv
on the backward path. What it cannot do it says by an exception, then or at the first call;
`reason` turns that into the row's note.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashkit
from flashkit.bench.shapes import Shape


class Inputs(NamedTuple):
    """q, k, v of a shape; on the paged path the same k and v also as (pages, page, Hkv, D), on the
    backward path the gradient of o."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_pages: Tensor | None = None
    v_pages: Tensor | None = None
    table: Tensor | None = None  # (B, pages of a sequence) int32
    lengths: Tensor | None = None  # (B,) int32
    do: Tensor | None = None


Result = Tensor | tuple[Tensor, ...]
Call = Callable[[Inputs], Result]


def outputs(result: Result) -> tuple[Tensor, ...]:
    """The tensors that a call returned, one or several."""
    return result if isinstance(result, tuple) else (result,)


class NotServed(Exception):
    """What an implementation does not do, in a few words."""


@dataclass(frozen=True)
class Implementation:
    """One contestant: `make(shape, **options)` gives the call."""

    name: str
    make: Callable[..., Call]
    options: Mapping = field(default_factory=dict)
    ours: bool = False
    compiles: bool = True  # and keeps on disk what it compiled

    def call(self, shape: Shape) -> Call:
        """The function that is timed on this shape; raises what `reason` reads."""
        return self.make(shape, **self.options)


def _flash(shape: Shape, **options) -> Call:
    mask = {"causal": shape.causal, "window": shape.window}
    return lambda x: flashkit.flash_attention(x.q, x.k, x.v, **mask, **options)


def decode_call(shape: Shape, **options) -> Call:
    return lambda x: flashkit.flash_decode(x.q, x.k, x.v, **options)


def _paged(shape: Shape, **options) -> Call:
    return lambda x: flashkit.paged_decode(
        x.q, x.k_pages, x.v_pages, x.table, x.lengths, **options
    )


def _sdpa(shape: Shape, *, backend: SDPBackend) -> Call:
    """PyTorch's attention with its backend pinned. One query, the newest, sees every key."""
    if shape.window:
        raise NotServed("SDPA has no window")
    grouped = shape.q_heads != shape.kv_heads
    options = {"is_causal": shape.causal and shape.t > 1, "enable_gqa": grouped}

    def call(x: Inputs) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(x.q, x.k, x.v, **options)

    return call


def _flex(shape: Shape) -> Call:
    """FlexAttention, compiled for this one shape, with the block mask made outside the clock."""
    from torch.nn.attention import flex_attention as flex

    torch._dynamo.reset()  # else the ninth shape would silently run uncompiled
    mask = None
    if shape.t > 1 and (shape.causal or shape.window):
        mask = flex.create_block_mask(_seen(shape.window), None, None, shape.t, shape.s, "cuda")
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    grouped = shape.q_heads != shape.kv_heads
    return lambda x: compiled(x.q, x.k, x.v, block_mask=mask, enable_gqa=grouped)


def _seen(window: int | None) -> Callable:
    def causal(b, h, i, j):
        return i >= j

    def windowed(b, h, i, j):
        return (i >= j) & (i - j < window)

    return windowed if window else causal


def _xformers(shape: Shape) -> Call:
    ops = importlib.import_module("xformers.ops")  # a peer where it is there, no dependency
    if shape.window or shape.q_heads != shape.kv_heads:
        raise NotServed("timed without window and grouped heads only")
    bias = ops.LowerTriangularMask() if shape.causal and shape.t > 1 else None

    def call(x: Inputs) -> Tensor:
        q, k, v = (y.transpose(1, 2) for y in (x.q, x.k, x.v))
        return ops.memory_efficient_attention(q, k, v, attn_bias=bias).transpose(1, 2)

    return call


def _ours(name: str, make: Callable[..., Call] = _flash, **options) -> Implementation:
    return Implementation(name, make, options, ours=True)


def _pinned(name: str, backend: SDPBackend) -> Implementation:
    return Implementation(name, _sdpa, {"backend": backend}, compiles=False)


CUDNN = _pinned("cudnn", SDPBackend.CUDNN_ATTENTION)
FLASH = _pinned("flash", SDPBackend.FLASH_ATTENTION)
EFFICIENT = _pinned("efficient", SDPBackend.EFFICIENT_ATTENTION)
FLEX = Implementation("flex", _flex)
XFORMERS = Implementation("xformers", _xformers, compiles=False)

CHAPTER = _ours("teaching 32x32", backend="teaching", block_m=32, block_n=32)
TEACHING = _ours("teaching 128x64", backend="teaching", block_m=128, block_n=64)
TRITON = _ours("triton", backend="triton")
HOPPER = _ours("hopper", backend="hopper")
AUTO = _ours("auto")  # what a call without a backend gets
DECODE_TEACHING = _ours("teaching", decode_call, backend="teaching")
DECODE = _ours("triton", decode_call, backend="triton")
CONTIGUOUS = _ours("contiguous", decode_call, backend="triton")  # what the pages are compared with
PAGED = _ours("paged", _paged)


REFUSALS = (NotServed, ValueError, TypeError, AttributeError, NotImplementedError)


def reason(error: Exception) -> str:
    """Why an implementation gave no time, in one line of at most 160 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, torch.cuda.OutOfMemoryError):
        text = "out of memory"
    elif isinstance(error, ImportError):
        text = f"not installed: {text}"
    elif isinstance(error, REFUSALS) or "No available kernel" in text:
        text = f"not served: {text}"
    else:
        text = f"failed: {type(error).__name__}: {text}"
    return text[:160]
