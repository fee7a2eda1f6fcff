# exercise: gather_pages
# differs: a loop over the keys in place of an index

import torch


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    _, size, heads, d = pages.shape
    k = torch.empty(heads, length, d, dtype=pages.dtype, device=pages.device)
    for i in range(length):
        k[:, i] = pages[int(block_table[i // size]), i % size]
    return k
