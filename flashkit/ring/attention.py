"""Attention over a sequence that no rank holds whole: K and V travel, partial results merge.

Each of n ranks keeps the queries of its T / n tokens. In n steps all keys and values come by, and
what a step gives is joined to what is there by the rule of `online.merge`. Backward goes round
the same way; dk and dv travel with the keys they belong to and end at home.

Source: Liu, Zaharia and Abbeel, Ring Attention with Blockwise Transformers (2023), section 3.
"""

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashkit.attention import as_autocast_wants
from flashkit.contracts import (
    KERNEL_DTYPES,
    check_kernel_inputs,
    check_positive,
    check_qkv,
    check_scale,
    require,
)
from flashkit.ring.neighbours import Ring
from flashkit.ring.parts import (
    Rows,
    backward_part,
    forward_part,
    nothing_seen,
    uses_kernels,
    work_dtype,
)
from flashkit.ring.placement import Span, Visit, spans, take, visits


class _Plan(NamedTuple):
    """What forward and backward have in common: the ring, who holds what, and the mask."""

    ring: Ring
    held: list[list[Span]]
    causal: bool
    window: int | None
    scale: float

    def visits(self, source: int) -> list[Visit]:
        """What this rank's rows see of the keys of another."""
        mine, theirs = self.held[self.ring.rank], self.held[source]
        return visits(mine, theirs, causal=self.causal, window=self.window)


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, window: int | None = None,
    scale: float | None = None, group: dist.ProcessGroup | None = None,
    placement: str = "zigzag", return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(scale q k^T) v over the tokens of all ranks of group, by default all processes.

    q (B, Hq, T / n, D), k and v (B, Hkv, T / n, D) are this rank's shards, as `shard` cuts them.
    Returns its shard of o in q's dtype and, if asked for, of lse (B, Hq, T / n), natural log, in
    float32 (float64 for float64 inputs). Causality and window go by the positions in the whole
    sequence. Inside autocast q, k and v are cast first, as `flash_attention` does. Every rank
    must make this call, and that of backward, in the same order.

    Inputs that do not fit, or differ between ranks, raise the same ValueError on every rank. A
    rank that stops answering ends the others with the RuntimeError of the group's own timeout:
    set a short one in init_process_group. With NCCL call torch.cuda.set_device first.
    """
    ring = Ring(group)
    ring.agree(lambda: _describe(q, k, v, causal, window, scale, placement))
    q, k, v = as_autocast_wants(q, k, v)
    held = [
        spans(rank, ring.world, q.shape[2] * ring.world, placement) for rank in range(ring.world)
    ]
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    o, lse = _RingAttention.apply(q, k, v, _Plan(ring, held, causal, window, scale))
    return (o, lse) if return_lse else o


def _describe(q, k, v, causal, window, scale, placement) -> dict:
    """All that must hold on a rank by itself, and what must be the same on every one."""
    dims = check_qkv(q, k, v)
    if uses_kernels(q):
        check_kernel_inputs(q, k, v)
    if q.dtype not in (*KERNEL_DTYPES, torch.float64):
        raise ValueError(f"q must be float64, float32, float16 or bfloat16, got {q.dtype}")
    require(dims.s == dims.t, f"k must be as long as q, {dims.t} tokens, got {dims.s}")
    check_positive("window", window)
    check_scale(scale)
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    return {
        "the length of the shards": dims.t,
        "the shape of q": tuple(q.shape),
        "the shape of v": tuple(v.shape),
        "dtype": as_autocast_wants(q)[0].dtype,
        "causal": causal,
        "window": window,
        "scale": scale,
        "placement": placement,
        "whether a gradient is needed": gradient,
    }


class _RingAttention(torch.autograd.Function):
    """Saves q, k, v, o and lse of this rank; nothing of another's is kept."""

    @staticmethod
    def forward(ctx, q, k, v, plan):
        state = nothing_seen(q, v)
        for source, (keys, values) in plan.ring.travel(k, v):
            for visit in plan.visits(source):
                forward_part(state, q, keys, values, visit, plan.scale)
        o = torch.div(state.a, state.l[..., None], out=q.new_empty(state.a.shape))
        lse = state.m + torch.log(state.l)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.set_materialize_grads(False)  # lse is seldom used, and then dlse is None
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        plan, work = ctx.plan, work_dtype(q)
        rows = Rows(q, o, lse, torch.zeros_like(o) if do is None else do, dlse)
        dq = torch.zeros_like(q, dtype=work)
        following = None  # dk and dv of the same keys, one rank behind them
        for source, (keys, values) in plan.ring.travel(k, v):
            found = [torch.zeros_like(x, dtype=work) for x in (keys, values)]
            for visit in plan.visits(source):
                backward_part((dq, *found), rows, keys, values, visit, plan.scale)
            if following:
                found = [x + y for x, y in zip(found, following.wait(), strict=True)]
            following = plan.ring.send(*found)
        dk, dv = following.wait()  # the last hop is the way home
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


def shard(
    x: Tensor, *, group: dist.ProcessGroup | None = None, placement: str = "zigzag", dim: int = 2
) -> Tensor:
    """This rank's part of x, whose dim is the tokens 0 to T - 1.

    Of torch.arange(T) with dim=0 it gives the positions of this rank's tokens.
    Raises ValueError, the same on every rank, for a T that the ranks cannot share equally.
    """
    ring = Ring(group)
    return take(x, spans(ring.rank, ring.world, x.shape[dim], placement), dim)


def unshard(
    x: Tensor, *, group: dist.ProcessGroup | None = None, placement: str = "zigzag", dim: int = 2
) -> Tensor:
    """The whole of which every rank holds the shard x; no gradient goes through it."""
    ring = Ring(group)
    shards = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ring.world)
    ]
    dist.all_gather(shards, x.detach().contiguous(), ring.group)
    whole = torch.cat(shards, dim)
    place = [spans(rank, ring.world, whole.shape[dim], placement) for rank in range(ring.world)]
    order = torch.cat([torch.arange(run.start, run.stop) for held in place for run in held])
    return whole.index_select(dim, order.argsort().to(whole.device))
