"""Who sees whom: positions, causality and the sliding window.

Query row i stands at absolute position offset + i; it sees key j iff j <= offset + i and, with a
window W, j > offset + i - W. By default the queries are the newest tokens: offset = S - T.
"""

import torch
from torch import Tensor

from flashkit.contracts import require


def positions(
    given: Tensor | None, batch: int, length: int, start: int, device: torch.device
) -> Tensor:
    """Absolute positions as (B, length) int64: as given, or start, start + 1, ... for each batch.

    given may be (length,) or (B, length), of an integer dtype.
    """
    if given is None:
        return torch.arange(start, start + length, device=device).expand(batch, length)
    given = torch.as_tensor(given, device=device)
    require(
        not given.is_floating_point() and given.dtype != torch.bool,
        f"positions must be integers, got {given.dtype}",
    )
    require(
        given.shape in ((length,), (batch, length)),
        f"positions must have shape ({length},) or ({batch}, {length}), got {tuple(given.shape)}",
    )
    return given.long().expand(batch, length)


def visible(
    query_positions: Tensor, key_positions: Tensor, window: int | None = None, causal: bool = True
) -> Tensor:
    """True where a query sees a key: (B, T), (B, S) -> bool (B, 1, T, S)."""
    qp = query_positions[:, None, :, None]
    kp = key_positions[:, None, None, :]
    seen = (kp <= qp) if causal else torch.ones_like(kp <= qp)
    return seen if window is None else seen & (kp > qp - window)


def weigh(p: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """p @ values, (..., T, N) @ (..., N, D), in which a hidden value never matters.

    A weight of zero does not hide a NaN (0 * NaN is NaN), so values that are not finite are taken
    out first; a row that does see one of them comes out as NaN.
    """
    bad = ~torch.isfinite(values).all(-1, keepdim=True)
    if not bool(bad.any()):
        return p @ values
    reached = seen.to(p.dtype) @ bad.to(p.dtype) > 0
    return (p @ values.masked_fill(bad, 0.0)).masked_fill(reached, float("nan"))
