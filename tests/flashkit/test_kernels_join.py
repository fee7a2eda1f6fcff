"""The kernel that joins a part to a state, against `online.merge`."""

import math

import oracle
import pytest
import torch

from flashkit.kernels.join import join_fwd
from flashkit.online import State, merge


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(oracle.DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("heads", "total", "first", "t", "d"),
    [(3, 9, 0, 9, 16), (2, 300, 37, 201, 80), (1, 5, 4, 1, 64)],
)
def test_it_is_merge_and_leaves_other_rows_alone(dtype, heads, total, first, t, d):
    m, lse = 30 * normal(0, 2, heads, total), 30 * normal(1, 2, heads, t)
    m[..., ::3] = -math.inf
    lse[..., ::2] = -math.inf
    l, a = normal(2, *m.shape).abs(), normal(3, *m.shape, d)
    l[m == -math.inf], a[m == -math.inf] = 0.0, 0.0
    o = normal(4, 2, heads, d, t).to(dtype).mT
    o[lse == -math.inf] = 0.0
    want = State(*(x.clone() for x in (m, l, a)))
    rows = slice(first, first + t)
    part = State(lse, torch.ones_like(lse), o.float())
    joined = merge(State(*(x[:, :, rows] for x in want)), part)
    for whole, new in zip(want, joined, strict=True):
        whole[:, :, rows] = new
    join_fwd(m, l, a, first, o, lse)
    for got, wanted in zip((m, l, a), want, strict=True):
        oracle.assert_same(got, wanted.cpu(), 1e-5)


def test_no_rows():
    m, l, a = normal(0, 1, 2, 4), normal(1, 1, 2, 4), normal(2, 1, 2, 4, 16)
    join_fwd(m, l, a, 4, normal(3, 1, 2, 0, 16), normal(4, 1, 2, 0))
    assert torch.equal(m, normal(0, 1, 2, 4))
