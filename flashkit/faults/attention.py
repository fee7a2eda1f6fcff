"""Attention by tiles with exactly one thing wrong, in plain PyTorch."""

import torch
from torch import Tensor

from flashkit.faults.recipe import Call, Recipe
from flashkit.faults.states import known, step


def faulty_attention(
    fault, q, k, v, query_offset=None, *,
    window=None, block_m=16, block_n=16, skip=True, variant=0, positions=None,
):  # fmt: skip
    """Causal attention with one bug of `RECIPES`: q (B, Hq, T, D), k and v (B, Hkv, S, D).

    Returns o like q, in float64 for float64 inputs and in float32 otherwise. Rows may be NaN
    where the bug makes them so. skip says whether tiles before the window are skipped, variant
    in which of its ways the bug is written. positions are those of queries (B, T) and keys (B, S),
    by default the offset and 0 onwards. ValueError for a bug without a recipe.
    """
    recipe, given = known(fault)[variant], q
    t, s, d = q.shape[2], k.shape[2], q.shape[3]
    offset = s - t if query_offset is None else query_offset
    tiling = (window, block_m, block_n, skip)
    call = Call(t, s, d, query_offset, offset, *tiling, q.dtype, positions is None)
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows = -(-s // block_n) * block_n
    q, k, v = (x.to(work) for x in recipe.read(q, k, v, rows))
    q, k, v = (x[..., : recipe.columns(call)] for x in (q * recipe.scale(d), k, v))
    places = recipe.positions(*_places(call, positions, rows), call)
    tiles = [
        _query_tile(recipe, call, i, q[:, :, i : i + block_m], k, v, places)
        for i in range(0, t, block_m)
    ]
    o = torch.cat(tiles, dim=2) if tiles else torch.empty_like(q)
    o = torch.nn.functional.pad(o, (0, d - o.shape[3]), value=recipe.unwritten)
    o[:, :, recipe.rows(call) :] = recipe.unwritten
    return recipe.write(given, o)


def _places(call: Call, positions, rows: int) -> tuple[Tensor, Tensor]:
    """Positions of the queries (B or 1, T) and of the keys with their padding (B or 1, rows)."""
    if positions is None:
        return call.offset + torch.arange(call.t)[None], torch.arange(rows)[None]
    pad = (0, rows - call.s)
    return positions[0], torch.nn.functional.pad(positions[1], pad, value=2**31)


def _query_tile(recipe: Recipe, call: Call, first: int, q, k, v, places) -> Tensor:
    """The output of the query rows from `first` on, q (B, Hq, M, D)."""
    shape = q.shape[:-1]
    m, l = q.new_full(shape, recipe.first_m), q.new_zeros(shape)
    acc = q.new_zeros(shape + v.shape[-1:])
    position = places[0][:, None, first : first + shape[-1], None].to(q.device)
    low, end = recipe.first_key(call, first), recipe.end(call, first)
    for start in recipe.tiles(_tiles(call, low, end)):
        columns = torch.arange(start, start + call.block_n, device=q.device)[None, :]
        key = places[1][:, None, None, start : start + call.block_n].to(q.device)
        read = _read(recipe, columns, low, min(end, call.offset + call.t))
        k_at, v_at = recipe.k_tile(start), recipe.v_tile(start)
        raw = recipe.dot_k(q, k[:, :, k_at : k_at + call.block_n] * read)
        seen = _visible(recipe, call, position, key, columns) & (read[:, 0] > 0)
        scores = raw.masked_fill(~seen, recipe.hidden)
        m, l, acc = step(
            recipe, m, l, acc, scores, v[:, :, v_at : v_at + call.block_n] * read, raw
        )
        acc = recipe.keep(acc, call.dtype)
    return recipe.finish(acc, l)


def _tiles(call: Call, low: int, end: int) -> list[int]:
    """The first keys of the tiles that the loop visits."""
    start = low // call.block_n * call.block_n
    return list(range(start, max(0, min(end, call.s)), call.block_n))


def _read(recipe: Recipe, columns: Tensor, low: int, end: int) -> Tensor:
    """1 for the keys of a tile that are loaded and 0 for the others, (N, 1)."""
    from_low, to_end = recipe.exact
    kept = torch.ones_like(columns, dtype=torch.bool)
    kept = kept & (columns >= low) if from_low else kept
    return (kept & (columns < end) if to_end else kept).float().mT


def _visible(recipe: Recipe, call: Call, position, key, columns: Tensor) -> Tensor:
    """What the mask lets through: position (B, 1, M, 1), key (B, 1, 1, N), columns (1, N)."""
    seen = key <= position + (recipe.offset(call) - call.offset + recipe.ahead)
    window = call.window and recipe.window(call.window)
    if window is not None:
        seen = seen & (key > position + (recipe.window_offset(call) - call.offset - window))
    return seen if recipe.sees_padding else seen & (columns < call.s)
