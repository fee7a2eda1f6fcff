# exercise: gather_pages
# dies by: whole pages, two heads
# bug: table_ignored

import torch


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    size = pages.shape[1]
    keys = torch.arange(length, device=pages.device)
    page = keys // size
    return pages[page, keys % size].transpose(0, 1)
