# exercise: online_update
# differs: the old state enters as one more key

import torch


def online_update(m, l, a, scores, values):
    """The old state as one more key: its score is m + log l, its value a / l."""
    old = torch.where(l > 0, m + torch.log(l), -torch.inf)
    m_new = torch.maximum(m, scores.max())
    if m_new == -torch.inf:
        return m_new, l.clone(), a.clone()
    mean = a / torch.where(l > 0, l, 1.0)
    p = torch.exp(torch.cat([old[None], scores]) - m_new)
    return m_new, p.sum(), p @ torch.cat([mean[None], values])
