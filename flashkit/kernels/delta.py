"""delta, the one number a row that the backward kernels need beside lse.

Source: Dao et al., FlashAttention (2022), Appendix B.2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import Dims
from flashkit.kernels.primitives import load_tile


@triton.jit
def _delta_kernel(
    o_ptr, do_ptr, delta_ptr,
    stride_ob, stride_oh, stride_ot, stride_od,
    stride_gb, stride_gh, stride_gt, stride_gd,
    T, D, heads,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(do * o), which is rowsum(p * dp) without p: (B, Hq, T) float32, contiguous.

    Grid      (cdiv(T, ROWS) * B * Hq,)
    Strides   stride_o* of o, stride_g* of do
    """
    blocks = tl.cdiv(T, ROWS)
    bh = tl.program_id(0) // blocks
    b = (bh // heads).to(tl.int64)
    h = (bh % heads).to(tl.int64)
    rows = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    offs_d = tl.arange(0, BLOCK_D)
    o_ptr += b * stride_ob + h * stride_oh
    do_ptr += b * stride_gb + h * stride_gh
    o = load_tile(o_ptr, rows, offs_d, stride_ot, stride_od, T, D).to(tl.float32)
    do = load_tile(do_ptr, rows, offs_d, stride_gt, stride_gd, T, D).to(tl.float32)
    tl.store(delta_ptr + bh.to(tl.int64) * T + rows, tl.sum(o * do, axis=1), mask=rows < T)


def row_delta(o: Tensor, do: Tensor, dlse: Tensor | None, dims: Dims) -> Tensor:
    """delta (B, Hq, T) float32 from o and do of any strides, less dlse where lse was used.

    d lse / d s = p, and ds = p * (dp - delta): so dlse belongs where delta is.
    """
    delta = torch.empty(o.shape[:3], dtype=torch.float32, device=o.device)
    rows = 16 if runtime.interpreting() else 64
    grid = (triton.cdiv(dims.t, rows) * dims.batch * dims.q_heads,)
    if grid[0] == 0:
        return delta
    _delta_kernel[grid](
        o, do, delta, *o.stride(), *do.stride(), dims.t, dims.d, dims.q_heads,
        ROWS=rows, BLOCK_D=triton.next_power_of_2(dims.d),
    )  # fmt: skip
    return delta if dlse is None else delta.sub_(dlse)
