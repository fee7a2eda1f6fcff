"""One visit: attention of some rows to some keys, forward and backward, on what is local.

On a GPU the kernels of `flash_attention` compute it; on a CPU, and for float64, PyTorch does, a
tile of keys at a time. Neither holds the scores.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.backward import attention_backward
from flashkit.contracts import KERNEL_DTYPES, check_qkv
from flashkit.masks import positions, visible
from flashkit.online import EMPTY, State, merge, update
from flashkit.ring.placement import Visit

TILE = 256  # keys at a time in PyTorch


def uses_kernels(q: Tensor) -> bool:
    """Whether the kernels compute the parts of these queries."""
    return q.is_cuda and q.dtype in KERNEL_DTYPES


def nothing_seen(q: Tensor, v: Tensor) -> State:
    """The empty state of every row of q, (B, Hq, T), to be written to."""
    a = q.new_zeros(*q.shape[:3], v.shape[3], dtype=work_dtype(q))
    m = a.new_full(q.shape[:3], float("-inf"))
    return State(m, torch.zeros_like(m), a)


def forward_part(
    state: State, q: Tensor, k: Tensor, v: Tensor, visit: Visit, scale: float
) -> None:
    """Join to the state (B, Hq, T) of the rows of q what they see of k and v in this visit.

    The kernels give a part finished, as o and lse. That too is a state: m = lse, l = 1, a = o.
    """
    here = q[:, :, visit.rows], k[:, :, visit.keys], v[:, :, visit.keys]
    if uses_kernels(q):
        from flashkit.kernels.join import join_fwd  # here, as flashkit imports without Triton

        mask = visit.offset, visit.causal, visit.window
        part = torch.ops.flashkit.flash_fwd(*here, *mask, scale, None, None, "auto")
        join_fwd(*state, visit.rows.start, *part)
        return
    with torch.autocast(q.device.type, enabled=False):
        joined = merge(State(*(x[:, :, visit.rows] for x in state)), _tiles(*here, visit, scale))
    for whole, rows in zip(state, joined, strict=True):
        whole[:, :, visit.rows] = rows


def _tiles(q: Tensor, k: Tensor, v: Tensor, visit: Visit, scale: float) -> State:
    """The partial softmax of rows q (B, Hq, t, D) over keys k, v (B, Hkv, s, D)."""
    dims, work = check_qkv(q, k, v), work_dtype(q)
    rows = (q.to(work) * scale).reshape(dims.batch, dims.kv_heads, dims.group * dims.t, dims.d)
    qp = positions(None, 1, dims.t, visit.offset, q.device).repeat(1, dims.group)
    kp = positions(None, 1, dims.s, 0, q.device)
    state = EMPTY
    for start in range(0, dims.s, TILE):
        keys = slice(start, start + TILE)
        here, values = (x[:, :, keys].to(work) for x in (k, v))
        seen = visible(qp, kp[:, keys], visit.window, visit.causal)
        state = update(state, (rows @ here.mT).masked_fill(~seen, float("-inf")), values)
    return State(*(x.reshape(dims.batch, dims.q_heads, dims.t, *x.shape[3:]) for x in state))


class Rows(NamedTuple):
    """What backward needs of a rank's own queries: o and lse are those of all keys."""

    q: Tensor  # (B, Hq, T, D), as o and do
    o: Tensor
    lse: Tensor  # (B, Hq, T), as dlse
    do: Tensor
    dlse: Tensor | None


def backward_part(
    gradients: tuple[Tensor, ...], rows: Rows, k: Tensor, v: Tensor, visit: Visit, scale: float
) -> None:
    """Add to dq what these keys give its rows, and to dk, dv what the rows give these keys.

    With the lse of all keys P = exp(s - lse) is final, and the parts of a gradient simply add.
    """
    q, o, lse, do, dlse = (x if x is None else x[:, :, visit.rows] for x in rows)
    here = q, k[:, :, visit.keys], v[:, :, visit.keys], o, lse, do
    if uses_kernels(q):
        mask = visit.offset, visit.causal, visit.window
        parts = torch.ops.flashkit.flash_bwd(*here, dlse, *mask, scale, "auto", (True, True))
    else:
        at = positions(None, 1, q.shape[2], visit.offset, q.device)[0]
        options = {"causal": visit.causal, "window": visit.window, "scale": scale, "dlse": dlse}
        with torch.autocast(q.device.type, enabled=False):
            parts = attention_backward(*here, at, tile=TILE, **options)
    where = visit.rows, visit.keys, visit.keys
    for total, part, tokens in zip(gradients, parts, where, strict=True):
        total[:, :, tokens] += part


def work_dtype(q: Tensor) -> torch.dtype:
    """What partial results are held in: float64 for float64 inputs, float32 for all others."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32
