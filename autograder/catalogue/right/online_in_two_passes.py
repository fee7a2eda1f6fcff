# exercise: online_attention
# differs: two passes over the keys

import math

import torch

from flashkit.masks import positions, visible


def online_attention(q, k, v, query_positions=None, key_positions=None, tile=16):
    """Causal attention in two passes over the key tiles: the maximum, then the sums."""
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1:3]
    if tile < 1 or q_heads % kv_heads:
        raise ValueError("tile must be at least 1 and Hq a multiple of Hkv")
    work = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.to(work).repeat_interleave(q_heads // kv_heads, dim=1) for x in (k, v))
    qp = positions(query_positions, batch, t, s - t, q.device)
    kp = positions(key_positions, batch, s, 0, q.device)

    def scores_of(keys):
        scores = q.to(work) @ k[:, :, keys].transpose(-2, -1) / math.sqrt(d)
        return scores.masked_fill(~visible(qp, kp[:, keys]), -math.inf)

    tiles = [slice(start, start + tile) for start in range(0, s, tile)]
    m = torch.stack([scores_of(keys).amax(-1, keepdim=True) for keys in tiles]).amax(0)
    if (m == -math.inf).any():
        raise ValueError("a query row has no visible key")
    l, a = torch.zeros_like(m), m.new_zeros(batch, q_heads, t, v.shape[-1])
    for keys in tiles:
        p = torch.exp(scores_of(keys) - m)
        l, a = l + p.sum(-1, keepdim=True), a + p @ v[:, :, keys]
    return (a / l).to(q.dtype)
