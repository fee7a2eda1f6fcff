# exercise: paged_decode
# differs: a part for each page in base 2, merged from the last

import math

import torch


def part(rows, k, v):
    """m, l and a of one page alone, in base 2."""
    s = rows @ k.mT
    m = s.amax(-1, keepdim=True)
    p = torch.exp2(s - m)
    return m, p.sum(-1, keepdim=True), p @ v


def paged_decode(q, k_pages, v_pages, block_table, lengths):
    """o (B, Hq, 1, D) of one query a sequence. Shapes as in the table."""
    _, size, kv_heads, d = k_pages.shape
    o = torch.zeros_like(q)
    for b in range(len(q)):
        length = int(lengths[b])
        rows = q[b].float().reshape(kv_heads, -1, d) * (math.log2(math.e) / math.sqrt(d))
        parts = []
        for i in reversed(range(-(-length // size))):
            n = min(size, length - i * size)
            k = k_pages[block_table[b, i]][:n].transpose(0, 1).float()
            v = v_pages[block_table[b, i]][:n].transpose(0, 1).float()
            parts.append(part(rows, k, v))
        if not parts:
            continue
        m = torch.stack([x[0] for x in parts]).amax(0)
        weights = [torch.exp2(x[0] - m) for x in parts]
        l = sum(w * x[1] for w, x in zip(weights, parts, strict=True))
        a = sum(w * x[2] for w, x in zip(weights, parts, strict=True))
        o[b] = (a / l).reshape(-1, 1, d).to(q.dtype)
    return o
