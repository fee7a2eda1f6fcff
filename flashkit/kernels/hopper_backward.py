"""The backward for Hopper GPUs in one piece: five products, dq added up by the memory system."""

import functools
import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from flashkit.contracts import Dims
from flashkit.kernels import hopper
from flashkit.kernels.backward import careful_bwd
from flashkit.kernels.delta import row_terms
from flashkit.kernels.hopper_backward_consumer import gradients_role
from flashkit.kernels.hopper_backward_dq import finish_dq
from flashkit.kernels.hopper_backward_producer import KEYS, load_role


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers, each of which lets through after ARRIVALS."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.jit(do_not_specialize=["padded", "section", "diagonal", "left"])
def _hopper_bwd_kernel(
    q_desc, k_desc, v_desc, do_desc, delta_desc, lse_desc, dk_desc, dv_desc, sum_ptr, flag_ptr,
    padded, section, diagonal, left, scale, scale2,
    D: gl.constexpr, BLOCK_M: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, OVERLAP: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """128 keys of one KV head against every row of its group of heads that sees them.

    Grid      (cdiv(S, 128) * B * Hkv,)
    Reads     q, k, v, do by TMA through descriptors (B, H, rows, D), which end where a head ends;
              lse (base 2, +inf where a row is none or blind) and delta, each head padded
    Writes    dk, dv (B, Hkv, S, D) by TMA
    Adds      to sum: dq / scale in float32, each head padded, in the order of `add_dq`
    Sets      flag, int32, to 1 if any of dk, dv is not finite
    Masks     row i sees key j iff j <= diagonal + i (CAUSAL) and j >= left + i (WINDOW)
    """
    DTYPE: gl.constexpr = q_desc.dtype
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, BLOCK_M], DTYPE)
    k_tiles = gl.allocate_shared_memory(DTYPE, [2, 1, 1, KEYS, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(DTYPE, [2, 1, 1, KEYS, D], v_desc.layout)
    q_tiles = gl.allocate_shared_memory(DTYPE, [Q_STAGES, 1, 1, BLOCK_M, D], q_desc.layout)
    do_tiles = gl.allocate_shared_memory(DTYPE, [DO_STAGES, 1, 1, BLOCK_M, D], do_desc.layout)
    lse_rows = gl.allocate_shared_memory(gl.float32, [Q_STAGES, BLOCK_M], lse_desc.layout)
    delta_rows = gl.allocate_shared_memory(gl.float32, [DO_STAGES, BLOCK_M], delta_desc.layout)
    ds_tiles = gl.allocate_shared_memory(DTYPE, [4, KEYS, BLOCK_M], DS_LAYOUT)
    kv_full = barriers(2, 1)
    q_full = barriers(Q_STAGES, 1)
    q_empty = barriers(Q_STAGES, 2)
    do_full = barriers(DO_STAGES, 1)
    do_empty = barriers(DO_STAGES, 2)
    ds_full = barriers(2, 2)  # each consumer writes a half of ds, and reads all
    ds_empty = barriers(2, 2)
    fence_async_shared()
    group = q_desc.shape[1] // k_desc.shape[1]
    heads = k_desc.shape[0] * k_desc.shape[1]
    problem = (q_desc.shape[2], k_desc.shape[2], padded, group, heads, section, diagonal, left)
    q_ring = (q_tiles, lse_rows, q_full, q_empty)
    do_ring = (do_tiles, delta_rows, do_full, do_empty)
    ds_ring = (ds_tiles, ds_full, ds_empty)
    shared = (problem, k_tiles, v_tiles, q_ring, do_ring, ds_ring, kv_full)
    source = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    target = (dk_desc, dv_desc, sum_ptr, flag_ptr, scale, scale2)
    gl.warp_specialize([
        (gradients_role, (target, shared, 0, D, BLOCK_M, Q_STAGES, DO_STAGES, OVERLAP,
                          CAUSAL, WINDOW)),
        (gradients_role, (target, shared, 1, D, BLOCK_M, Q_STAGES, DO_STAGES, OVERLAP,
                          CAUSAL, WINDOW)),
        (load_role, (source, shared, BLOCK_M, Q_STAGES, DO_STAGES, CAUSAL, WINDOW)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip


class Config(NamedTuple):
    """How one head dim is cut up: rows a tile, tiles in the rings of q and of do, registers."""

    block_m: int
    q_stages: int
    do_stages: int
    registers: int = 240
    overlap: bool = True  # False only to show what it is worth: exp2 and ds wait for every matmul


CONFIGS = {64: Config(128, 2, 2), 128: Config(64, 3, 2)}
SECTION = 4  # heads whose blocks of keys are at work together: see `block_of`


def constants(config: Config, d: int, causal: bool, window: bool) -> dict[str, int]:
    """What the kernel is compiled for."""
    return {
        "D": d, "BLOCK_M": config.block_m, "Q_STAGES": config.q_stages,
        "DO_STAGES": config.do_stages, "REGISTERS": config.registers, "OVERLAP": config.overlap,
        "CAUSAL": causal, "WINDOW": window,
    }  # fmt: skip


def serves(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, *, causal: bool, window: int | None, scale: float
) -> str:
    """Why the Hopper backward does not take these checked inputs, or "" if it does.

    It takes what the Hopper forward takes, but for head dim 256, and any do.
    """
    if dims.d not in CONFIGS:
        return f"the Hopper backward takes head dims 64, 128, got {dims.d}"
    return hopper.serves(q, k, v, dims, causal=causal, window=window, scale=scale)


def hopper_bwd(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, dlse: Tensor | None,
    dims: Dims, *, offset: int, causal: bool, window: int | None, scale: float,
    config: Config | None = None, section: int = SECTION,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients dq, dk, dv of checked inputs for which `serves` gives "", like q, k, v.

    o and lse are what the forward returned, do (B, Hq, T, D) and dlse (B, Hq, T) or None the
    gradients of both, of any strides. dk and dv are the same bits each time, dq need not be: the
    order in which its parts are added is not. A row that sees no key has gradient 0; what a mask
    hides never matters, even NaN: where a gradient is not finite, the split kernels do it again.
    """
    grads = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if q.numel() == 0 or k.numel() == 0:
        return tuple(x.zero_() for x in grads)
    if not hopper.fetchable(do):
        do = do.clone(memory_format=torch.contiguous_format)
    if window is not None and window >= offset + dims.t:
        window = None  # the last row sees the first key
    config = CONFIGS[dims.d] if config is None else config
    options = {"offset": offset, "causal": causal, "window": window, "scale": float(scale)}
    if q.get_device() == torch.cuda.current_device():
        _launch((q, k, v, do), (o, lse, dlse), grads, dims, config, section, **options)
    else:
        with torch.cuda.device(q.device):
            _launch((q, k, v, do), (o, lse, dlse), grads, dims, config, section, **options)
    return grads


_COMPILED = {}  # launched directly, as the forward is


def _launch(
    inputs, forward, grads, dims, config, section, *, offset, causal, window, scale
) -> None:
    o, lse, dlse = forward
    terms = row_terms(o, lse, inputs[3], dlse, dims)
    padded = terms[0].shape[2]
    count = dims.batch * dims.q_heads * padded * dims.d
    zeros = torch.zeros(count + 4, dtype=torch.float32, device=o.device)
    sums, flag = zeros[:count], zeros[count:].view(torch.int32)
    # positions beyond what any key reaches are as good as at the edge, where 32 bits hold them
    diagonal = min(max(offset, -dims.t), dims.s)
    left = 0 if window is None else min(max(offset - window + 1, -dims.t), dims.s)
    arguments = (
        *_descriptors(inputs, terms, grads, config), sums, flag,
        padded, section, diagonal, left, scale, scale * math.log2(math.e),
    )  # fmt: skip
    grid = (triton.cdiv(dims.s, 128) * dims.batch * dims.kv_heads, 1, 1)
    key = (o.device, o.dtype, dims.d, config, causal, window is None)
    constant = constants(config, dims.d, causal, window is not None)
    if key in _COMPILED:
        _COMPILED[key][grid](*arguments, *constant.values())
    else:
        _COMPILED[key] = _hopper_bwd_kernel[grid](*arguments, **constant, num_warps=4)
    finish_dq(sums, grads[0], flag, padded, dims, scale)
    careful_bwd(
        *inputs, terms, grads, dims,
        offset=offset, causal=causal, window=window, scale=scale, only_if=flag,
    )  # fmt: skip


def _descriptors(inputs, terms, grads, config: Config) -> tuple:
    """Of q, k, v, do; of delta and lse, (B, Hq, padded) as one line; of dk and dv."""
    rows = config.block_m
    boxes = (rows, KEYS.value, KEYS.value, rows)
    line = _line_layout()
    return (
        *(hopper.descriptor(x, n) for x, n in zip(inputs, boxes, strict=True)),
        *(hopper.Descriptor(x, [x.numel()], [1], [rows], line) for x in terms),
        *(hopper.descriptor(x, KEYS.value) for x in grads[1:]),
    )


@functools.cache
def _line_layout() -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
