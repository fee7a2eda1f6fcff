"""A finished part joined to the running state of its rows, in place: `online.merge` in one pass.

Ring attention does it once for every part. In PyTorch it takes several passes over acc, a tenth of
the time of a part of 4k keys.
"""

import triton
import triton.language as tl
from torch import Tensor

from flashkit.kernels.primitives import load_tile, merge, store_tile


@triton.jit(do_not_specialize=["first", "t", "T"])
def _join_kernel(
    m_ptr, l_ptr, acc_ptr, lse_ptr, o_ptr, first, t, T, D,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one head.

    Grid      (ceil(t / ROWS) * B * H,)
    Reads     o (B, H, t, D), lse (B, H, t) of the part, contiguous
    Updates   m, l (B, H, T), acc (B, H, T, D), float32, contiguous, at rows first to first + t - 1
    """
    blocks = tl.cdiv(t, ROWS)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    rows = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    offs_d = tl.arange(0, BLOCK_D)
    inside = rows < t
    state = head * T + first
    acc_ptr += state * D
    m = tl.load(m_ptr + state + rows, inside, -float("inf"))
    l = tl.load(l_ptr + state + rows, inside, 0.0)
    acc = load_tile(acc_ptr, rows, offs_d, D, 1, t, D)
    lse = tl.load(lse_ptr + head * t + rows, inside, -float("inf"))
    o = load_tile(o_ptr + head * t * D, rows, offs_d, D, 1, t, D).to(tl.float32)
    m, l, acc = merge(m, l, acc, lse, 1.0, o)
    tl.store(m_ptr + state + rows, m, inside)
    tl.store(l_ptr + state + rows, l, inside)
    store_tile(acc_ptr, acc, rows, offs_d, D, 1, t, D)


def join_fwd(m: Tensor, l: Tensor, acc: Tensor, first: int, o: Tensor, lse: Tensor) -> None:
    """Join a part o (B, H, t, D), lse (B, H, t) to rows first, first + 1, ... of a state.

    m, l (B, H, T) and acc (B, H, T, D) are float32 and contiguous, and written to; the part has
    any float dtype and strides. Source: `online.merge` of the state with (lse, 1, o).
    """
    t, d = o.shape[2:]
    if o.numel() == 0:
        return
    rows = max(1, 4096 // triton.next_power_of_2(d))
    _join_kernel[(triton.cdiv(t, rows) * m.shape[0] * m.shape[1],)](
        m, l, acc, lse.contiguous(), o.contiguous(), first, t, m.shape[2], d,
        ROWS=rows, BLOCK_D=triton.next_power_of_2(d),
    )  # fmt: skip
