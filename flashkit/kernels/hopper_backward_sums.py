"""The sums of dq, float32, in the order in which the threads of the Hopper backward hold them.

A tile of 64 rows by 64 columns is 1024 pieces of 16 bytes, a piece being the 4 numbers of one
thread that lie next to one another in its registers: row r, columns c and c + 1, then row r + 8.
A warp's 32 pieces are one stretch of 512 bytes, so that each instruction adds whole lines.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashkit.contracts import Dims

ROWS = tl.constexpr(64)


DQ_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def add_dq(sum_ptr, dq, row, C: gl.constexpr, D: gl.constexpr):
    """Add consumer C's part (64, 64) of the dq of a tile to the sums; row counts over all heads.

    Of 64 rows by D 128 the part is a half of the columns, of 128 rows by D 64 a half of the rows.
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
