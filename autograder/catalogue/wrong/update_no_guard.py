# exercise: online_update
# dies by: nothing visible, nothing seen
# bug: no_guard

import torch


def online_update(m, l, a, scores, values):
    """Add one tile to the state of one row.

    m, l 0-dimensional; a (D,); scores (N,); values (N, D), all of one dtype.
    Returns the new (m, l, a), of the same shapes.
    """
    m_new = torch.maximum(m, scores.max())
    reference = m_new
    alpha = torch.exp(m - reference)
    p = torch.exp(scores - reference)
    return m_new, alpha * l + p.sum(), alpha * a + p @ values
