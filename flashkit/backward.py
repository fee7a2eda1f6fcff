"""The gradient of attention, a tile of keys at a time: P is computed again, never stored.

Forward: s = scale q k^T, p = exp(s - lse), o = p v. The lse of a row is all that it takes to have
any tile of p once more, and backward then follows from the chain rule:

    dv = p^T do            every row gives a value as much gradient as it gave it weight
    dp = do v^T
    ds = p * (dp - delta)  delta = rowsum(p * dp) = rowsum(do * o), as the rows of p sum to 1
    dq = scale ds k
    dk = scale ds^T q

Source: Dao et al., FlashAttention (2022), appendix B.2 and Algorithm 4.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.contracts import Dims, check_positive, check_qkv, check_shape
from flashkit.masks import positions, visible, weigh


class _Rows(NamedTuple):
    """What backward knows of the queries, gathered by KV head so that K is never repeated."""

    q: Tensor  # scaled, (B, Hkv, group * T, D), in the working dtype
    do: Tensor
    lse: Tensor  # (B, Hkv, group * T)
    delta: Tensor
    positions: Tensor  # (B, group * T)


@torch.no_grad()
def attention_backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor,
    query_positions: Tensor | None = None, key_positions: Tensor | None = None,
    tile: int = 16, *, causal: bool = True, window: int | None = None,
    scale: float | None = None, dlse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv, like q, k, v, from the forward's o and lse and the gradient do of that o.

    q, k, v, positions, window and scale are those of the forward, `online.online_attention`;
    causal=False shows all keys. do is like o and dlse, the gradient of lse if it was used, like
    lse. The arithmetic is float64 for float64 inputs and float32 for all others. A row with lse
    -inf saw no key and gets 0. Memory beyond inputs and results: O(T (D + tile)) a head.
    Raises ValueError for shapes that do not fit and for tile < 1.
    """
    check_positive("tile", tile)
    check_positive("window", window)
    dims = check_qkv(q, k, v)
    scale = 1.0 / math.sqrt(dims.d) if scale is None else scale
    rows = _rows(dims, q, o, lse, do, dlse, scale, query_positions)
    kp = positions(key_positions, dims.batch, dims.s, 0, q.device)
    dq, dk, dv = torch.zeros_like(rows.q), k.new_empty(k.shape), v.new_empty(v.shape)
    for start in range(0, dims.s, tile):
        keys = slice(start, start + tile)
        seen = visible(rows.positions, kp[:, keys], window, causal)
        here = (x[:, :, keys].to(rows.q.dtype) for x in (k, v))
        part, dk[:, :, keys], dv[:, :, keys] = _tile_gradients(rows, *here, seen)
        dq += part
    return (dq * scale).reshape(q.shape).to(q.dtype), dk, dv


def _rows(dims: Dims, q, o, lse, do, dlse, scale: float, query_positions) -> _Rows:
    """The rows with their delta: the one place where the gradient of lse comes in."""
    head = (dims.batch, dims.q_heads, dims.t)
    for name, x in (("o", o), ("do", do)):
        check_shape(name, x, (*head, dims.value_dim))
    for name, x in (("lse", lse), ("dlse", lse if dlse is None else dlse)):
        check_shape(name, x, head)
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, o, do, lse = (x.to(work) for x in (q, o, do, lse))
    delta = (do * o).sum(-1)
    if dlse is not None:
        delta = delta - dlse.to(work)  # d lse / d s = p, which is how delta enters ds
    q, do, lse, delta = (
        x.reshape(dims.batch, dims.kv_heads, dims.group * dims.t, *x.shape[3:])
        for x in (q * scale, do, lse, delta)
    )
    qp = positions(query_positions, dims.batch, dims.t, dims.s - dims.t, q.device)
    return _Rows(q, do, lse, delta, qp.repeat(1, dims.group))


def _tile_gradients(rows: _Rows, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """What a tile of keys adds to dq (without the scale), and its own dk and dv.

    Masks come after the exponent, and `weigh` multiplies: what is not finite stays unknown to all
    that do not see it, and the row that saw nothing to all keys.
    """
    seen = seen & (rows.lse != float("-inf"))[..., None]
    p = torch.where(seen, torch.exp(rows.q @ k.mT - rows.lse[..., None]), 0.0)
    dv = weigh(p.mT, rows.do, seen.mT)
    dp = rows.do @ v.mT
    ds = torch.where(seen, p * (dp - rows.delta[..., None]), 0.0)
    return weigh(ds, k, seen), weigh(ds.mT, rows.q, seen.mT), dv
