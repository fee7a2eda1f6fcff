# exercise: attention_backward
# dies by: T = S, several tiles
# bug: grad_scale_twice

import math

import torch


def attention_backward(q, k, v, o, lse, do, query_offset=None, window=None, tile=16):
    """dq, dk, dv of causal attention, one tile of keys at a time. Shapes as in the table."""
    q_heads, t, d = q.shape[1:]
    kv_heads, s = k.shape[1:3]
    group, scale = q_heads // kv_heads, 1.0 / math.sqrt(d)
    offset = s - t if query_offset is None else query_offset
    rows = offset + torch.arange(t, device=q.device)[:, None]
    lse, queries, grad = lse[..., None], scale * q.float(), do.float()
    delta = (grad * o.float()).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros_like(queries), torch.empty_like(k), torch.empty_like(v)
    for start in range(0, s, tile):
        part = slice(start, min(start + tile, s))
        keys = torch.arange(part.start, part.stop, device=q.device)[None, :]
        seen = keys <= rows
        if window is not None:
            seen = seen & (keys > rows - window)
        k_tile = k[:, :, part].float().repeat_interleave(group, dim=1)
        v_tile = v[:, :, part].float().repeat_interleave(group, dim=1)
        p = torch.exp(queries @ k_tile.mT - lse)
        p = torch.where(seen & (lse > -torch.inf), p, 0.0)
        ds = p * (grad @ v_tile.mT - delta)
        dq += scale * ds @ k_tile
        dk[:, :, part] = (scale * ds.mT @ queries).unflatten(1, (kv_heads, group)).sum(2)
        dv[:, :, part] = (p.mT @ grad).unflatten(1, (kv_heads, group)).sum(2)
    return dq.to(q.dtype), dk, dv
