"""The classic bugs of a FlashAttention kernel, one at a time.

`faulty_attention` is the tiled recurrence in plain PyTorch with exactly one thing wrong. It is
float64 for float64 inputs and float32 for all others, because several bugs (no maximum
subtracted, a maximum that starts at 0) only show where float32 overflows or underflows.
"""

import math
from typing import NamedTuple

import torch

FAULTS = {
    "no_max": "The running maximum is never subtracted, so exp overflows for large scores: "
    "look for exp(s - m) where p is computed.",
    "max_starts_at_zero": "m starts at 0. When every score is far below 0, exp(s - 0) is 0 and "
    "l stays 0: m must start at -inf.",
    "max_frozen": "m keeps the maximum of the first tile. A later, larger score overflows: take "
    "the maximum of the old m and of the tile in every tile.",
    "l_not_rescaled": "l is not multiplied by alpha when the maximum rises, so its old terms are "
    "measured against the old maximum: look at the line that updates l.",
    "acc_not_rescaled": "a (acc) is not multiplied by alpha when the maximum rises, so its old "
    "terms are measured against the old maximum: look at the line that updates acc.",
    "nothing_rescaled": "Neither l nor a is multiplied by alpha when the maximum rises: early "
    "tiles get far too much weight.",
    "alpha_inverted": "alpha is upside down: it is exp(m_old - m_new), at most 1, and not "
    "exp(m_new - m_old).",
    "softmax_per_tile": "Each tile has its own softmax and the results are averaged. All tiles "
    "of a row share one denominator: keep m, l and a across the loop.",
    "not_divided": "The result is not divided by l: after the last tile the output is acc / l.",
    "divided_early": "a is divided by l inside the loop, so later tiles are added to terms that "
    "are already normalised: divide once, after the last tile.",
    "scale_missing": "The scores are not divided by sqrt(D): multiply them by scale.",
    "scale_by_d": "The scores are divided by D: the scale is 1 / sqrt(D).",
    "causal_ignored": "Queries see keys of the future: hide key j unless j <= offset + i.",
    "causal_strict": "A query does not see the key at its own position: the mask needs <= where "
    "it has <.",
    "offset_ignored": "The mask counts queries from 0 and forgets the offset: query row i stands "
    "at position offset + i.",
    "bound_without_offset": "The loop over keys ends too early when the offset is not 0: the "
    "last key a query tile needs is at offset + (pid_m + 1) * BLOCK_M - 1.",
    "blocks_confused": "The end of the loop over keys is computed with BLOCK_N where BLOCK_M "
    "belongs: it shows only when the two differ.",
    "padded_keys_counted": "Keys past the end of k (the padding of the last tile) are counted "
    "with score 0: the mask needs offs_n < S.",
    "last_tile_skipped": "The last, ragged tile of keys is never visited: round the number of "
    "tiles up, not down.",
    "gqa_modulo": "Query head h reads KV head h % Hkv: neighbouring query heads share one, so it "
    "is h // group.",
    "window_off_by_one": "The window lets one key too many in: row i sees j > offset + i - W.",
    "window_ignored": "The window is ignored: hide key j unless j > offset + i - W.",
    "no_guard": "A row that has seen no key yet has m = -inf, and exp(-inf - -inf) is NaN: use 0 "
    "in place of such an m where alpha and p are computed.",
}
NO_RESCALE = {
    "l_not_rescaled": ("l",),
    "acc_not_rescaled": ("acc",),
    "nothing_rescaled": ("l", "acc"),
}
_INF = math.inf


def faulty_attention(
    fault, q, k, v, query_offset=None, *, window=None, block_m=16, block_n=16, skip=True
):
    """Causal attention with one bug of `FAULTS`: q (B, Hq, T, D), k and v (B, Hkv, S, D).

    Returns o like q, in float64 for float64 inputs and in float32 otherwise. Rows may be NaN
    where the bug makes them so. skip says whether tiles before the window are skipped.
    ValueError for an unknown fault.
    """
    _known(fault)
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k, v = q.to(work), k.to(work), v.to(work)
    t, s = q.shape[2], k.shape[2]
    offset = s - t if query_offset is None else query_offset
    if window is not None:
        window = {"window_ignored": None, "window_off_by_one": window + 1}.get(fault, window)
    q = q * _scale(fault, q.shape[3])
    problem = _Problem(fault, s, offset, window, block_m, block_n, skip)
    k, v = (_padded(_spread(fault, x, q.shape[1]), block_n) for x in (k, v))
    tiles = [_query_tile(problem, i, q[:, :, i : i + block_m], k, v) for i in range(0, t, block_m)]
    return torch.cat(tiles, dim=2) if tiles else torch.empty_like(q)


def faulty_update(fault, m, l, a, scores, values):
    """One step of the recurrence with one bug: the shapes of `flashkit.online.update`."""
    _known(fault)
    if fault == "max_starts_at_zero":
        m = m.clamp(min=0)
    return _step(fault, m, l, a, scores, values)


def faulty_merge(fault, a, b):
    """Two partial results (m, l, acc) merged with one bug, as another such triple."""
    _known(fault)
    m = torch.maximum(a[0], b[0])
    m = {"no_max": torch.zeros_like(m), "max_starts_at_zero": m.clamp(min=0)}.get(fault, m)
    safe = m if fault == "no_guard" else torch.where(m == -_INF, 0.0, m)
    l, acc = torch.zeros_like(a[1]), torch.zeros_like(a[2])
    for part_m, part_l, part_acc in (a, b):
        weight = torch.exp(part_m) if fault == "no_max" else _alpha(fault, part_m, safe)
        l = l + _rescaled(fault, "l", part_l, weight)
        acc = acc + _rescaled(fault, "acc", part_acc, weight[..., None])
    return m, l, acc


class _Problem(NamedTuple):
    """What the tiles of one call share."""

    fault: str
    s: int
    offset: int
    window: int | None
    block_m: int
    block_n: int
    skip: bool


def _known(fault):
    if fault not in FAULTS:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}, got {fault!r}")


def _scale(fault, d):
    return {"scale_missing": 1.0, "scale_by_d": 1.0 / d}.get(fault, 1.0 / math.sqrt(d))


def _spread(fault, x, q_heads):
    """One KV head per query head: h // group, or the bug h % Hkv."""
    heads = torch.arange(q_heads, device=x.device)
    kv_heads = x.shape[1]
    return x[:, heads % kv_heads if fault == "gqa_modulo" else heads // (q_heads // kv_heads)]


def _padded(x, block_n):
    """Zeros up to a whole number of tiles, as a masked load gives them."""
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[2] % block_n))


def _query_tile(problem, first, q, k, v):
    """The output of the query rows from `first` on, q (B, Hq, M, D)."""
    fault, shape = problem.fault, q.shape[:-1]
    start_at = 0.0 if fault in ("no_max", "max_starts_at_zero") else -_INF
    m, l, acc = q.new_full(shape, start_at), q.new_zeros(shape), q.new_zeros(shape + v.shape[-1:])
    rows = torch.arange(first, first + shape[-1], device=q.device)[:, None]
    for start in range(*_key_range(problem, first), problem.block_n):
        keys = slice(start, start + problem.block_n)
        columns = torch.arange(start, start + problem.block_n, device=q.device)[None, :]
        scores = (q @ k[:, :, keys].mT).masked_fill(~_visible(problem, rows, columns), -_INF)
        m, l, acc = _step(fault, m, l, acc, scores, v[:, :, keys])
    return acc if fault in ("not_divided", "divided_early") else acc / l[..., None]


def _key_range(problem, first):
    """First key of the first tile, and the end of the loop over keys."""
    fault, s, offset, window, block_m, block_n, skip = problem
    low = 0 if window is None or not skip else max(0, offset + first - window + 1)
    end = {
        "causal_ignored": s,
        "bound_without_offset": first + block_m,
        "blocks_confused": offset + (first // block_m + 1) * block_n,
    }.get(fault, offset + first + block_m)
    limit = s // block_n * block_n if fault == "last_tile_skipped" else s
    return low // block_n * block_n, max(0, min(end, limit))


def _visible(problem, rows, columns):
    fault = problem.fault
    position = rows if fault == "offset_ignored" else rows + problem.offset
    seen = columns < position if fault == "causal_strict" else columns <= position
    if fault == "causal_ignored":
        seen = torch.ones_like(seen)
    if problem.window is not None:
        seen = seen & (columns > position - problem.window)
    return seen if fault == "padded_keys_counted" else seen & (columns < problem.s)


def _step(fault, m, l, acc, scores, values):
    """One tile: m, l (...), acc (..., D), scores (..., N), values (..., N, D)."""
    if fault == "softmax_per_tile":
        return _own_softmax(m, l, acc, scores, values)
    top = scores.amax(-1)
    m_new = torch.maximum(m, top)
    if fault == "max_frozen":
        m_new = torch.where(m == -_INF, top, m)
    if fault == "no_max":
        m_new = torch.zeros_like(m)
    safe = m_new if fault == "no_guard" else torch.where(m_new == -_INF, 0.0, m_new)
    alpha, p = _alpha(fault, m, safe), torch.exp(scores - safe[..., None])
    l = _rescaled(fault, "l", l, alpha) + p.sum(-1)
    acc = _rescaled(fault, "acc", acc, alpha[..., None]) + p @ values
    if fault == "divided_early":
        acc = torch.where(l[..., None] > 0, acc / l[..., None], acc)
    return m_new, l, acc


def _own_softmax(m, l, acc, scores, values):
    """The bug of a softmax per tile: l counts the tiles, so that acc / l is their average."""
    seen = scores.amax(-1) > -_INF
    share = torch.softmax(scores, -1).nan_to_num(0.0) @ values
    return m, l + seen.to(l.dtype), acc + torch.where(seen[..., None], share, 0.0)


def _alpha(fault, m, safe):
    if fault == "alpha_inverted":
        # Nothing has been seen where m is -inf: 0 there keeps the bug from hiding behind NaN.
        return torch.where(m == -_INF, 0.0, torch.exp(safe - m))
    if fault == "no_max":
        return torch.where(m == -_INF, 0.0, torch.ones_like(m))
    return torch.exp(m - safe)


def _rescaled(fault, name, value, alpha):
    return value if name in NO_RESCALE.get(fault, ()) else alpha * value
