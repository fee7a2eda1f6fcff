# exercise: decode_merge
# differs: a loop over the parts in place of one tile of them

import torch
import triton
import triton.language as tl


@triton.jit
def _decode_merge_kernel(m_ptr, l_ptr, acc_ptr, o_ptr, num_splits, D: tl.constexpr):
    row = tl.program_id(0)  # which (batch, query head)
    offs_d = tl.arange(0, D)
    m_all = -float("inf")
    l_all = 0.0
    a = tl.zeros((D,), tl.float32)
    for part in range(row * num_splits, (row + 1) * num_splits):
        m = tl.load(m_ptr + part)
        m_new = tl.maximum(m_all, m)
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)
        old, new = tl.exp(m_all - reference), tl.exp(m - reference)
        l_all = old * l_all + new * tl.load(l_ptr + part)
        a = old * a + new * tl.load(acc_ptr + part * D + offs_d)
        m_all = m_new
    tl.store(o_ptr + row * D + offs_d, a / tl.where(l_all == 0.0, 1.0, l_all))


def decode_merge(m, l, acc):
    """Join the parts: m, l (B, Hq, num_splits), acc (B, Hq, num_splits, D) -> o (B, Hq, 1, D)."""
    batch, q_heads, num_splits, d = acc.shape
    m, l, acc = m.contiguous(), l.contiguous(), acc.contiguous()
    o = torch.empty(batch, q_heads, 1, d, dtype=torch.float32, device=acc.device)
    _decode_merge_kernel[(batch * q_heads,)](m, l, acc, o, num_splits, D=d)
    return o
