"""The public call for many queries: check what is given, choose the kernel, launch it.

It takes q (B, Hq, T, D) and k, v (B, Hkv, S, D) of any strides, Hq a multiple of Hkv, D from 16
to 256, in float32 (true float32), float16 or, on a GPU, bfloat16. On a GPU that has it also FP8,
e4m3 or e5m2: such a tensor carries no scale of its own, so put those of q and k into `scale` and
multiply o by that of v. It returns o in q's shape and dtype (float16 for FP8), contiguous, and, if
asked for, lse (B, Hq, T) float32, natural log. A row that sees no key gives 0 and -inf. What a
mask hides never matters, even NaN; a row that sees a value that is not finite gives NaN or an
infinity. It raises ValueError for other inputs and NotImplementedError for inputs that need a
gradient.

Underneath lies the operator flashkit::flash_fwd, so torch.compile sees one node and its shapes.
"""

import importlib
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, library

from flashkit import runtime
from flashkit.contracts import (
    Dims,
    check_block,
    check_kernel_inputs,
    check_no_gradient,
    check_offset,
    check_positive,
    check_qkv,
    check_scale,
    check_tensor,
    output_dtype,
)


class Backend(NamedTuple):
    """Where a kernel is launched from, and whether the caller may choose its tiles."""

    module: str
    launcher: str
    takes_tiles: bool


# Imported at the first use: flashkit itself must import where there is no Triton.
BACKENDS = {
    "teaching": Backend("flashkit.kernels.forward", "flash_fwd", True),
    "triton": Backend("flashkit.kernels.forward_tuned", "tuned_fwd", True),
    "hopper": Backend("flashkit.kernels.hopper", "hopper_fwd", False),
}


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, query_offset: int | None = None, *, causal: bool = True,
    window: int | None = None, scale: float | None = None, return_lse: bool = False,
    block_m: int | None = None, block_n: int | None = None, backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(scale q k^T) v in one kernel, without ever storing the scores.

    Query row i stands at position query_offset + i, by default S - T + i: one kernel serves full
    prefill, chunked prefill and decode. It sees the keys at or before its position (all if not
    causal), with a window only those after position - window. scale, any finite number, defaults
    to 1 / sqrt(D); block_m and block_n, powers of two >= 16, are the tile of queries and of keys.
    backend is "teaching" (the chapter's kernel), "triton" (the same, tuned), "hopper" (Gluon, for
    sm_90) or "auto": the first of hopper and triton that serves the inputs, the teaching one in
    the interpreter.
    Source: Dao et al., FlashAttention (2022); Dao, FlashAttention-2 (2023).
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    check_no_gradient(q, k, v)
    check_offset(q.shape[2] if query_offset is None else query_offset)
    check_positive("window", window)
    check_scale(scale)
    for name, block in (("block_m", block_m), ("block_n", block_n)):
        if block is not None:
            check_block(name, block)
    o, lse = torch.ops.flashkit.flash_fwd(
        q, k, v, query_offset, causal, window, scale, block_m, block_n, backend
    )
    return (o, lse) if return_lse else o


library.define(
    "flashkit::flash_fwd",
    "(Tensor q, Tensor k, Tensor v, SymInt? query_offset, bool causal, SymInt? window, "
    "float? scale, SymInt? block_m, SymInt? block_n, str backend) -> (Tensor, Tensor)",
)


@library.impl("flashkit::flash_fwd", "default")
def _flash_fwd(q, k, v, query_offset, causal, window, scale, block_m, block_n, backend):
    dims = check_kernel_inputs(q, k, v)
    tiles = {"block_m": block_m, "block_n": block_n} if block_m or block_n else {}
    options = {"causal": causal, "window": window}
    options["scale"] = 1.0 / math.sqrt(dims.d) if scale is None else float(scale)
    launch = _launcher(backend, q, k, v, dims, options, tiles)
    options["offset"] = dims.s - dims.t if query_offset is None else query_offset
    try:
        with torch.cuda.device_of(q):  # Triton launches on the current device, wherever q is
            return launch(q, k, v, dims, **options, **tiles)
    except importlib.import_module("flashkit.kernels").OutOfResources as error:
        given = f"block_m = {block_m}, block_n = {block_n}" if tiles else "the tiles of its config"
        raise ValueError(f"{given} do not fit this GPU at D = {dims.d}: {error}") from None


@library.register_fake("flashkit::flash_fwd")
def _flash_fwd_shapes(q, k, v, *options):
    check_qkv(q, k, v)
    o = q.new_empty(q.shape, dtype=output_dtype(q.dtype))
    return o, q.new_empty(q.shape[:3], dtype=torch.float32)


def _launcher(backend: str, q, k, v, dims: Dims, options: dict, tiles: dict) -> Callable:
    """The launcher that is asked for, or the first that serves the inputs; else ValueError."""
    if backend != "auto" and backend not in BACKENDS:
        names = ", ".join(["auto", *BACKENDS])
        raise ValueError(f"backend must be one of {names}, got {backend!r}")
    auto = ("teaching" if runtime.interpreting() else "hopper", "triton")
    for name in auto if backend == "auto" else (backend,):
        module = importlib.import_module(BACKENDS[name].module)
        if tiles and not BACKENDS[name].takes_tiles:
            reason = "it chooses its own tiles, so leave out block_m and block_n"
        else:
            reason = module.serves(q, k, v, dims, **options)
        if not reason:
            return getattr(module, BACKENDS[name].launcher)
    raise ValueError(f"backend {name!r} does not serve these inputs: {reason}")
