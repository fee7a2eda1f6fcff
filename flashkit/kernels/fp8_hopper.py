"""The FP8 forward for Hopper in Gluon: the roles of `hopper`, fed with 8-bit tiles and scales."""

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from flashkit import runtime
from flashkit.contracts import Dims
from flashkit.kernels import hopper
from flashkit.kernels.fp8_consumer import attend_role
from flashkit.kernels.hopper import ring
from flashkit.kernels.hopper_producer import ROWS, keys_of, work_of
from flashkit.kernels.quantize import Quantized


@gluon.jit
def load_role(
    source, shared, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """The producer, as in `hopper_producer`; V's tiles have keys along their rows."""
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    q_desc, k_desc, v_desc = source
    problem, q_tiles, k_tiles, v_tiles, _, q_bars, k_bars, v_bars = shared
    q_heads = q_desc.shape[1]
    group = q_heads // k_desc.shape[1]
    items = problem[2] * problem[3]
    n = 0
    for turn in range((items + gl.num_programs(0) - 1) // gl.num_programs(0)):
        item, head, row = work_of(turn, problem, BLOCK_M, CAUSAL)
        if item < items:
            first, tiles = keys_of(row, problem, BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
            b = head // q_heads
            h = head % q_heads
            for j in range(tiles):
                key = (first + tiles - 1 - j) * BLOCK_N
                slot = n % STAGES
                parity = (n // STAGES & 1) ^ 1
                mbarrier.wait(k_bars[1].index(slot), parity)
                mbarrier.expect(k_bars[0].index(slot), k_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    k_desc, [b, h // group, key, 0], k_bars[0].index(slot), k_tiles.index(slot)
                )
                if j == 0:
                    for c in gl.static_range(CONSUMERS):
                        mbarrier.wait(q_bars[1].index(c), (turn & 1) ^ 1)
                        mbarrier.expect(q_bars[0].index(c), q_desc.block_type.nbytes)
                        tma.async_copy_global_to_shared(
                            q_desc, [b, h, row + c * ROWS, 0], q_bars[0].index(c), q_tiles.index(c)
                        )
                mbarrier.wait(v_bars[1].index(slot), parity)
                mbarrier.expect(v_bars[0].index(slot), v_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    v_desc, [b, h // group, 0, key], v_bars[0].index(slot), v_tiles.index(slot)
                )
                n += 1


@gluon.jit(do_not_specialize=["diagonal", "left", "section"])
def _fp8_hopper_fwd_kernel(
    q_desc, k_desc, v_desc, o_desc, q_scales, k_scales, v_scales, q_ptr, k_ptr, v_ptr,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks,
    stride_vb, stride_vh, stride_vs, lse_ptr, diagonal, left, section, scale2,
    CONSUMERS: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """As `hopper._hopper_fwd_kernel`, for 8-bit q, k and v and their scales."""
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, 1, 1, ROWS, D], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, D, BLOCK_N], v_desc.layout)
    o_tiles = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, 1, 1, ROWS, D], o_desc.layout)
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
    scales = (q_scales, k_scales, v_scales)
    given = (
        q_ptr, k_ptr, v_ptr, (stride_qb, stride_qh, stride_qt), (stride_kb, stride_kh, stride_ks),
        (stride_vb, stride_vh, stride_vs),
    )  # fmt: skip
    target = (q_desc, k_desc, o_desc, scales, given, lse_ptr, scale2)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (attend_role, (target, shared, 0, CONSUMERS, D, BLOCK_N, STAGES, CAUSAL, WINDOW)),
            (attend_role, (target, shared, 1, CONSUMERS, D, BLOCK_N, STAGES, CAUSAL, WINDOW)),
            (load_role, (source, shared, CONSUMERS, BLOCK_N, STAGES, CAUSAL, WINDOW)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend_role, (target, shared, 0, CONSUMERS, D, BLOCK_N, STAGES, CAUSAL, WINDOW)),
            (attend_role, (target, shared, 1, CONSUMERS, D, BLOCK_N, STAGES, CAUSAL, WINDOW)),
            (attend_role, (target, shared, 2, CONSUMERS, D, BLOCK_N, STAGES, CAUSAL, WINDOW)),
            (load_role, (source, shared, CONSUMERS, BLOCK_N, STAGES, CAUSAL, WINDOW)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip


class Config(NamedTuple):
    """As in `hopper`."""

    block_n: int
    stages: int
    registers: int = 240
    consumers: int = 2


CONFIGS = {64: Config(128, 4), 128: Config(128, 4), 256: Config(64, 3)}

KINDS = {
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
}


def constants(config: Config, d: int, causal: bool, window: bool) -> dict[str, int]:
    """What the kernel is compiled for."""
    return {
        "CONSUMERS": config.consumers, "D": d, "BLOCK_N": config.block_n, "STAGES": config.stages,
        "REGISTERS": config.registers, "CAUSAL": causal, "WINDOW": window,
    }  # fmt: skip


def _descriptor(x: Tensor, rows: int, columns: int) -> hopper._Descriptor:
    """What the copy engine needs for tiles of rows x columns of one head of a contiguous x."""
    box = [1, 1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(box, KINDS[x.dtype])
    return hopper._Descriptor(x, x.shape, x.stride(), box, layout)


def serves(q: Tensor, k: Tensor, v: Tensor, dims: Dims) -> str:
    """Why the Gluon kernel does not take these checked inputs, or "" if it does."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"the Gluon kernel takes bfloat16 and float16, got {q.dtype}"
    if dims.d not in CONFIGS:
        return f"the Gluon kernel takes head dims {', '.join(map(str, CONFIGS))}, got {dims.d}"
    if not q.stride(3) == k.stride(3) == v.stride(3) == 1:
        return "the Gluon kernel takes inner stride 1"
    if runtime.interpreting():
        return "Gluon has no interpreter"
    return ""


def fp8_hopper_fwd(
    q: Tensor, k: Tensor, v: Tensor, quantized: Quantized, dims: Dims, *, offset: int,
    causal: bool, window: int | None, scale: float, config: Config | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the kernel on inputs for which `serves` gives ""; as `fp8.fp8_fwd` otherwise."""
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    config = config or CONFIGS[dims.d]
    (q8, q_scales), (k8, k_scales), (v8, v_scales) = quantized
    items = triton.cdiv(dims.t, config.consumers * 64) * dims.batch * dims.q_heads
    plan = hopper.schedule(dims, causal, hopper._multiprocessors(q.device))
    diagonal = min(max(offset, -dims.t), dims.s)
    left = 0 if window is None else min(max(offset - window + 1, -dims.t), dims.s)
    _fp8_hopper_fwd_kernel[(min(plan.workers, items),)](
        _descriptor(q8, 64, dims.d), _descriptor(k8, config.block_n, dims.d),
        _descriptor(v8, dims.d, config.block_n), _descriptor(o, 64, dims.d),
        q_scales, k_scales, v_scales, q, k, v, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        lse, diagonal, left, plan.section, scale * math.log2(math.e),
        **constants(config, dims.d, causal, window is not None), num_warps=4,
    )  # fmt: skip
    return o, lse
