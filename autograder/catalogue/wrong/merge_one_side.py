# exercise: merge
# dies by: the left part is larger
# bug: merge_one_side

import torch


def merge(a, b):
    """Join two partial softmaxes over disjoint keys: m (T,), l (T,), a (T, D) each."""
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = torch.maximum(m_a, m_b)
    reference = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    weight_a = torch.exp(m_a - reference)
    weight_b = torch.ones_like(m_b)
    l = weight_a * l_a + weight_b * l_b
    acc = weight_a[..., None] * acc_a + weight_b[..., None] * acc_b
    return m, l, acc
