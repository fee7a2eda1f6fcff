"""Exact attention with the whole score matrix: the meaning that everything else must match."""

import math

import torch
from torch import Tensor

from flashkit.contracts import check_positive, check_qkv, require
from flashkit.masks import positions, visible, weigh


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor,
    query_positions: Tensor | None = None, key_positions: Tensor | None = None, *,
    window: int | None = None, scale: float | None = None, return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(scale q k^T) v over the keys that each query may see.

    q (B, Hq, T, D); k (B, Hkv, S, D); v (B, Hkv, S, Dv), Hq a multiple of Hkv; any float dtype.
    query_positions (T,) or (B, T), default S - T, S - T + 1, ...; key_positions (S,) or (B, S),
    default 0, 1, ...; a query sees the keys at or before its position, with a window only the
    last `window` of them. scale defaults to 1 / sqrt(D).

    Returns o (B, Hq, T, Dv) in q's dtype and, if asked for, lse (B, Hq, T), natural log. The
    arithmetic is float64 for float64 inputs and float32 for all others.
    Raises ValueError for shapes that do not fit and for a row that sees no key.
    """
    dims = check_qkv(q, k, v)
    check_positive("window", window)
    qp = positions(query_positions, dims.batch, dims.t, dims.s - dims.t, q.device)
    kp = positions(key_positions, dims.batch, dims.s, 0, q.device)
    seen = visible(qp, kp, window)
    require(bool(seen.any(-1).all()), "a query row has no visible key")
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    k, v = (x.to(work).repeat_interleave(dims.group, dim=1) for x in (k, v))
    scale = 1.0 / math.sqrt(dims.d) if scale is None else scale
    scores = (q.to(work) * scale @ k.transpose(-2, -1)).masked_fill(~seen, float("-inf"))
    o = weigh(torch.softmax(scores, dim=-1), v, seen).to(q.dtype)
    return (o, torch.logsumexp(scores, dim=-1)) if return_lse else o
