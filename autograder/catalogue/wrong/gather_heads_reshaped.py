# exercise: gather_pages
# dies by: whole pages, two heads
# bug: heads_not_transposed

import torch


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    size = pages.shape[1]
    keys = torch.arange(length, device=pages.device)
    page = block_table[keys // size].long()
    return pages[page, keys % size].reshape(pages.shape[2], length, -1)
