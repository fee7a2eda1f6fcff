# exercise: paged_decode
# differs: all keys of a sequence gathered, then one softmax

import math

import torch


def gather(pages, row, length):
    """Keys 0 to length - 1, (Hkv, length, D)."""
    used = -(-length // pages.shape[1])
    return pages[row[:used].long()].flatten(0, 1)[:length].transpose(0, 1)


def paged_decode(q, k_pages, v_pages, block_table, lengths):
    """o (B, Hq, 1, D) of one query a sequence. Shapes as in the table."""
    kv_heads, d = k_pages.shape[2:]
    o = torch.zeros_like(q)
    for b in range(q.shape[0]):
        n = int(lengths[b])
        if n == 0:
            continue
        k, v = (gather(x, block_table[b], n).float() for x in (k_pages, v_pages))
        s = q[b].float().reshape(kv_heads, -1, d) @ k.mT / math.sqrt(d)
        p = torch.exp(s - s.amax(-1, keepdim=True))
        o[b] = (p @ v / p.sum(-1, keepdim=True)).reshape(-1, 1, d).to(o.dtype)
    return o
