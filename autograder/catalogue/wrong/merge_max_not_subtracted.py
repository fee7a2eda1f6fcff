# exercise: decode_merge
# dies by: maxima far apart
# bug: no_max

import torch
import triton
import triton.language as tl


@triton.jit
def _decode_merge_kernel(
    m_ptr, l_ptr, acc_ptr, o_ptr, num_splits, D: tl.constexpr, BLOCK_P: tl.constexpr
):
    row = tl.program_id(0)  # which (batch, query head)
    offs_p = tl.arange(0, BLOCK_P)
    offs_d = tl.arange(0, D)
    real = offs_p < num_splits
    parts = row * num_splits + offs_p
    m = tl.load(m_ptr + parts, mask=real, other=-float("inf"))  # (BLOCK_P,)
    l = tl.load(l_ptr + parts, mask=real, other=0.0)
    acc_ptrs = acc_ptr + parts[:, None] * D + offs_d[None, :]
    acc = tl.load(acc_ptrs, mask=real[:, None], other=0.0)  # (BLOCK_P, D)

    weights = tl.exp(m)
    l_all = tl.sum(weights * l, axis=0)
    a = tl.sum(weights[:, None] * acc, axis=0)  # (D,)
    tl.store(o_ptr + row * D + offs_d, a / tl.where(l_all == 0.0, 1.0, l_all))


def decode_merge(m, l, acc):
    """Join the parts: m, l (B, Hq, num_splits), acc (B, Hq, num_splits, D) -> o (B, Hq, 1, D)."""
    batch, q_heads, num_splits, d = acc.shape
    m, l, acc = m.contiguous(), l.contiguous(), acc.contiguous()
    o = torch.empty(batch, q_heads, 1, d, dtype=torch.float32, device=acc.device)
    _decode_merge_kernel[(batch * q_heads,)](
        m, l, acc, o, num_splits, D=d, BLOCK_P=triton.next_power_of_2(num_splits)
    )
    return o
