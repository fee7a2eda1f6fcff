"""What a student reads about each bug: what is wrong, where to look, what it should be."""

FAULTS = {
    # The recurrence.
    "no_max": "The running maximum is never subtracted, so exp overflows for large scores: "
    "look for exp(s - m) where p is computed.",
    "max_starts_at_zero": "m starts at 0, or padding is loaded as m = 0. When every score is far "
    "below 0, exp(s - 0) is 0 and l stays 0: m must start at -inf.",
    "max_frozen": "m keeps the maximum of the first tile. A later, larger score overflows: take "
    "the maximum of the old m and of the tile in every tile.",
    "max_of_tile_alone": "m is the maximum of the newest tile alone: it must be the larger of the "
    "old m and of that maximum.",
    "last_tile_only": "Every tile wipes out what came before it: l and acc keep their old terms, "
    "times alpha, and m is carried to the next tile.",
    "max_over_rows": "One maximum is shared by all rows of the tile, so rows with small scores "
    "underflow: reduce over the keys alone, one m for each row.",
    "max_over_hidden": "The maximum is taken before the mask, so a hidden score can push every "
    "visible weight down to 0: mask first, then take the maximum.",
    "l_not_rescaled": "l is not multiplied by alpha when the maximum rises, so its old terms are "
    "measured against the old maximum: look at the line that updates l.",
    "acc_not_rescaled": "a (acc) is not multiplied by alpha when the maximum rises, so its old "
    "terms are measured against the old maximum: look at the line that updates acc.",
    "nothing_rescaled": "Neither l nor a is multiplied by alpha when the maximum rises (or alpha "
    "is taken after m was overwritten, and is 1): early tiles get far too much weight.",
    "alpha_inverted": "alpha is upside down: it is exp(m_old - m_new), at most 1, and not "
    "exp(m_new - m_old).",
    "alpha_on_new_terms": "alpha multiplies the new tile's terms. They are already measured "
    "against the new maximum: alpha belongs on the old l and acc.",
    "alpha_twice": "The old terms are multiplied by alpha twice in one tile: once is right.",
    "base_mixed": "exp2 is used on scores that were not multiplied by log2(e), or exp and exp2 "
    "are mixed: p and alpha need one base, and exp2 needs scale * log2(e).",
    "l_takes_max": "l adds the largest weight of the tile in place of the sum of its weights: "
    "look for sum(p) over the keys.",
    "l_of_last_tile": "l is overwritten by each tile: it is alpha * l + sum(p).",
    "acc_of_last_tile": "acc is overwritten by each tile: it is alpha * acc + p @ v.",
    "l_counts_hidden": "l adds the weights of hidden keys, which acc leaves out: set hidden "
    "scores to -inf before the exponential, so that both leave them out.",
    "softmax_per_tile": "Each tile has its own softmax and the results are averaged. All tiles "
    "of a row share one denominator: keep m, l and a across the loop.",
    "not_divided": "The result is not divided by l: after the last tile the output is acc / l.",
    "divided_early": "a is divided by l inside the loop, so later tiles are added to terms that "
    "are already normalised: divide once, after the last tile.",
    "divided_twice": "The result is divided by l twice: once, after the last tile, is right.",
    # The scores.
    "scale_missing": "The scores are not divided by sqrt(D): multiply them by scale.",
    "scale_by_d": "The scores are divided by D (or scaled twice): the scale is 1 / sqrt(D), once.",
    "scale_inverted": "The scores are multiplied by sqrt(D): the scale is 1 / sqrt(D).",
    "scale_of_one_width": "The scale is a constant, right for one head dimension alone: compute "
    "1 / sqrt(D) from q.shape[-1].",
    # The mask.
    "causal_ignored": "Queries see keys of the future: hide key j unless j <= offset + i.",
    "causal_strict": "A query does not see the key at its own position: the mask needs <= where "
    "it has <.",
    "causal_one_ahead": "A query sees one key of the future: hide key j unless j <= offset + i.",
    "finite_sentinel": "Hidden scores are set to a finite number in place of -inf, so hidden "
    "keys have weight wherever nothing larger is seen.",
    "offset_ignored": "The mask counts queries from 0 and forgets the offset: query row i stands "
    "at position offset + i.",
    "query_offset_ignored": "The query_offset that was handed in is not used: S - T is only "
    "its default.",
    "causal_top_left": "Without query_offset the queries are put at position 0: the default "
    "is S - T, so that the last query sees every key.",
    "offset_reversed": "The offset has the wrong sign: query row i stands at S - T + i, not at "
    "T - S + i.",
    "padded_keys_counted": "Keys past the end of k (the padding of the last tile) are counted "
    "with score 0: the mask needs offs_n < S.",
    "window_off_by_one": "The window lets one key too many in: row i sees j > offset + i - W.",
    "window_one_short": "The window hides one key too many: row i sees j > offset + i - W, W keys "
    "with its own.",
    "window_ignored": "The window is ignored: hide key j unless j > offset + i - W.",
    "window_without_offset": "The window is counted from row i and forgets the offset: row i sees "
    "j > offset + i - W.",
    "no_guard": "A row that has seen no key has m = -inf and l = 0, so that exp(-inf - -inf) and "
    "0 / 0 are NaN: use 0 in place of such an m in alpha and p, 1 in place of such an l.",
    # The loop.
    "bound_without_offset": "The loop over keys ends too early when the offset is not 0: the "
    "last key a query tile needs is at offset + (pid_m + 1) * BLOCK_M - 1.",
    "bound_of_first_row": "The loop over keys ends where the first row of the query tile ends: "
    "its last row sees up to offset + (pid_m + 1) * BLOCK_M - 1.",
    "blocks_confused": "The end of the loop over keys is computed with BLOCK_N where BLOCK_M "
    "belongs: it shows only when the two differ.",
    "diagonal_tile_skipped": "The tile of keys on the diagonal is not visited: round the end of "
    "the loop up to a whole tile, and let the mask hide what is too new.",
    "last_tile_skipped": "The last keys are lost where they fill no whole tile or split: round "
    "the number of tiles, or of keys in a split, up.",
    "first_tile_skipped": "The first tile of keys is never visited: the loop starts one tile "
    "late.",
    "only_first_tile": "Only the first tile of keys is visited: the loop over keys must go on to "
    "the last key that a row sees.",
    "tile_counted_twice": "A tile of keys is counted twice: each key belongs to exactly one step "
    "of the loop.",
    "k_not_advanced": "The loop reads the first tile of k again and again: its addresses must "
    "move with offs_n.",
    "v_not_advanced": "The loop reads the first tile of v again and again: its addresses must "
    "move with offs_n.",
    "window_first_tile_late": "The first tile of the window is rounded up, and its keys are lost: "
    "round its first key down to a whole tile.",
    "window_start_of_last_row": "The loop starts where the last row of the query tile starts, too "
    "late for the others: its first key is offset + pid_m * BLOCK_M - W + 1.",
    "rows_past_t": "Rows past T count as queries in the last query tile: its last row is "
    "min((i + 1) * block_m, t) - 1.",
    # Addresses.
    "gqa_modulo": "Query head h reads KV head h % Hkv: neighbouring query heads share one, so it "
    "is h // group.",
    "gqa_ignored": "Query head h reads KV head h, which is there only without grouping: it is "
    "h // group.",
    "gqa_first_head": "Every query head reads KV head 0: query head h reads h // group.",
    "batch_ignored": "Every batch entry reads the keys or values of entry 0: add the batch index "
    "times its stride to the pointer.",
    "group_power_of_two": "The group of heads is taken for a power of two: h // group, with the "
    "true group, and every head of the group is stored.",
    "batch_and_head_swapped": "The strides of batch and head are exchanged: batch b and head h "
    "start at b * stride_b + h * stride_h.",
    "strides_assumed": "An address is computed from the shape, or from the strides of another "
    "tensor: each of q, k, v and o has its own stride().",
    "k_transposed": "The tile of k is multiplied as it lies, which fits only where BLOCK_N is D: "
    "the scores are tl.dot(q, tl.trans(k)).",
    "positions_ignored": "The positions that were handed in are not used: compare them, not the "
    "numbers of rows and keys.",
    "load_without_mask": "A load reads past the end of k or v: give it mask=offs_n < S and "
    "other=0.",
    "store_without_mask": "The store writes past the end of o: give it mask=offs_m < T.",
    "rows_not_written": "Some rows of o are never written, and hold what was in memory: round the "
    "number of query tiles up, one program for each.",
    "head_width_fixed": "Only the first 16 columns of the heads are used: let D follow from "
    "q.shape[-1].",
    # States and merges.
    "merge_one_side": "Only one of the two parts is rescaled to the new maximum: each gets its "
    "own weight exp(m_part - m).",
    "part_lost": "One of the parts does not reach the result: every part has its own weight.",
    "lse_in_base_2": "m is kept in powers of 2 and handed on as if it were natural: multiply it "
    "by ln 2, or use exp.",
    "empty_part_not_written": "A part without keys is never stored: write m = -inf, l = 0 and "
    "acc = 0 for it.",
    # Pages.
    "table_ignored": "The pages are read in their own order: key i of a sequence lies in page "
    "block_table[b, i // page_size].",
    "page_size_fixed": "The page size is a constant, right for one cache alone: it is "
    "pages.shape[1].",
    "heads_not_transposed": "A reshape mixes heads with rows: a page is (page size, Hkv, D), so "
    "transpose its first two axes.",
    "past_length_counted": "Rows past the sequence's length are counted: the end of its last page "
    "holds what others left there.",
    # The gradient.
    "lse_base_mixed": "The weights mix powers of 2 with the natural lse: p is exp(s - lse), all "
    "of it in base e.",
    "lse_not_used": "The lse is not subtracted, so the rows of p do not add up to 1: "
    "p is exp(s - lse), and needs no other maximum.",
    "mask_before_exp": "Hidden scores are set to a number before the exponential, which gives "
    "them a weight again: set p itself to 0 where the key is hidden.",
    "lse_unguarded": "A row that saw no key has lse = -inf, and exp(-inf + inf) is NaN: set p to "
    "0 after the exponential, also in rows without a key.",
    "ds_not_masked": "ds is computed from weights without the mask, so hidden keys get a "
    "gradient: use the masked p everywhere.",
    "delta_forgotten": "delta is left out: the weights of a row share one sum, so "
    "ds = p * (dp - delta).",
    "delta_of_others": "delta is the sum of something else: for each row it is sum(do * o) over "
    "the D columns, which equals sum(p * dp) over the keys.",
    "delta_added": "delta has the wrong sign: ds = p * (dp - delta).",
    "ds_without_p": "ds is not weighted: it is p * (dp - delta), and p is missing.",
    "dv_from_ds": "dv is made from ds: v was multiplied by p, so dv = p^T do.",
    "grad_scale_missing": "dq or dk lacks the scale: s = scale * q k^T, so both dq = scale * ds k "
    "and dk = scale * ds^T q carry it.",
    "grad_scale_twice": "dq or dk carries the scale twice (is q or ds scaled already?): each "
    "carries it once.",
    "group_transposed": "dk and dv are summed over the wrong query heads: heads h with the same "
    "h // group are neighbours, so reshape to (B, Hkv, group, S, D) and sum over the group.",
    "group_not_summed": "dk and dv must add up what all query heads of the group send to their "
    "KV head: look for the sum over the group.",
    "dq_overwritten": "dq keeps only what the last tile of keys gave it: every tile adds its "
    "part.",
    # What shows in the manner of the answer, not in its numbers.
    "p_in_float16": "The weights are rounded to float16 before the product with v: cast p to v's "
    "dtype, which may be float32.",
    "acc_in_float16": "m, l or acc is kept in the dtype of the inputs: with float16 inputs they "
    "need float32, and one cast at the end.",
    "low_precision": "The numbers are right to two or three digits only: keep m, l and acc in "
    'float32 and call tl.dot with input_precision="ieee".',
    "output_dtype": "The output has another dtype than was asked for: o has q's dtype, partial "
    "results are float32.",
    "input_changed": "The function writes into its own inputs: work on a copy, store into a new "
    "tensor.",
    "stale_output": "The answer belongs to an earlier call: compute from the tensors of this "
    "call, and cache nothing by shape.",
    "answer_varies": "The same inputs give different answers: two programs write to one place, or "
    "memory is read that nobody wrote.",
}
