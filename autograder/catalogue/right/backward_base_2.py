# exercise: attention_backward
# differs: exp2 with log2(e) folded into q and lse, one head at a time

import math

import torch


def attention_backward(q, k, v, o, lse, do, query_offset=None, window=None, tile=16):
    """dq, dk, dv of causal attention, head by head, in powers of 2."""
    offset = k.shape[2] - q.shape[2] if query_offset is None else query_offset
    dq = torch.zeros(q.shape, device=q.device)
    dk, dv = (torch.zeros(x.shape, device=q.device) for x in (k, v))
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            rows = (x[b, h].float() for x in (q, o, lse, do))
            one_head(*rows, k[b, h // group].float(), v[b, h // group].float(), offset, window,
                     tile, dq[b, h], dk[b, h // group], dv[b, h // group])  # fmt: skip
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def one_head(q, o, lse, do, k, v, offset, window, tile, dq, dk, dv):
    """Add one query head's part to dq (T, D), dk and dv (S, D)."""
    scale = q.shape[1] ** -0.5
    exponent, level = q * (scale / math.log(2.0)), lse / math.log(2.0)
    delta = torch.linalg.vecdot(do, o)
    for start in range(0, k.shape[0], tile):
        part = slice(start, start + tile)
        p = torch.exp2(exponent @ k[part].T - level[:, None])
        ahead = torch.arange(start, start + p.shape[1], device=q.device)[None, :] - offset
        ahead = ahead - torch.arange(q.shape[0], device=q.device)[:, None]
        hidden = (ahead > 0) | (lse == -math.inf)[:, None]
        p[hidden if window is None else hidden | (ahead <= -window)] = 0.0
        dv[part] += p.T @ do
        ds = p * (do @ v[part].T) - p * delta[:, None]
        dq += ds @ k[part] * scale
        dk[part] += ds.T @ q * scale
