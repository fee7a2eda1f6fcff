# exercise: tile_bounds
# differs: every pair of a row and a key is looked at


def tile_bounds(i, t, s, offset, block_m, block_n, causal=True, window=None):
    """Key tiles that query tile i must visit, by looking at every pair of a row and a key."""
    tiles = [
        j // block_n
        for row in range(i * block_m, min((i + 1) * block_m, t))
        for j in range(s)
        if (not causal or j <= offset + row) and (window is None or j > offset + row - window)
    ]
    return (min(tiles), max(tiles) + 1) if tiles else (0, 0)
