# exercise: gather_pages
# dies by: pages of 32
# bug: page_size_fixed

import torch


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    size = 16
    keys = torch.arange(length, device=pages.device)
    page = block_table[keys // size].long()
    return pages[page, keys % size].transpose(0, 1)
