# exercise: merge
# dies by: two full parts
# bug: part_lost

import torch


def merge(a, b):
    """Join two partial softmaxes over disjoint keys: m (T,), l (T,), a (T, D) each."""
    (m_a, l_a, acc_a), (m_b, *_) = a, b
    m = torch.maximum(m_a, m_b)
    reference = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    weight_a = torch.exp(m_a - reference)
    l = weight_a * l_a
    acc = weight_a[..., None] * acc_a
    return m, l, acc
