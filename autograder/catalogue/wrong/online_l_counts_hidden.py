# exercise: online_attention
# dies by: T = S, several tiles
# bug: l_counts_hidden

import math

import torch

from flashkit.masks import positions, visible


def online_attention(q, k, v, query_positions=None, key_positions=None, tile=16):
    """Causal attention, one tile of keys at a time, without a (T, S) matrix.

    q (B, Hq, T, D); k, v (B, Hkv, S, D); positions (T,), (B, T) and (S,), (B, S) or None.
    Returns o (B, Hq, T, D) in q's dtype. Raises ValueError for a tile or heads that
    cannot be, and for a row that sees no key.
    """
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1:3]
    if tile < 1:
        raise ValueError(f"tile must be at least 1, got {tile}")
    if q_heads % kv_heads:
        raise ValueError(f"Hq must be a multiple of Hkv, got {q_heads} and {kv_heads}")
    work = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.to(work).repeat_interleave(q_heads // kv_heads, dim=1) for x in (k, v))
    qp = positions(query_positions, batch, t, s - t, q.device)
    kp = positions(key_positions, batch, s, 0, q.device)
    m = torch.full((batch, q_heads, t, 1), -math.inf, dtype=work, device=q.device)
    l, a = torch.zeros_like(m), m.new_zeros(batch, q_heads, t, v.shape[-1])
    for start in range(0, s, tile):
        keys = slice(start, start + tile)
        scores = q.to(work) @ k[:, :, keys].transpose(-2, -1) / math.sqrt(d)
        everything = scores
        scores = scores.masked_fill(~visible(qp, kp[:, keys]), -math.inf)
        m_new = torch.maximum(m, scores.amax(-1, keepdim=True))
        reference = torch.where(m_new == -math.inf, 0.0, m_new)  # rows that saw nothing yet
        alpha, p = torch.exp(m - reference), torch.exp(scores - reference)
        l = alpha * l + torch.exp(everything - reference).sum(-1, keepdim=True)
        m, a = m_new, alpha * a + p @ v[:, :, keys]
    if (l == 0).any():
        raise ValueError("a query row has no visible key")
    return (a / l).to(q.dtype)
