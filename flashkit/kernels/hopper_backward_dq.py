"""dq of the Hopper backward: a part at a time into sums in memory, and from them to dq.

The sums, float32, lie in the order in which threads hold the parts. A tile of 64 rows by 64
columns is 1024 pieces of 16 bytes, a piece being the 4 numbers of one thread that are next to one
another in its registers: row r, columns c and c + 1, then row r + 8. A warp's 32 pieces are one
stretch of 512 bytes, so that each instruction adds whole lines.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from flashkit.contracts import Dims

ROWS = tl.constexpr(64)
DQ_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def start_dq(ds_tiles, k_tiles, slot, zero, C: gl.constexpr):
    """Send off this consumer's 64 x 64 part of dq = ds k, from the ds of both consumers.

    Of 64 rows by D 128 it is a half of the columns, of 128 rows by D 64 a half of the rows.
    """
    DTYPE: gl.constexpr = k_tiles.dtype
    BLOCK_M: gl.constexpr = ds_tiles.shape[2]
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], DTYPE)
    HALVES: gl.constexpr = BLOCK_M // 64  # of ds; k has 2 // HALVES
    ds = ds_tiles._reinterpret(DTYPE, [4 * HALVES, 64, 64], TILE)
    k = k_tiles._reinterpret(DTYPE, [4 // HALVES, 64, 64], TILE)
    dq = gl.zeros([64, 64], gl.float32, DQ_LAYOUT)
    for c in gl.static_range(2):
        if HALVES == 1:
            a = ds.index(2 * slot + c)
            b = k.index(zero + 2 * c + C)
        else:
            a = ds.index(4 * slot + 2 * c + C)
            b = k.index(zero + c)
        dq = warpgroup_mma(a.permute((1, 0)), b, dq, use_acc=c > 0, is_async=True)
    return dq


@gluon.jit
def add_dq(sum_ptr, dq, row, C: gl.constexpr, D: gl.constexpr):
    """Add consumer C's part (64, 64) of dq to the sums of the tile at row, over all heads.

    Of the four addresses that the instruction is offered it takes the first.
    """
    tile = row // 64 * (D // 64) + C
    r = gl.arange(0, 64, gl.SliceLayout(1, DQ_LAYOUT))[:, None]
    c = gl.arange(0, 64, gl.SliceLayout(0, DQ_LAYOUT))[None, :]
    piece = c // 8 * 128 + r // 16 * 32 + r % 8 * 4 + c % 8 // 2
    where = (sum_ptr + tile.to(gl.int64) * 4096 + piece * 4).to(gl.int64)
    gl.inline_asm_elementwise(
        "red.relaxed.gpu.global.add.v4.f32 [$1], {$5, $6, $7, $8}; mov.b32 $0, 0;",
        "=r,l,l,l,l,f,f,f,f", [where, dq], dtype=gl.int8, is_pure=False, pack=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T", "padded"])
def _finish_kernel(sum_ptr, dq_ptr, flag_ptr, scale, T, padded, D: tl.constexpr):
    """dq = scale * sum, in dq's dtype; flag becomes 1 if any sum is not finite.

    Grid      (padded / 64 * B * Hq,), padded the rows of a head with sums, T those of dq
    """
    blocks = padded // ROWS
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * ROWS
    r = tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, D)[None, :]
    c = d % 64
    piece = d // 64 * 1024 + c // 8 * 128 + r // 16 * 32 + r % 8 * 4 + c % 8 // 2
    at = piece * 4 + r // 8 % 2 * 2 + c % 2
    sums = tl.load(sum_ptr + (bh * padded + first) * D + at)
    wrong = (tl.sum(sums * 0.0, 1) != 0.0).to(tl.int32)  # NaN and inf survive a product with 0
    tl.store(flag_ptr + tl.zeros_like(wrong), 1, mask=wrong > 0)
    out = dq_ptr + (bh * T + first + r) * D + d
    tl.store(out, (sums * scale).to(dq_ptr.dtype.element_ty), first + r < T)


def finish_dq(
    sums: Tensor, dq: Tensor, flag: Tensor, padded: int, dims: Dims, scale: float
) -> None:
    """dq (B, Hq, T, D), contiguous, from sums (B, Hq, padded, D), padded a multiple of 64.

    flag, int32 (1,), becomes 1 if any is not finite.
    """
    grid = (padded // 64 * dims.batch * dims.q_heads,)
    _finish_kernel[grid](sums, dq, flag, scale, dims.t, padded, D=dims.d)
