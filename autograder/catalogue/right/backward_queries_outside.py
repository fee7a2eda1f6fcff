# exercise: attention_backward
# differs: a loop over tiles of queries, with dk and dv growing

import math

import torch


def attention_backward(q, k, v, o, lse, do, query_offset=None, window=None, tile=16):
    """dq, dk, dv of causal attention, one tile of queries at a time."""
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1:3]
    offset = s - t if query_offset is None else query_offset
    keys = torch.arange(s, device=q.device)
    shared = (batch, kv_heads, q_heads // kv_heads)
    keys_of, values = k.float()[:, :, None], v.float()[:, :, None]
    dk, dv = torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
    dq = torch.empty_like(q)
    for start in range(0, t, tile):
        mine = slice(start, start + tile)
        rows, got, grad = (x[:, :, mine].float().unflatten(1, shared[1:]) for x in (q, o, do))
        level = lse[:, :, mine].unflatten(1, shared[1:])[..., None]
        place = offset + start + torch.arange(rows.shape[3], device=q.device)[:, None]
        hidden = (keys > place) | (level == -math.inf)
        if window is not None:
            hidden = hidden | (keys <= place - window)
        p = (rows @ keys_of.mT / math.sqrt(d) - level).exp().masked_fill(hidden, 0.0)
        ds = p * (grad @ values.mT - (grad * got).sum(-1, keepdim=True)) / math.sqrt(d)
        dq[:, :, mine] = (ds @ keys_of).flatten(1, 2)
        dk += (ds.mT @ rows).sum(2)
        dv += (p.mT @ grad).sum(2)
    return dq, dk.to(k.dtype), dv.to(v.dtype)
