# exercise: merge
# dies by: two full parts
# bug: nothing_rescaled

import torch


def merge(a, b):
    """Join two partial softmaxes over disjoint keys: m (T,), l (T,), a (T, D) each."""
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = torch.maximum(m_a, m_b)
    l = l_a + l_b
    acc = acc_a + acc_b
    return m, l, acc
