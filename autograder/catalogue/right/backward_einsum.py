# exercise: attention_backward
# differs: einsum over grouped heads, and delta taken from p and dp in a pass of its own

import math

import torch


def attention_backward(q, k, v, o, lse, do, query_offset=None, window=None, tile=16):
    """dq, dk, dv of causal attention, in two passes over tiles of keys."""
    t, d = q.shape[2:]
    heads, s = k.shape[1:3]
    offset = s - t if query_offset is None else query_offset
    q_, do_ = (x.float().unflatten(1, (heads, -1)) for x in (q, do))
    lse_ = lse.unflatten(1, (heads, -1))[..., None]
    far = (offset + torch.arange(t, device=q.device))[:, None]

    def tiles():
        for start in range(0, s, tile):
            part = slice(start, min(s, start + tile))
            back = far - torch.arange(part.start, part.stop, device=q.device)
            seen = (back >= 0) & (back < (math.inf if window is None else window))
            k_, v_ = k[:, :, part].float(), v[:, :, part].float()
            scores = torch.einsum("bhgtd,bhsd->bhgts", q_, k_) / math.sqrt(d)
            p = torch.where(seen & (lse_ > -math.inf), torch.exp(scores - lse_), 0.0)
            yield part, k_, p, torch.einsum("bhgtd,bhsd->bhgts", do_, v_)

    delta = torch.zeros_like(lse_)
    for _, _, p, dp in tiles():
        delta += (p * dp).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros_like(q_), torch.zeros_like(k), torch.zeros_like(v)
    for part, k_, p, dp in tiles():
        ds = p * (dp - delta) / math.sqrt(d)
        dv[:, :, part] = torch.einsum("bhgts,bhgtd->bhsd", p, do_).to(v.dtype)
        dk[:, :, part] = torch.einsum("bhgts,bhgtd->bhsd", ds, q_).to(k.dtype)
        dq += torch.einsum("bhgts,bhsd->bhgtd", ds, k_)
    return dq.flatten(1, 2).to(q.dtype), dk, dv
