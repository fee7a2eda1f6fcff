"""The second half of the tuned decode: the splits of a row joined, all of them at once.

A part has the form of a result, o and lse, so its weight is exp(lse): `online.merge` for many.

Source: Dao et al., Flash-Decoding for long-context inference (2023); CUDA C++ Programming Guide,
programmatic dependent launch.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from flashkit.kernels.decode_plan import merge_columns
from flashkit.kernels.primitives import exp_reference


@triton.jit(do_not_specialize=["num_splits"])
def _join_kernel(
    part_ptr, part_lse_ptr, o_ptr, lse_ptr, num_splits,
    D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_D columns of one row of o from all its splits at once.

    Grid      (rows * ceil(D / BLOCK_D),)
    Reads     part (rows, num_splits, D), part_lse (rows, num_splits), float32, contiguous
    Writes    o (rows, D) in its own dtype; lse (rows,) float32, natural log
    """
    row = (tl.program_id(0) // tl.cdiv(D, BLOCK_D)).to(tl.int64)
    column = tl.program_id(0) % tl.cdiv(D, BLOCK_D) * BLOCK_D
    splits = tl.arange(0, BLOCK_P)
    cols = column + tl.arange(0, BLOCK_D)
    parts = row * num_splits + splits
    real = splits < num_splits
    if DEPENDENT:
        gdc_wait()  # until all splits are written
    lse_i = tl.load(part_lse_ptr + parts, real, -float("inf"))
    inside = real[:, None] & (cols < D)[None, :]
    o_i = tl.load(part_ptr + parts[:, None] * D + cols[None, :], inside, 0.0)
    reference = exp_reference(tl.max(lse_i, axis=0))
    weights = tl.exp(lse_i - reference)
    total = tl.sum(weights, axis=0)
    safe = tl.where(total == 0.0, 1.0, total)
    o = tl.sum(weights[:, None] * o_i, axis=0) / safe
    tl.store(o_ptr + row * D + cols, o.to(o_ptr.dtype.element_ty), cols < D)
    lse = tl.where(total == 0.0, -float("inf"), reference + tl.log(safe))
    tl.store(lse_ptr + row, lse, column == 0)


def join_splits(
    part: Tensor, part_lse: Tensor, o: Tensor, lse: Tensor, *, dependent: bool
) -> None:
    """Fill o (B, Hq, 1, D) and lse (B, Hq, 1) from part (B, Hq, num_splits, D) and its lse.

    dependent: start as soon as the kernel before this one allows it, and wait for its results.
    """
    num_splits, d = part.shape[2:]
    block_d = merge_columns(lse.numel(), d)
    _join_kernel[(lse.numel() * triton.cdiv(d, block_d),)](
        part, part_lse, o, lse, num_splits, D=d, BLOCK_P=triton.next_power_of_2(num_splits),
        BLOCK_D=block_d, DEPENDENT=dependent, num_warps=1,
        **({"launch_pdl": True} if dependent else {}),
    )  # fmt: skip
