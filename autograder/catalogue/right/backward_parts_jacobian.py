# exercise: backward_parts
# differs: dS by the Jacobian of the softmax, row by row

import torch


def backward_parts(q, k, v, o, lse, do):
    """The parts of the gradient of causal attention, for one head, by name."""
    t, s, scale = q.shape[0], k.shape[0], q.shape[1] ** -0.5
    hidden = torch.ones(t, s, dtype=torch.bool, device=q.device).triu(s - t + 1)
    p = ((q * scale) @ k.T - lse.unsqueeze(1)).exp().masked_fill(hidden, 0.0)
    dp = torch.einsum("td,sd->ts", do, v)
    ds = torch.stack(
        [(row.diag() - row.outer(row)) @ change for row, change in zip(p, dp, strict=True)]
    )
    return {
        "dq": ds @ (scale * k),
        "dk": ds.T @ (scale * q),
        "ds": ds,
        "dv": torch.einsum("ts,td->sd", p, do),
        "delta": torch.einsum("td,td->t", do, o),
        "p": p,
    }
