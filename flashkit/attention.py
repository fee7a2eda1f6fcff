"""The public call for many queries: check what is given, choose the kernel, launch it.

It takes q (B, Hq, T, D) and k, v (B, Hkv, S, D) of any strides, Hq a multiple of Hkv, D from 16
to 256, in float32 (true float32), float16 or, on a GPU, bfloat16. On a GPU that has it also FP8,
e4m3 or e5m2: such a tensor carries no scale of its own, so put those of q and k into `scale` and
multiply o by that of v. It returns o in q's shape and dtype (float16 for FP8), contiguous, and, if
asked for, lse (B, Hq, T) float32, natural log. A row that sees no key gives 0 and -inf. What a
mask hides never matters, even NaN; a row that sees a value that is not finite gives NaN or an
infinity. It raises ValueError for other inputs.

Both o and lse can be differentiated, once: backward computes the weights again from q, k and lse,
so that of the forward pass only q, k, v, o and lse are kept. A row that sees no key has the
gradient 0. Inside autocast q, k and v are cast first, as scaled_dot_product_attention does.
NotImplementedError: a gradient of FP8 inputs, or a second derivative.

Underneath lie the operators flashkit::flash_fwd and flash_bwd, so torch.compile sees one node each
and their shapes.
"""

import contextlib
import importlib
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, library

from flashkit import runtime
from flashkit.contracts import (
    FP8_DTYPES,
    Dims,
    check_block,
    check_differentiable,
    check_kernel_inputs,
    check_offset,
    check_positive,
    check_qkv,
    check_scale,
    check_tensor,
    output_dtype,
)


class Backward(NamedTuple):
    """Where a backward pass is launched from, and whether it is split in two: dq; dk with dv.

    Then its bits repeat, and where only one half is needed the other is left out.
    """

    module: str
    launcher: str
    split: bool


class Backend(NamedTuple):
    """Where a kernel is launched from, whether the caller may choose its tiles, its gradients."""

    module: str
    launcher: str
    takes_tiles: bool
    backwards: tuple[Backward, ...]  # the first that serves the inputs is taken


# Imported at the first use: flashkit itself must import where there is no Triton.
TAUGHT = Backward("flashkit.kernels.backward", "flash_bwd", True)
TUNED = Backward("flashkit.kernels.backward_tuned", "tuned_bwd", True)
FUSED = Backward("flashkit.kernels.hopper_backward", "hopper_bwd", False)
BACKENDS = {
    "teaching": Backend("flashkit.kernels.forward", "flash_fwd", True, (TAUGHT,)),
    "triton": Backend("flashkit.kernels.forward_tuned", "tuned_fwd", True, (TUNED,)),
    "hopper": Backend("flashkit.kernels.hopper", "hopper_fwd", False, (FUSED, TUNED)),
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
    check_differentiable(q, k, v)
    check_offset(q.shape[2] if query_offset is None else query_offset)
    check_positive("window", window)
    check_scale(scale)
    for name, block in (("block_m", block_m), ("block_n", block_n)):
        if block is not None:
            check_block(name, block)
    q, k, v = as_autocast_wants(q, k, v)
    o, lse = torch.ops.flashkit.flash_fwd(
        q, k, v, query_offset, causal, window, scale, block_m, block_n, backend
    )
    return (o, lse) if return_lse else o


library.define(
    "flashkit::flash_fwd",
    "(Tensor q, Tensor k, Tensor v, SymInt? query_offset, bool causal, SymInt? window, "
    "float? scale, SymInt? block_m, SymInt? block_n, str backend) -> (Tensor, Tensor)",
)
library.define(
    "flashkit::flash_bwd",
    "(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, Tensor? dlse, "
    "SymInt? query_offset, bool causal, SymInt? window, float? scale, str backend, "
    "bool[2] needs) -> (Tensor, Tensor, Tensor)",
)


@library.impl("flashkit::flash_fwd", "default")
def _flash_fwd(q, k, v, query_offset, causal, window, scale, block_m, block_n, backend):
    dims = check_kernel_inputs(q, k, v)
    tiles = {"block_m": block_m, "block_n": block_n} if block_m or block_n else {}
    options = _mask_and_scale(dims, causal, window, scale)
    launch = _launcher(backend, q, k, v, dims, options, tiles)
    options["offset"] = dims.s - dims.t if query_offset is None else query_offset
    given = f"block_m = {block_m}, block_n = {block_n}" if tiles else "the tiles of its config"
    with _launching(q, given):
        return launch(q, k, v, dims, **options, **tiles)


@library.impl("flashkit::flash_bwd", "default")
def _flash_bwd(q, k, v, o, lse, do, dlse, query_offset, causal, window, scale, backend, needs):
    dims = check_kernel_inputs(q, k, v)
    options = _mask_and_scale(dims, causal, window, scale)
    launch = _backward_launcher(backend, q, k, v, dims, options, not all(needs))
    options["offset"] = dims.s - dims.t if query_offset is None else query_offset
    if not all(needs):
        options["needs"] = needs
    with _launching(q, "the tiles of the backward pass"):
        return launch(q, k, v, o, lse, do, dlse, dims, **options)


@library.register_fake("flashkit::flash_fwd")
def _flash_fwd_shapes(q, k, v, *options):
    check_qkv(q, k, v)
    o = q.new_empty(q.shape, dtype=output_dtype(q.dtype))
    return o, q.new_empty(q.shape[:3], dtype=torch.float32)


@library.register_fake("flashkit::flash_bwd")
def _flash_bwd_shapes(q, k, v, *others):
    need_dq, need_dkv = others[-1]
    needs = zip((q, k, v), (need_dq, need_dkv, need_dkv), strict=True)
    return tuple(x.new_empty(x.shape if need else 0) for x, need in needs)


def _save(ctx, inputs, output):
    q, k, v, *options, _block_m, _block_n, backend = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.options = *options, backend
    ctx.set_materialize_grads(False)  # lse is seldom used, and then dlse is None


def _differentiate(ctx, do, dlse):
    q, k, v, o, lse = ctx.saved_tensors
    do = o.new_zeros(()).expand(o.shape) if do is None else do
    need_q, *need_kv = ctx.needs_input_grad[:3]
    gradients = torch.ops.flashkit.flash_bwd(
        q, k, v, o, lse, do, dlse, *ctx.options, (need_q, any(need_kv))
    )
    wanted = zip(gradients, (need_q, *need_kv), strict=True)
    return *(x if need else None for x, need in wanted), *[None] * 7


def _differentiate_twice(ctx, *gradients):
    raise NotImplementedError(
        "flash_attention can be differentiated once only: for a second derivative use "
        "online_attention"
    )


library.register_autograd("flashkit::flash_fwd", _differentiate, setup_context=_save)
library.register_autograd("flashkit::flash_bwd", _differentiate_twice)


def as_autocast_wants(*tensors: Tensor) -> list[Tensor]:
    """The tensors in autocast's dtype where that is on; float64 and FP8 stay what they are."""
    device = tensors[0].device.type
    # The kernels run on these two. To ask torch which devices have autocast would break a graph.
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype, kept = torch.get_autocast_dtype(device), (torch.float64, *FP8_DTYPES)
    return [x if x.dtype in kept else x.to(dtype) for x in tensors]


def _mask_and_scale(dims: Dims, causal: bool, window: int | None, scale: float | None) -> dict:
    scale = 1.0 / math.sqrt(dims.d) if scale is None else float(scale)
    return {"causal": causal, "window": window, "scale": scale}


@contextlib.contextmanager
def _launching(q: Tensor, tiles: str):
    """Triton launches on the current device, wherever q is; tiles too large are a ValueError."""
    try:
        with torch.cuda.device_of(q):
            yield
    except importlib.import_module("flashkit.kernels").OutOfResources as error:
        raise ValueError(f"{tiles} do not fit this GPU at D = {q.shape[3]}: {error}") from None


def _candidates(backend: str) -> tuple[str, ...]:
    """The backends that may serve, the one to be preferred first."""
    if backend == "auto":
        return "teaching" if runtime.interpreting() else "hopper", "triton"
    if backend not in BACKENDS:
        names = ", ".join(["auto", *BACKENDS])
        raise ValueError(f"backend must be one of {names}, got {backend!r}")
    return (backend,)


def _launcher(backend: str, q, k, v, dims: Dims, options: dict, tiles: dict) -> Callable:
    """The launcher that is asked for, or the first that serves the inputs; else ValueError."""
    for name in _candidates(backend):
        module = importlib.import_module(BACKENDS[name].module)
        if tiles and not BACKENDS[name].takes_tiles:
            reason = "it chooses its own tiles, so leave out block_m and block_n"
        else:
            reason = module.serves(q, k, v, dims, **options)
        if not reason:
            return getattr(module, BACKENDS[name].launcher)
    raise ValueError(f"backend {name!r} does not serve these inputs: {reason}")


def _backward_launcher(backend: str, q, k, v, dims: Dims, options: dict, half: bool) -> Callable:
    """The backend's first backward that serves: a split one for half or for bits that repeat."""
    split = half or torch.are_deterministic_algorithms_enabled()
    for kernel in BACKENDS[_candidates(backend)[0]].backwards:
        module = importlib.import_module(kernel.module)
        reason = module.serves(q, k, v, dims, **options)
        if not reason and (kernel.split or not split):
            return getattr(module, kernel.launcher)
    raise ValueError(f"no backward pass serves these inputs: {reason}")
