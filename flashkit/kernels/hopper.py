"""The forward for Hopper GPUs, in the manner of FlashAttention-3: warps with different jobs."""

import functools
import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashkit import runtime
from flashkit.contracts import Dims
from flashkit.kernels.hopper_consumer import attend_role
from flashkit.kernels.hopper_producer import ROWS, load_role


@gluon.jit
def ring(LENGTH: gl.constexpr, READERS: gl.constexpr):
    """The barriers of a ring of LENGTH tiles: full, which the producer arms; empty."""
    full = gl.allocate_shared_memory(gl.int64, [LENGTH, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [LENGTH, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(LENGTH):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=READERS)
    return full, empty


@gluon.jit(do_not_specialize=["diagonal", "left", "section"])
def _hopper_fwd_kernel(
    q_desc, k_desc, v_desc, o_desc, q_ptr, k_ptr, v_ptr, lse_ptr, diagonal, left, section, scale2,
    CONSUMERS: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, OVERLAP: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Some items, each CONSUMERS * 64 query rows of one head, against every key that they see.

    Grid      (any number of workers,), at most one item each or many in turn: see work_of
    Reads     by TMA through descriptors (B, H, rows, D), which end where a head ends
    Writes    o (B, Hq, T, D) by TMA; lse (B, Hq, T) float32, natural log, contiguous
    Masks     row i sees key j iff j <= diagonal + i (CAUSAL) and j >= left + i (WINDOW)
    """
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, 1, 1, ROWS, D], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], v_desc.layout)
    o_tiles = q_tiles
    if D < 256:
        o_tiles = gl.allocate_shared_memory(q_desc.dtype, q_tiles.shape, q_desc.layout)
    q_bars = ring(CONSUMERS, 1)
    k_bars = ring(STAGES, CONSUMERS)
    v_bars = ring(STAGES, CONSUMERS)
    fence_async_shared()
    T = q_desc.shape[2]
    blocks = (T + CONSUMERS * ROWS - 1) // (CONSUMERS * ROWS)
    heads = q_desc.shape[0] * q_desc.shape[1]
    problem = (T, k_desc.shape[2], blocks, heads, section, diagonal, left)
    shared = (problem, q_tiles, k_tiles, v_tiles, o_tiles, q_bars, k_bars, v_bars)
    source = (q_desc, k_desc, v_desc)
    target = (q_desc, k_desc, v_desc, o_desc, q_ptr, k_ptr, v_ptr, lse_ptr, scale2)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (attend_role, (target, shared, 0, CONSUMERS, D, BLOCK_N, STAGES, OVERLAP,
                           CAUSAL, WINDOW)),
            (attend_role, (target, shared, 1, CONSUMERS, D, BLOCK_N, STAGES, OVERLAP,
                           CAUSAL, WINDOW)),
            (load_role, (source, shared, CONSUMERS, BLOCK_N, STAGES, CAUSAL, WINDOW)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend_role, (target, shared, 0, CONSUMERS, D, BLOCK_N, STAGES, OVERLAP,
                           CAUSAL, WINDOW)),
            (attend_role, (target, shared, 1, CONSUMERS, D, BLOCK_N, STAGES, OVERLAP,
                           CAUSAL, WINDOW)),
            (attend_role, (target, shared, 2, CONSUMERS, D, BLOCK_N, STAGES, OVERLAP,
                           CAUSAL, WINDOW)),
            (load_role, (source, shared, CONSUMERS, BLOCK_N, STAGES, CAUSAL, WINDOW)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip


class Config(NamedTuple):
    """How one head dim is cut up: consumers of 64 rows, keys a tile, tiles a ring, registers."""

    consumers: int
    block_n: int
    stages: int
    registers: int
    overlap: bool = True  # False only to show what it is worth: softmax waits for every matmul


# Measured on one H200 on 2026-11-29 (torch 2.11.0+cu130, triton 3.6.0, bfloat16, CUDA graphs) as
# a ratio to SDPA-cuDNN in the same run; docs/hopper.md has the table. At D 64 two consumers reach
# 0.9 of three; at D 128 three with tiles of 64 keys 0.9 of two; three tiles a ring change nothing.
CONFIGS = {64: Config(3, 128, 2, 160), 128: Config(2, 128, 2, 240), 256: Config(2, 64, 2, 240)}


SHORT = Config(2, 128, 2, 240)  # of blocks of 192 rows, few fit a short triangle


def configure(dims: Dims, causal: bool) -> Config:
    """The measured configuration of a problem."""
    return SHORT if dims.d == 64 and causal and dims.t <= 2048 else CONFIGS[dims.d]


class Schedule(NamedTuple):
    """Who does what when: programs, and heads whose row blocks alternate, see `work_of`."""

    workers: int
    section: int


def schedule(dims: Dims, causal: bool, multiprocessors: int) -> Schedule:
    """One program for each multiprocessor, each with many items if there are as many.

    Causal items differ in length. Long rows come from all heads first, so that the sums even out;
    where all are short, at D 64 from as many heads as have 32 MB of keys and values, else from 1.
    """
    heads = dims.batch * dims.q_heads
    if not causal:
        section = 1
    elif dims.t > 4096:
        section = heads
    else:
        section = dims.group * (2**25 // (4 * dims.s * dims.d)) if dims.d == 64 else 1
    return Schedule(multiprocessors, min(max(section, 1), heads))


class Descriptor(TensorDescriptor):
    """A TMA descriptor of a tensor that `serves` has checked already: 1 us to make, not 5."""

    def __post_init__(self) -> None: ...


@functools.cache
def _layout(rows: int, d: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, d], kind)


def descriptor(x: Tensor, rows: int) -> Descriptor:
    """What the copy engine needs to fetch or store `rows` rows of one head of x (B, H, N, D)."""
    b, h, n, d = x.shape
    stride_b, stride_h, stride_n, _ = x.stride()
    # the stride of an axis of length 1 is never used, and may be one that the engine refuses
    strides = (d if b == 1 else stride_b, d if h == 1 else stride_h, d if n == 1 else stride_n, 1)
    return Descriptor(x, x.shape, strides, [1, 1, rows, d], _layout(rows, d, x.dtype))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    compiled = device.type == "cuda" and not runtime.interpreting()
    return torch.cuda.get_device_capability(device) if compiled else (0, 0)


def serves(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, *, causal: bool, window: int | None, scale: float
) -> str:
    """Why the Hopper kernel does not take these checked inputs, or "" if it does.

    It takes any lengths, offset, mask and group. Inputs of other strides would have to be copied.
    """
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"the Hopper kernel takes bfloat16 and float16, got {q.dtype}"
    if dims.d not in CONFIGS:
        return f"the Hopper kernel takes head dims {', '.join(map(str, CONFIGS))}, got {dims.d}"
    if not 0 < scale < math.inf:
        return f"the Hopper kernel takes a finite scale above 0, got {scale}"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not fetchable(x):
            return (
                f"the copy engine takes inner stride 1, other strides that are multiples of 8 and "
                f"above 0, and a start at a multiple of 16 bytes, got {name} with strides "
                f"{x.stride()} at {x.data_ptr()}"
            )
    if _capability(q.device) != (9, 0):
        return f"the Hopper kernel needs a GPU of compute capability 9.0, got {q.device}"
    return ""


def fetchable(x: Tensor) -> bool:
    """Whether the copy engine can address x, 2 bytes an element."""
    *outer, inner = x.stride()
    for n, stride in zip(x.shape, outer, strict=False):
        if n > 1 and (stride <= 0 or stride % 8 or stride >= 2**39):
            return False
    return inner == 1 and x.data_ptr() % 16 == 0


def hopper_fwd(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, *, offset: int, causal: bool,
    window: int | None, scale: float, config: Config | None = None, plan: Schedule | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the Hopper forward on checked inputs for which `serves` gives "".

    Returns o (B, Hq, T, D) in q's dtype and lse (B, Hq, T) float32; see `attention`. config and
    plan replace what was measured to be best.
    """
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return o, lse
    if dims.s == 0:
        return o.zero_(), lse.fill_(-math.inf)
    config = configure(dims, causal) if config is None else config
    plan = schedule(dims, causal, _multiprocessors(q.device)) if plan is None else plan
    if q.get_device() == torch.cuda.current_device():
        _launch(q, k, v, o, lse, dims, config, plan, offset, causal, window, scale)
    else:
        with torch.cuda.device(q.device):
            _launch(q, k, v, o, lse, dims, config, plan, offset, causal, window, scale)
    return o, lse


def constants(config: Config, d: int, causal: bool, window: bool) -> dict[str, int]:
    """What the kernel is compiled for, in the order of its parameters."""
    return {
        "CONSUMERS": config.consumers, "D": d, "BLOCK_N": config.block_n, "STAGES": config.stages,
        "REGISTERS": config.registers, "OVERLAP": config.overlap,
        "CAUSAL": causal, "WINDOW": window,
    }  # fmt: skip


_COMPILED = {}  # launched directly, for no argument is specialised on: a fifth of the host's time


def _launch(q, k, v, o, lse, dims, config, plan, offset, causal, window, scale) -> None:
    items = triton.cdiv(dims.t, config.consumers * 64) * dims.batch * dims.q_heads
    # positions beyond what any key reaches are as good as at the edge, where 32 bits hold them
    diagonal = min(max(offset, -dims.t), dims.s)
    left = 0 if window is None else min(max(offset - window + 1, -dims.t), dims.s)
    arguments = (
        descriptor(q, 64), descriptor(k, config.block_n), descriptor(v, config.block_n),
        descriptor(o, 64), q, k, v, lse, diagonal, left, plan.section, scale * math.log2(math.e),
    )  # fmt: skip
    grid = (min(plan.workers, items), 1, 1)
    key = (q.device, q.dtype, dims.d, config, causal, window is None)
    constant = constants(config, dims.d, causal, window is not None)
    if key in _COMPILED:
        _COMPILED[key][grid](*arguments, *constant.values())
    else:
        _COMPILED[key] = _hopper_fwd_kernel[grid](*arguments, **constant, num_warps=4)
