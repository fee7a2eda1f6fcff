# exercise: decode_merge
# dies by: four splits (gpu)
# bug: answer_varies

import torch
import triton
import triton.language as tl


@triton.jit
def _add_part_kernel(
    m_ptr, l_ptr, acc_ptr, o_ptr, num_splits, D: tl.constexpr, BLOCK_P: tl.constexpr
):
    row, part = tl.program_id(0), tl.program_id(1)  # one program for each part of a row
    offs_p = tl.arange(0, BLOCK_P)
    offs_d = tl.arange(0, D)
    o = tl.load(o_ptr + row * D + offs_d)  # what the other parts have added so far
    real = offs_p < num_splits
    m = tl.load(m_ptr + row * num_splits + offs_p, mask=real, other=-float("inf"))  # (BLOCK_P,)
    l = tl.load(l_ptr + row * num_splits + offs_p, mask=real, other=0.0)

    m_all = tl.max(m, axis=0)
    reference = tl.where(m_all == -float("inf"), 0.0, m_all)
    l_all = tl.sum(tl.exp(m - reference) * l, axis=0)
    weight = tl.exp(tl.load(m_ptr + row * num_splits + part) - reference)
    acc = tl.load(acc_ptr + (row * num_splits + part) * D + offs_d)  # (D,)
    o += weight * acc / tl.where(l_all == 0.0, 1.0, l_all)
    tl.store(o_ptr + row * D + offs_d, o)


def decode_merge(m, l, acc):
    """Join the parts: m, l (B, Hq, num_splits), acc (B, Hq, num_splits, D) -> o (B, Hq, 1, D)."""
    batch, q_heads, num_splits, d = acc.shape
    m, l, acc = m.contiguous(), l.contiguous(), acc.contiguous()
    o = torch.zeros(batch, q_heads, 1, d, dtype=torch.float32, device=acc.device)
    _add_part_kernel[(batch * q_heads, num_splits)](
        m, l, acc, o, num_splits, D=d, BLOCK_P=triton.next_power_of_2(num_splits)
    )
    return o
