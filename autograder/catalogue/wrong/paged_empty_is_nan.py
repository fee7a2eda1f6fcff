# exercise: paged_decode
# dies by: a sequence without keys
# bug: no_guard

import math

import torch


def paged_decode(q, k_pages, v_pages, block_table, lengths):
    """o (B, Hq, 1, D) of one query a sequence, one page at a time. Shapes as in the table."""
    size, kv_heads, d = k_pages.shape[1:]
    o = torch.zeros_like(q)
    for b, length in enumerate(lengths.tolist()):
        rows = q[b].float().reshape(kv_heads, -1, d) / math.sqrt(d)
        m = torch.full((*rows.shape[:2], 1), -math.inf, device=q.device)
        l, acc = torch.zeros_like(m), torch.zeros_like(rows)
        for start in range(0, length, size):
            page, n = block_table[b, start // size], min(size, length - start)
            k, v = (x[page, :n].float().transpose(0, 1) for x in (k_pages, v_pages))
            s = rows @ k.mT
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            alpha, p = torch.exp(m - m_new), torch.exp(s - m_new)
            l = alpha * l + p.sum(-1, keepdim=True)
            acc = alpha * acc + p @ v
            m = m_new
        o[b] = (acc / l).reshape(-1, 1, d)
    return o
