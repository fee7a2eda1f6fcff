"""Positions, visibility by brute force, and weights that hide whatever they do not see."""

import math

import oracle
import pytest
import torch

from flashkit import masks

CPU = torch.device("cpu")


def test_default_positions():
    assert masks.positions(None, 2, 3, 4, CPU).tolist() == [[4, 5, 6]] * 2
    assert masks.positions(None, 1, 2, -1, CPU).tolist() == [[-1, 0]]
    assert masks.positions(None, 2, 0, 0, CPU).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_given_positions(dtype):
    row = torch.tensor([3, 0, 7], dtype=dtype)
    assert masks.positions(row, 2, 3, 0, CPU).tolist() == [[3, 0, 7]] * 2
    each = torch.stack([row, row + 1])
    got = masks.positions(each, 2, 3, 0, CPU)
    assert got.dtype == torch.int64
    assert got.tolist() == [[3, 0, 7], [4, 1, 8]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(4, dtype=torch.int64), r"shape \(3,\) or \(2, 3\), got \(4,\)"),
        (torch.zeros(3, 2, dtype=torch.int64), r"got \(3, 2\)"),
        (torch.zeros(1, 3, dtype=torch.int64), r"got \(1, 3\)"),
        (torch.zeros(3), r"positions must be integers, got torch.float32"),
        (torch.zeros(3, dtype=torch.bool), r"positions must be integers, got torch.bool"),
    ],
)
def test_wrong_positions(given, message):
    with pytest.raises(ValueError, match=message):
        masks.positions(given, 2, 3, 0, CPU)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("causal", [True, False])
def test_visible_is_the_definition(window, causal):
    query = torch.tensor([[0, 5, -1], [9, 2, 2]])
    key = torch.tensor([[0, 1, 2, 3], [8, 9, 1, 0]])
    seen = masks.visible(query, key, window, causal)
    assert seen.shape == (2, 1, 3, 4)
    for b, i, j in torch.cartesian_prod(*(torch.arange(n) for n in (2, 3, 4))).tolist():
        assert seen[b, 0, i, j] == oracle.sees(int(query[b, i]), int(key[b, j]), causal, window)


def test_weigh_hides_what_is_not_seen():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    seen = p > 0
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [math.nan, 1.0]])
    got = masks.weigh(p, values, seen)
    assert got[0].tolist() == [2.0, 3.0]
    assert got[1].isnan().all(), "a row that sees a NaN says so"
    assert masks.weigh(p, values.nan_to_num(0.0), seen)[1].tolist() == [1.0, 2.0]
