# exercise: tile_bounds
# dies by: the last query tile is short
# bug: rows_past_t


def tile_bounds(i, t, s, offset, block_m, block_n, causal=True, window=None):
    """Key tiles that query tile i must visit: (first, stop), integers; (0, 0) if none."""
    first_position = offset + i * block_m
    last_position = offset + (i + 1) * block_m - 1
    first_key = 0 if window is None else max(0, first_position - window + 1)
    last_key = min(s - 1, last_position) if causal else s - 1
    if last_position < first_position or last_key < first_key:
        return 0, 0
    return first_key // block_n, last_key // block_n + 1
