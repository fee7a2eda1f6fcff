# exercise: backward_parts
# dies by: dk, T = S, 64 columns
# bug: none

import math

import torch


def backward_parts(q, k, v, o, lse, do):
    """The parts of the gradient of causal attention, for one head, by name."""
    t, d = q.shape
    s = k.shape[0]
    scale = 1.0 / math.sqrt(d)
    rows = torch.arange(s - t, s, device=q.device)[:, None]
    seen = torch.arange(s, device=q.device)[None, :] <= rows
    scores = scale * q @ k.T
    p = torch.where(seen, torch.exp(scores - lse[:, None]), 0.0)
    dv = p.T @ do
    delta = (do * o).sum(-1)
    dp = do @ v.T
    ds = p * (dp - delta[:, None])
    dq = scale * ds @ k
    dk = 8**-0.5 * ds.T @ q
    return {"p": p, "dv": dv, "delta": delta, "ds": ds, "dq": dq, "dk": dk}
