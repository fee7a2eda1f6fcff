# exercise: online_update
# dies by: the maximum stays
# bug: max_of_tile_alone

import math

import torch


def online_update(m, l, a, scores, values):
    """Add one tile to the state of one row.

    m, l 0-dimensional; a (D,); scores (N,); values (N, D), all of one dtype.
    Returns the new (m, l, a), of the same shapes.
    """
    m_new = scores.max()
    reference = torch.where(m_new == -math.inf, 0.0, m_new)  # -inf - -inf would be NaN
    alpha = torch.exp(m - reference)
    p = torch.exp(scores - reference)
    return m_new, alpha * l + p.sum(), alpha * a + p @ values
