# exercise: backward_parts
# dies by: p, scores far below 0
# bug: mask_before_exp

import math

import torch


def backward_parts(q, k, v, o, lse, do):
    """The parts of the gradient of causal attention, for one head, by name."""
    t, d = q.shape
    s = k.shape[0]
    scale = 1.0 / math.sqrt(d)
    rows = torch.arange(s - t, s, device=q.device)[:, None]
    seen = torch.arange(s, device=q.device)[None, :] <= rows
    scores = torch.where(seen, scale * q @ k.T, 0.0)
    p = torch.exp(scores - lse[:, None])
    dv = p.T @ do
    delta = (do * o).sum(-1)
    dp = do @ v.T
    ds = p * (dp - delta[:, None])
    dq = scale * ds @ k
    dk = scale * ds.T @ q
    return {"p": p, "dv": dv, "delta": delta, "ds": ds, "dq": dq, "dk": dk}
