# exercise: gather_pages
# differs: whole pages side by side, cut at the end

import torch


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    used = -(-length // pages.shape[1])
    rows = pages.index_select(0, block_table[:used].long()).flatten(0, 1)
    return torch.transpose(rows[:length], 0, 1)
