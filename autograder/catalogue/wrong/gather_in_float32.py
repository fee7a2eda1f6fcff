# exercise: gather_pages
# dies by: float16, free rows full of infinity
# bug: output_dtype

import torch


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    size = pages.shape[1]
    keys = torch.arange(length, device=pages.device)
    page = block_table[keys // size].long()
    return pages[page, keys % size].transpose(0, 1).float()
