"""The gradient of attention with exactly one thing wrong, in plain PyTorch.

As with `recipe.Recipe`, every default of `Steps` is right and a bug changes one of them. The whole
T x S matrix is held here: what a bug does tile by tile is told by the keys that count.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit.faults.recipe import INF, same, spread

LN2 = math.log(2.0)


class Setting(NamedTuple):
    """What one call is about; given is the query_offset argument, offset what it means."""

    t: int
    s: int
    given: int | None
    offset: int


def _folded(x: Tensor, kv_heads: int) -> Tensor:
    """x (B, Hq, S, D) summed over the query heads of each KV head."""
    return x.unflatten(1, (kv_heads, -1)).sum(2)


def _hidden(raw: Tensor, s: Tensor, lse: Tensor, seen: Tensor) -> Tensor:
    """p: 0 where a query does not see the key."""
    return torch.where(seen & (lse > -INF), raw, 0.0)


@dataclass(frozen=True)
class Steps:
    """How each part is computed. s, p, dp, ds (B, Hq, T, S), lse and delta (B, Hq, T, 1)."""

    spread: Callable[[Tensor, int], Tensor] = spread
    fold: Callable[[Tensor, int], Tensor] = _folded
    scale: Callable[[int], float] = lambda d: d**-0.5
    offset: Callable[[Setting], int] = lambda call: call.offset
    ahead: float = 0  # keys of the future that are seen
    window: Callable[[int], int | None] = same
    window_offset: Callable[[Setting], int] = lambda call: call.offset
    weights: Callable[[Tensor, Tensor, int], Tensor] = lambda s, lse, tile: torch.exp(s - lse)
    hide: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _hidden
    delta: Callable[..., Tensor] = lambda do, o, p, dp: (do * o).sum(-1, keepdim=True)
    ds: Callable[..., Tensor] = lambda p, dp, delta, raw: p * (dp - delta)
    dv_of: Callable[[Tensor, Tensor], Tensor] = lambda p, ds: p
    dq_factor: Callable[[float], float] = same
    dk_factor: Callable[[float], float] = same
    keys: Callable[[int, int], range] = lambda s, tile: range(s)  # that the loop visits
    dq_keys: Callable[[int, int], range] = lambda s, tile: range(s)  # whose share dq keeps


def gradients(
    steps: Steps, q, k, v, o, lse, do, query_offset=None, window=None, tile=16
) -> dict[str, Tensor]:
    """p, dv, delta, ds, dq, dk: float64 for float64 inputs, else float32; delta (B, Hq, T).

    q, o, do (B, Hq, T, D); k, v (B, Hkv, S, D); lse (B, Hq, T). dv and dk are like v and k.
    """
    t, s, d, heads = q.shape[2], k.shape[2], q.shape[3], k.shape[1]
    call = Setting(t, s, query_offset, s - t if query_offset is None else query_offset)
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, o, do, lse = (x.to(work) for x in (q, o, do, lse[..., None]))
    k, v = (steps.spread(x.to(work), q.shape[1]) for x in (k, v))
    scores = steps.scale(d) * (q @ k.mT)
    raw = steps.weights(scores, lse, tile)
    p = steps.hide(raw, scores, lse, _seen(steps, call, window)) * _kept(steps.keys(s, tile), s)
    dp = do @ v.mT
    delta = steps.delta(do, o, p, dp)
    ds = steps.ds(p, dp, delta, raw)
    scale = d**-0.5
    dq = steps.dq_factor(scale) * (ds * _kept(steps.dq_keys(s, tile), s)) @ k
    dk = steps.fold(steps.dk_factor(scale) * ds.mT @ q, heads)
    dv = steps.fold(steps.dv_of(p, ds).mT @ do, heads)
    return {"p": p, "dv": dv, "delta": delta[..., 0], "ds": ds, "dq": dq, "dk": dk}


def _seen(steps: Steps, call: Setting, window: int | None) -> Tensor:
    """What the mask lets through, (T, S)."""
    rows, key = torch.arange(call.t)[:, None], torch.arange(call.s)[None, :]
    seen = key <= rows + (steps.offset(call) + steps.ahead)
    window = window and steps.window(window)
    return seen if window is None else seen & (key > rows + (steps.window_offset(call) - window))


def _kept(keys: range, s: int) -> Tensor:
    """1 for the keys in the range and 0 for the others, (S,)."""
    kept = torch.zeros(s)
    kept[keys.start : keys.stop] = 1.0
    return kept


def faulty_backward(fault, *inputs, variant=0, **options) -> dict[str, Tensor]:
    """`gradients` with one bug of `GRADIENTS`. ValueError for another bug."""
    if fault not in GRADIENTS:
        raise ValueError(f"fault must be one of {', '.join(GRADIENTS)}, got {fault!r}")
    return gradients(GRADIENTS[fault][variant], *inputs, **options)


def _modulo(x: Tensor, q_heads: int) -> Tensor:
    return x[:, torch.arange(q_heads) % x.shape[1]]


def _folded_across(x: Tensor, kv_heads: int) -> Tensor:
    return x.unflatten(1, (-1, kv_heads)).sum(1)


def _one_of_group(which: int):
    return lambda x, kv_heads: x.unflatten(1, (kv_heads, -1))[:, :, which]


def _per_tile(s: Tensor, lse: Tensor, tile: int) -> Tensor:
    return torch.cat([x.softmax(-1) for x in s.split(tile, -1)], -1)


def _as_score(hidden: float):
    """The mask put on the scores, before the exponent."""

    def hide(raw, s, lse, seen):
        return torch.where(seen, raw, torch.exp(hidden - lse))

    return hide


def _displaced(offset: Callable[[Setting], int]) -> tuple[Steps, ...]:
    """Queries in another place, for the window too or for causality alone."""
    return Steps(offset=offset, window_offset=offset), Steps(offset=offset)


def _last_tile(s: int, tile: int) -> range:
    return range((s - 1) // tile * tile, s)


RIGHT = Steps()
GRADIENTS: dict[str, tuple[Steps, ...]] = {
    "scale_missing": (Steps(scale=lambda d: 1.0),),
    "lse_base_mixed": (
        Steps(weights=lambda s, lse, tile: torch.exp2(s - lse)),
        Steps(weights=lambda s, lse, tile: torch.exp(s - lse / LN2)),
        Steps(weights=lambda s, lse, tile: torch.exp2(s / LN2 - lse)),
    ),
    "lse_not_used": (
        Steps(weights=lambda s, lse, tile: torch.exp(s - s.amax(-1, keepdim=True))),
        Steps(weights=lambda s, lse, tile: torch.exp(s)),
    ),
    "softmax_per_tile": (Steps(weights=_per_tile),),
    "causal_ignored": (Steps(ahead=INF),),
    "causal_strict": (Steps(ahead=-1),),
    "offset_ignored": _displaced(lambda call: 0),
    "causal_top_left": _displaced(lambda call: call.given or 0),
    "query_offset_ignored": _displaced(lambda call: call.s - call.t),
    "window_ignored": (Steps(window=lambda w: None),),
    "window_off_by_one": (Steps(window=lambda w: w + 1),),
    "window_one_short": (Steps(window=lambda w: w - 1),),
    "window_without_offset": (Steps(window_offset=lambda call: 0),),
    "mask_before_exp": (Steps(hide=_as_score(0.0)),),
    "lse_unguarded": (Steps(hide=_as_score(-INF)),),
    "ds_not_masked": (Steps(ds=lambda p, dp, delta, raw: raw * (dp - delta)),),
    "delta_forgotten": (Steps(delta=lambda do, o, p, dp: torch.zeros_like(do[..., :1])),),
    "delta_of_others": (
        Steps(delta=lambda do, o, p, dp: p.sum(-1, keepdim=True)),
        Steps(delta=lambda do, o, p, dp: dp.sum(-1, keepdim=True)),
        Steps(delta=lambda do, o, p, dp: dp.mean(-1, keepdim=True)),
        Steps(delta=lambda do, o, p, dp: (do * o).mean(-1, keepdim=True)),
        Steps(delta=lambda do, o, p, dp: (o * o).sum(-1, keepdim=True)),
    ),
    "delta_added": (
        Steps(ds=lambda p, dp, delta, raw: p * (dp + delta)),
        Steps(delta=lambda do, o, p, dp: -(do * o).sum(-1, keepdim=True)),
    ),
    "ds_without_p": (
        Steps(ds=lambda p, dp, delta, raw: torch.where(p > 0, dp - delta, 0.0)),
        Steps(ds=lambda p, dp, delta, raw: dp - delta),
    ),
    "dv_from_ds": (Steps(dv_of=lambda p, ds: ds),),
    "grad_scale_missing": (
        Steps(dq_factor=lambda scale: 1.0, dk_factor=lambda scale: 1.0),
        Steps(dq_factor=lambda scale: 1.0),
        Steps(dk_factor=lambda scale: 1.0),
    ),
    "grad_scale_twice": (
        Steps(dq_factor=lambda scale: scale**2, dk_factor=lambda scale: scale**2),
        Steps(dq_factor=lambda scale: scale**2),
        Steps(dk_factor=lambda scale: scale**2),
    ),
    "gqa_modulo": (Steps(spread=_modulo, fold=_folded_across), Steps(spread=_modulo)),
    "group_transposed": (Steps(fold=_folded_across),),
    "group_not_summed": (
        Steps(fold=_one_of_group(-1)),
        Steps(fold=_one_of_group(0)),
        Steps(fold=lambda x, kv_heads: x.unflatten(1, (kv_heads, -1)).mean(2)),
    ),
    "last_tile_skipped": (Steps(keys=lambda s, tile: range(s // tile * tile)),),
    "dq_overwritten": (Steps(dq_keys=_last_tile),),
}
"""By bug; the sentences are those of FAULTS."""
