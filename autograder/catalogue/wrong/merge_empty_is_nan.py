# exercise: merge
# dies by: both parts are empty in some rows
# bug: no_guard

import torch


def merge(a, b):
    """Join two partial softmaxes over disjoint keys: m (T,), l (T,), a (T, D) each."""
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = torch.maximum(m_a, m_b)
    reference = m
    weight_a = torch.exp(m_a - reference)
    weight_b = torch.exp(m_b - reference)
    l = weight_a * l_a + weight_b * l_b
    acc = weight_a[..., None] * acc_a + weight_b[..., None] * acc_b
    return m, l, acc
