# exercise: online_update
# dies by: all scores far below 0
# bug: max_starts_at_zero

import math

import torch


def online_update(m, l, a, scores, values):
    """Add one tile to the state of one row.

    m, l 0-dimensional; a (D,); scores (N,); values (N, D), all of one dtype.
    Returns the new (m, l, a), of the same shapes.
    """
    m_new = torch.maximum(m, scores.max()).clamp(min=0.0)
    reference = torch.where(m_new == -math.inf, 0.0, m_new)  # -inf - -inf would be NaN
    alpha = torch.exp(m - reference)
    p = torch.exp(scores - reference)
    return m_new, alpha * l + p.sum(), alpha * a + p @ values
