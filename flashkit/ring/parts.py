"""One visit: attention of some rows to some keys, forward and backward, on what is local.

On a GPU the kernels of `flash_attention` compute it; on a CPU, and for float64, PyTorch does, a
tile of keys at a time. Neither holds the scores.
"""

import torch
from torch import Tensor

from flashkit.backward import attention_backward
from flashkit.contracts import KERNEL_DTYPES, check_qkv
from flashkit.masks import positions, visible
from flashkit.online import EMPTY, State, update
from flashkit.ring.placement import Visit

TILE = 256  # keys at a time in PyTorch


def uses_kernels(q: Tensor) -> bool:
    """Whether the kernels compute the parts of these queries."""
    return q.is_cuda and q.dtype in KERNEL_DTYPES


def forward_part(q: Tensor, k: Tensor, v: Tensor, visit: Visit, scale: float) -> State:
    """The partial softmax of rows q (B, Hq, t, D) over keys k, v (B, Hkv, s, D): State (B, Hq, t).

    The kernels give it finished, as o and lse. That too is a state: m = lse, l = 1, a = o.
    """
    if not uses_kernels(q):
        with torch.autocast(q.device.type, enabled=False):
            return _tiles(q, k, v, visit, scale)
    o, lse = torch.ops.flashkit.flash_fwd(
        q, k, v, visit.offset, visit.causal, visit.window, scale, None, None, "auto"
    )
    return State(lse, torch.ones_like(lse), o)


def _tiles(q: Tensor, k: Tensor, v: Tensor, visit: Visit, scale: float) -> State:
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


def backward_part(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, dlse: Tensor | None,
    visit: Visit, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What these keys add to dq (B, Hq, t, D), and what these rows add to their dk, dv.

    o and lse are those of all keys, not of the part: P = exp(s - lse) is then final, and parts of
    a gradient simply add.
    """
    if uses_kernels(q):
        mask = visit.offset, visit.causal, visit.window
        return torch.ops.flashkit.flash_bwd(q, k, v, o, lse, do, dlse, *mask, scale, "auto")
    here = positions(None, 1, q.shape[2], visit.offset, q.device)[0]
    options = {"causal": visit.causal, "window": visit.window, "scale": scale, "dlse": dlse}
    with torch.autocast(q.device.type, enabled=False):
        return attention_backward(q, k, v, o, lse, do, here, tile=TILE, **options)


def work_dtype(q: Tensor) -> torch.dtype:
    """What partial results are held in: float64 for float64 inputs, float32 for all others."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32
