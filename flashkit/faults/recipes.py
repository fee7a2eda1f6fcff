"""The recipe, or the several recipes, of each bug: one thing is changed in each."""

import math

import torch

from flashkit.faults.changes import (
    base,
    before_diagonal,
    below,
    divided,
    frozen,
    half_p,
    halves,
    inverted,
    no_start,
    over_rows,
    overwritten,
    own_positions,
    raw_end,
    start_of_last_row,
    start_rounded_up,
    twice,
    unscaled,
    zero,
)
from flashkit.faults.reading import (
    batch_as_head,
    batch_zero,
    contiguous_strides,
    heads,
    restrided,
    rows_of_width_d,
    unmasked,
    written_with_strides_of_q,
)
from flashkit.faults.recipe import INF, Recipe, alpha, end_of_keys, weights

LN2 = math.log(2.0)
UNWRITTEN = (math.nan, 0.0)
"""What rows hold that nobody wrote: poison, or fresh memory."""
ANYTHING = math.inf

RECIPES: dict[str, tuple[Recipe, ...]] = {
    "no_max": (Recipe(first_m=0.0, maximum=zero, alpha=unscaled),),
    "max_starts_at_zero": (Recipe(first_m=0.0),),
    "max_frozen": (Recipe(maximum=frozen),),
    "max_of_tile_alone": (
        Recipe(maximum=lambda old, top: top),
        Recipe(maximum=lambda old, top: top, guard=False),
    ),
    "last_tile_only": (
        Recipe(l_alpha=overwritten, acc_alpha=overwritten),
        Recipe(kept=lambda old, new: old),
    ),
    "max_over_rows": (Recipe(top=over_rows),),
    "max_over_hidden": (Recipe(top=lambda scores, raw: raw.amax(-1)),),
    "l_not_rescaled": (Recipe(l_alpha=torch.ones_like),),
    "acc_not_rescaled": (Recipe(acc_alpha=torch.ones_like),),
    "nothing_rescaled": (Recipe(l_alpha=torch.ones_like, acc_alpha=torch.ones_like),),
    "alpha_inverted": (Recipe(alpha=inverted),),
    "alpha_on_new_terms": (
        Recipe(l_alpha=torch.ones_like, acc_alpha=torch.ones_like, p_factor=lambda a: a),
    ),
    "alpha_twice": tuple(
        Recipe(**dict.fromkeys(names, torch.square))
        for names in (("l_alpha", "acc_alpha"), ("l_alpha",), ("acc_alpha",))
    ),
    "base_mixed": (
        Recipe(scale=lambda d: LN2 * d**-0.5),
        Recipe(alpha=base(LN2, alpha)),
        Recipe(alpha=base(1 / LN2, alpha)),
        Recipe(weights=base(LN2, weights)),
        Recipe(weights=base(1 / LN2, weights)),
        Recipe(scale=lambda d: d**-0.5 / LN2),
    ),
    "l_takes_max": (Recipe(l_of=lambda p, raw_p: p.amax(-1)),),
    "l_of_last_tile": (Recipe(l_alpha=overwritten),),
    "acc_of_last_tile": (Recipe(acc_alpha=overwritten),),
    "l_counts_hidden": (Recipe(l_of=lambda p, raw_p: raw_p.sum(-1)),),
    "softmax_per_tile": (Recipe(own_softmax=True),),
    "not_divided": (Recipe(finish=lambda acc, l: acc),),
    "divided_early": (
        Recipe(after=divided, finish=lambda acc, l: acc),
        Recipe(after=divided),
    ),
    "divided_twice": (Recipe(finish=lambda acc, l: acc / l[..., None] ** 2),),
    "scale_missing": (Recipe(scale=lambda d: 1.0),),
    "scale_by_d": (Recipe(scale=lambda d: 1.0 / d),),
    "scale_inverted": (Recipe(scale=lambda d: d**0.5),),
    "scale_of_one_width": tuple(
        Recipe(scale=lambda d, width=width: width**-0.5) for width in (16, 32, 64, 128)
    ),
    "causal_ignored": (Recipe(ahead=INF, end=raw_end), Recipe(ahead=INF)),
    "causal_strict": (Recipe(ahead=-1),),
    "causal_one_ahead": (Recipe(ahead=1), Recipe(ahead=1, end=raw_end)),
    "finite_sentinel": tuple(
        Recipe(hidden=value, end=end, exact=(False, exact))
        for value in (0.0, -1.0, -10.0, -100.0, -1e4, -1e6, -1e9)
        for end, exact in ((end_of_keys, False), (end_of_keys, True), (raw_end, False))
    ),
    "offset_ignored": (Recipe(offset=lambda call: 0),),
    "query_offset_ignored": (
        Recipe(offset=lambda call: call.s - call.t, end=raw_end),
        Recipe(
            offset=lambda call: call.s - call.t,
            end=lambda call, first: min(call.s - call.t + first + call.block_m, call.s),
        ),
    ),
    "causal_top_left": (Recipe(offset=lambda call: call.given or 0),),
    "offset_reversed": (Recipe(offset=lambda call: -call.offset, end=raw_end),),
    "padded_keys_counted": (Recipe(sees_padding=True),),
    "window_off_by_one": (
        Recipe(window=lambda w: w + 1),
        Recipe(window=lambda w: w + 1, first_key=no_start),
    ),
    "window_one_short": (Recipe(window=lambda w: w - 1),),
    "window_ignored": (
        Recipe(window=lambda w: None, first_key=no_start),
        Recipe(window=lambda w: None),
        Recipe(window=lambda w: None, exact=(True, False)),
    ),
    "window_without_offset": (
        Recipe(window_offset=lambda call: 0),
        Recipe(window_offset=lambda call: 0, first_key=no_start),
    ),
    "no_guard": (Recipe(guard=False), Recipe(finish=lambda acc, l: acc / l[..., None])),
    "bound_without_offset": (Recipe(end=lambda call, first: min(first + call.block_m, call.s)),),
    "bound_of_first_row": tuple(
        Recipe(end=lambda call, first: min(call.offset + first + 1, call.s), exact=(False, exact))
        for exact in (False, True)
    ),
    "blocks_confused": (
        Recipe(
            end=lambda call, first: min(
                call.offset + (first // call.block_m + 1) * call.block_n, call.s
            )
        ),
    ),
    "diagonal_tile_skipped": tuple(
        Recipe(end=end, exact=(False, exact))
        for end in (below, before_diagonal)
        for exact in (False, True)
    ),
    "last_tile_skipped": (
        Recipe(
            end=lambda call, first: min(
                end_of_keys(call, first), call.s // call.block_n * call.block_n
            )
        ),
    ),
    "first_tile_skipped": (Recipe(tiles=lambda tiles: tiles[1:]),),
    "only_first_tile": (Recipe(tiles=lambda tiles: tiles[:1]),),
    "tile_counted_twice": (Recipe(tiles=twice(0)), Recipe(tiles=twice(-1))),
    "k_not_advanced": (Recipe(k_tile=lambda start: 0),),
    "v_not_advanced": (Recipe(v_tile=lambda start: 0),),
    "window_first_tile_late": (Recipe(first_key=start_rounded_up),),
    "window_start_of_last_row": (
        Recipe(first_key=start_of_last_row),
        Recipe(first_key=start_of_last_row, exact=(True, False)),
    ),
    "gqa_modulo": (Recipe(read=heads(lambda h, hq, hkv: h % hkv)),),
    "gqa_ignored": (
        Recipe(read=heads(lambda h, hq, hkv: h)),
        Recipe(read=heads(lambda h, hq, hkv: h.clamp(max=hkv - 1))),
    ),
    "gqa_first_head": (Recipe(read=heads(lambda h, hq, hkv: 0 * h)),),
    "batch_ignored": tuple(Recipe(read=batch_zero(names)) for names in ("kv", "k", "v", "qkv")),
    "group_power_of_two": (
        Recipe(read=heads(lambda h, hq, hkv: h // halves(hq // hkv))),
        Recipe(read=heads(lambda h, hq, hkv: h // (2 * halves(max(1, hq // hkv - 1))))),
    ),
    "batch_and_head_swapped": (
        Recipe(read=restrided(k=lambda q, k, v: batch_as_head(k))),
        Recipe(read=restrided(v=lambda q, k, v: batch_as_head(v))),
        Recipe(
            read=restrided(k=lambda q, k, v: batch_as_head(k), v=lambda q, k, v: batch_as_head(v))
        ),
    ),
    "strides_assumed": (
        Recipe(read=restrided(v=lambda q, k, v: k.stride())),
        Recipe(read=restrided(k=lambda q, k, v: v.stride())),
        Recipe(read=restrided(q=lambda q, k, v: rows_of_width_d(q))),
        Recipe(read=restrided(k=lambda q, k, v: rows_of_width_d(k))),
        Recipe(read=restrided(v=lambda q, k, v: rows_of_width_d(v))),
        Recipe(read=restrided(q=lambda q, k, v: contiguous_strides(q))),
        Recipe(read=restrided(k=lambda q, k, v: contiguous_strides(k))),
        Recipe(read=restrided(v=lambda q, k, v: contiguous_strides(v))),
        Recipe(
            read=restrided(
                q=lambda q, k, v: contiguous_strides(q),
                k=lambda q, k, v: contiguous_strides(k),
                v=lambda q, k, v: contiguous_strides(v),
            )
        ),
        Recipe(write=written_with_strides_of_q),
    ),
    "positions_ignored": (
        Recipe(positions=own_positions("k")),
        Recipe(positions=own_positions("q")),
        Recipe(positions=own_positions("qk")),
    ),
    "k_transposed": (
        Recipe(dot_k=torch.matmul),
        Recipe(dot_k=torch.matmul, exact=(False, True)),
    ),
    "p_in_float16": (Recipe(dot_p=half_p),),
    "acc_in_float16": (Recipe(keep=lambda acc, dtype: acc.to(dtype).to(acc.dtype)),),
    "load_without_mask": (
        Recipe(read=unmasked("kv")),
        Recipe(read=unmasked("v")),
        Recipe(read=unmasked("kv"), sees_padding=True),
    ),
    "rows_not_written": tuple(
        Recipe(rows=lambda call: call.t // call.block_m * call.block_m, unwritten=value)
        for value in UNWRITTEN
    ),
    "head_width_fixed": (Recipe(columns=lambda call: min(16, call.d), unwritten=ANYTHING),),
}
"""By bug; the names and sentences are those of FAULTS. Bugs without a recipe show otherwise."""

CLASSIC = (
    *("no_max", "max_starts_at_zero", "max_frozen", "l_not_rescaled", "acc_not_rescaled"),
    *("nothing_rescaled", "alpha_inverted", "softmax_per_tile", "not_divided", "divided_early"),
    *("scale_missing", "scale_by_d", "causal_ignored", "causal_strict", "offset_ignored"),
    *("bound_without_offset", "blocks_confused", "padded_keys_counted", "last_tile_skipped"),
    *("gqa_modulo", "window_off_by_one", "window_ignored", "no_guard"),
)
"""The bugs that one call alone can tell apart."""


def variants(fault: str) -> int:
    """In how many ways the bug may be written: the recipes of a bug."""
    return len(RECIPES[fault])
