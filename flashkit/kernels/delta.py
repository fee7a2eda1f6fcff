"""What the backward kernels need of each query row beside its q and do: delta and lse.

Source: Dao et al., FlashAttention (2022), Appendix B.2; Shah et al., FlashAttention-3 (2024), for
lse = inf.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import Dims
from flashkit.kernels.primitives import load_tile

LN_2 = tl.constexpr(math.log(2.0))
MULTIPLE = 128  # rows: the largest tile, so that whole tiles of delta and lse2 can be read


@triton.jit(do_not_specialize=["T", "padded", "heads"])
def _delta_kernel(
    o_ptr, do_ptr, lse_ptr, delta_ptr, lse2_ptr,
    stride_ob, stride_oh, stride_ot, stride_od,
    stride_gb, stride_gh, stride_gt, stride_gd,
    T, D, padded, heads,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(do * o), which is rowsum(p * dp) without p, and lse in base 2.

    Grid      (padded / ROWS * B * Hq,)
    Writes    delta, lse2 (B, Hq, padded) float32; lse2 is inf, so that p = 0, where a row sees
              nothing and past T
    Strides   stride_o* of o, stride_g* of do
    """
    blocks = padded // ROWS
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // heads
    h = bh % heads
    rows = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    offs_d = tl.arange(0, BLOCK_D)
    o_ptr += b * stride_ob + h * stride_oh
    do_ptr += b * stride_gb + h * stride_gh
    o = load_tile(o_ptr, rows, offs_d, stride_ot, stride_od, T, D).to(tl.float32)
    do = load_tile(do_ptr, rows, offs_d, stride_gt, stride_gd, T, D).to(tl.float32)
    lse = tl.load(lse_ptr + bh * T + rows, rows < T, -float("inf"))
    lse2 = tl.where(lse == -float("inf"), float("inf"), lse / LN_2)
    tl.store(delta_ptr + bh * padded + rows, tl.sum(o * do, axis=1))
    tl.store(lse2_ptr + bh * padded + rows, lse2)


def row_terms(
    o: Tensor, lse: Tensor, do: Tensor, dlse: Tensor | None, dims: Dims
) -> tuple[Tensor, Tensor]:
    """delta and lse2, float32 (B, Hq, T rounded up to a multiple of 128), from what came forward.

    o and do (B, Hq, T, D), lse and dlse (B, Hq, T), all of any strides; dlse None is one of 0.
    d lse / d s = p, and ds = p * (dp - delta): so dlse is taken from delta.
    """
    padded = triton.cdiv(dims.t, MULTIPLE) * MULTIPLE
    shape = dims.batch, dims.q_heads, padded
    delta, lse2 = (torch.empty(shape, dtype=torch.float32, device=o.device) for _ in range(2))
    if delta.numel() == 0:
        return delta, lse2
    rows = MULTIPLE if runtime.interpreting() else 32
    _delta_kernel[(padded // rows * dims.batch * dims.q_heads,)](
        o, do, lse.contiguous(), delta, lse2, *o.stride(), *do.stride(),
        dims.t, dims.d, padded, dims.q_heads, ROWS=rows, BLOCK_D=triton.next_power_of_2(dims.d),
    )  # fmt: skip
    if dlse is not None:
        delta[..., : dims.t].sub_(dlse)
    return delta, lse2
