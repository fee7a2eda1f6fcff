"""From a wrong output to the name of the bug.

Every classic bug of `faults` leaves its own mark. A bug is named when the wrong output is clearly
what that bug gives on the same inputs, and no other bug gives the same.
"""

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flashkit.faults import CLASSIC, faulty_attention, variants
from flashkit.reference import causal_attention

NOISE = 16
"""Units of rounding that count as nothing."""
CLOSE = 0.02
"""An output matches a bug when it is this much nearer to the bug's output than right is."""


def diagnose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_offset: int | None = None,
    window: int | None = None,
    block_m: int = 16,
    block_n: int = 16,
    *,
    got: Tensor,
) -> str | None:
    """The id in `CLASSIC` of the one bug that gives the output `got` (B, Hq, T, D), or None."""
    offset = k.shape[2] - q.shape[2] if query_offset is None else query_offset
    positions = offset + torch.arange(q.shape[2], device=q.device)
    right = causal_attention(q.double(), k.double(), v.double(), positions, window=window)
    tiles = (offset, window, block_m, block_n)
    wrong = {fault: attention_with(fault, q, k, v, *tiles) for fault in CLASSIC}
    found = matching(got, right, wrong)
    return found[0] if len(found) == 1 else None


def attention_with(
    fault: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_offset: int | None = None,
    window: int | None = None,
    block_m: int = 16,
    block_n: int = 16,
    positions: tuple[Tensor, Tensor] | None = None,
) -> list[Tensor]:
    """What the bug gives in each way that it is written, with and without skipping of tiles."""
    skips = (True,) if window is None else (True, False)
    given = {"window": window, "block_m": block_m, "block_n": block_n, "positions": positions}
    outputs = []
    for variant, skip in itertools.product(range(variants(fault)), skips):
        # A tile of k that is multiplied as it lies fits only where it is square.
        with contextlib.suppress(RuntimeError):
            way = {"skip": skip, "variant": variant}
            outputs.append(faulty_attention(fault, q, k, v, query_offset, **given, **way))
    return outputs


def matching(got: Tensor, right: Tensor, wrong: Mapping[str, Sequence[Tensor]]) -> tuple[str, ...]:
    """The bugs whose output `got` is, nearest first; several where the inputs cannot tell.

    All tensors have one shape. wrong maps a bug to its possible outputs; where they are NaN or 0,
    they may be the other (rows that have seen nothing are one of them), and where they are
    infinite, anything. An output without a finite entry tells only that it is not finite, one in
    which rounding is as large as what distinguishes its entries tells nothing.
    """
    noise = NOISE * torch.finfo(got.dtype).eps
    finite = right[torch.isfinite(right)].double()
    rounding = torch.finfo(got.dtype).eps * float(finite.abs().max())
    if not torch.isfinite(got).any():
        return tuple(f for f, xs in wrong.items() if any(_finite_share(x) < 0.1 for x in xs))
    if 0 < float(finite.std()) < 10 * rounding:
        return tuple(wrong)
    ratios = {}
    for fault, outputs in wrong.items():
        ways = [y for x in outputs for y in _ways(x, got, right)]
        nearest = min((_ratio(got, right, x, noise) for x in ways), default=math.inf)
        if nearest <= CLOSE:
            ratios[fault] = nearest
    limit = max(10 * min(ratios.values(), default=0.0), noise)
    return tuple(sorted((f for f, r in ratios.items() if r <= limit), key=ratios.__getitem__))


def _finite_share(x: Tensor) -> float:
    return float(torch.isfinite(x).double().mean())


def _ways(x: Tensor, got: Tensor, right: Tensor) -> tuple[Tensor, ...]:
    """x, and what else it may look like where it is not finite or where nothing was seen."""
    x = torch.where(torch.isinf(x), got.to(x.dtype), x)
    nan, empty = torch.isnan(x), (x == 0) & (right != 0)
    ways = [x]
    if nan.any():
        ways.append(x.masked_fill(nan, 0.0))
    if empty.any():
        ways.append(x.masked_fill(empty, math.nan))
    return tuple(ways)


def _ratio(got: Tensor, right: Tensor, output: Tensor, noise: float) -> float:
    """Distance of got from a bug's output, over the distance of that output from right."""
    size = float(right[torch.isfinite(right)].double().square().mean().sqrt())
    harm = _distance(output, right, size)
    # A bug that does no harm on these inputs cannot be their explanation.
    return math.inf if harm <= noise else _distance(got, output, size) / harm


def _distance(x: Tensor, y: Tensor, size: float) -> float:
    """Root mean square of the difference over size, plus the share of finite against not."""
    x, y = x.double(), y.double()
    both = torch.isfinite(x) & torch.isfinite(y)
    clash = float((torch.isfinite(x) != torch.isfinite(y)).double().mean())
    if not both.any():
        return clash
    return float((x - y)[both].square().mean().sqrt()) / max(size, 1e-30) + clash


def first_bad_tile(bad: Tensor, block_m: int) -> int | None:
    """The first tile of query rows that holds a wrong entry: bad (..., T, D), bool."""
    rows = bad.any(-1).reshape(-1, bad.shape[-2]).any(0).nonzero()
    return int(rows[0]) // block_m if len(rows) else None
