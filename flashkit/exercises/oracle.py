"""The right answers, in float64, and how far a fair computation of the same dtype is from them."""

import itertools
import math

import torch
from torch import Tensor

from flashkit.masks import positions, visible
from flashkit.reference import causal_attention

CPU = torch.device("cpu")


def offset_of(inputs: dict) -> int:
    """The position of query row 0: query_offset, by default S - T."""
    given = inputs.get("query_offset")
    return inputs["k"].shape[2] - inputs["q"].shape[2] if given is None else given


def query_positions(inputs: dict) -> Tensor:
    """(B, T) absolute positions: as given, or from the offset."""
    batch, _, t, _ = inputs["q"].shape
    return positions(inputs.get("query_positions"), batch, t, offset_of(inputs), CPU)


def key_positions(inputs: dict) -> Tensor:
    """(B, S) absolute positions: as given, or 0, 1, ..."""
    batch, _, s, _ = inputs["k"].shape
    return positions(inputs.get("key_positions"), batch, s, 0, CPU)


def attention(inputs: dict) -> Tensor:
    """Exact attention of the inputs in float64, (B, Hq, T, D); 0 in rows that see no key."""
    qp, kp = query_positions(inputs), key_positions(inputs)
    seen = visible(qp, kp, inputs.get("window")).any(-1)
    qp = torch.where(seen[:, 0], qp, kp[:, :1])  # a row without a key is lent one: or it raises
    q, k, v = (inputs[name].double() for name in "qkv")
    o = causal_attention(q, k, v, qp, kp, window=inputs.get("window"))
    return o.masked_fill(~seen[..., None], 0.0)


def row_sizes(inputs: dict) -> Tensor:
    """What the errors of a row are measured by: its largest sum of weight * |v|, (B, Hq, T, 1)."""
    return attention({**inputs, "v": inputs["v"].abs()}).amax(-1, keepdim=True)


def unguarded(inputs: dict, tile: int, parts: bool = False) -> Tensor:
    """Attention with NaN in the rows that see no key of the first tile, or of any tile if parts.

    That is what exp(-inf - -inf) makes of them, in one state or in one state for each part.
    """
    seen = visible(query_positions(inputs), key_positions(inputs))
    tiles = [x.any(-1) for x in seen.split(tile, dim=-1)]
    fine = torch.stack(tiles).all(0) if parts else tiles[0]
    return attention(inputs).masked_fill(~fine[..., None], math.nan)


def lse(inputs: dict, dtype: torch.dtype) -> Tensor:
    """log of the sum of exp(score) of the visible keys, natural log, (B, Hq, T)."""
    q, k = inputs["q"].to(dtype), inputs["k"].to(dtype)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT / math.sqrt(q.shape[3])
    seen = visible(query_positions(inputs), key_positions(inputs), inputs.get("window"))
    return torch.logsumexp(scores.masked_fill(~seen, -math.inf), -1)


def attention_error(inputs: dict, want: Tensor) -> Tensor:
    """The error that cannot be avoided, like want: the worst of eight fair computations.

    They differ in what is scaled (q or the scores), in the base (e or 2) and in the order of the
    columns of q and k: all are right, none is better founded than the others.
    """
    ways = itertools.product((False, True), repeat=3)
    errors = [(tiled(inputs, *way).double() - want).abs().nan_to_num(0.0, 0.0) for way in ways]
    return torch.stack(errors).amax(0)


def tiled(inputs: dict, base2: bool, scale_q: bool, flip: bool, tile: int = 16) -> Tensor:
    """Attention tile by tile as the exercises ask: statistics in float32, p in v's dtype."""
    q, k, v = (inputs[name] for name in "qkv")
    q, k = (x.flip(-1) if flip else x for x in (q, k))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scale, exp = 1.0 / math.sqrt(q.shape[3]), torch.exp
    if base2:
        scale, exp = scale * math.log2(math.e), torch.exp2
    seen = visible(query_positions(inputs), key_positions(inputs), inputs.get("window"))
    rows = (q * scale).float() if scale_q else q.float()
    m = torch.full((*q.shape[:3], 1), -math.inf)
    l, acc = torch.zeros_like(m), torch.zeros(*q.shape[:3], v.shape[3])
    for start in range(0, k.shape[2], tile):
        keys = slice(start, start + tile)
        s = rows @ k[:, :, keys].float().mT * (1.0 if scale_q else scale)
        s = s.masked_fill(~seen[..., keys], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        safe = torch.where(m_new == -math.inf, 0.0, m_new)
        alpha, p = exp(m - safe), exp(s - safe)
        l = alpha * l + p.sum(-1, keepdim=True)
        acc = alpha * acc + p.to(v.dtype).float() @ v[:, :, keys].float()
        m = m_new
    return (acc / torch.where(l == 0, 1.0, l)).to(q.dtype)
