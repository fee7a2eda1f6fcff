"""A trace is the recurrence: each record follows from the last, and the last is the softmax."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit.trace import trace

SCORES = st.lists(st.one_of(st.floats(-30, 30), st.just(-math.inf)), min_size=1, max_size=9)


def test_worked_example():
    first, second = trace([0, 1, 2, -1], [2, 4, 1, 3], tile=2)
    assert (first.start, first.stop, second.start, second.stop) == (0, 2, 2, 4)
    assert (first.m_old, first.m_new, second.m_new) == (-math.inf, 1.0, 2.0)
    assert second.alpha == pytest.approx(math.exp(-1))
    assert second.p == pytest.approx((1.0, math.exp(-3)))
    assert second.l_new == pytest.approx(1.5530, abs=5e-5)
    assert second.a_new == pytest.approx((2.8915,), abs=5e-5)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(SCORES, st.integers(1, 10))
def test_each_record_is_one_step(scores, tile):
    values = np.array([[math.sin(3 * j), j - 2.0] for j in range(len(scores))])
    m, l, a, seen = -math.inf, 0.0, np.zeros(2), 0
    for record in trace(scores, values, tile):
        assert (record.start, record.stop) == (seen, min(seen + tile, len(scores)))
        s, v = np.array(scores[record.start : record.stop]), values[record.start : record.stop]
        assert record.scores == tuple(s)
        assert (record.m_old, record.l_old, record.a_old) == (m, l, tuple(a))
        m_new = max(m, s.max())
        reference = m_new if m_new > -math.inf else 0.0
        alpha, p = math.exp(m - reference), np.exp(s - reference)
        l, a = alpha * l + p.sum(), alpha * a + p @ v
        assert record.m_new == m_new
        np.testing.assert_allclose(record.alpha, alpha, 1e-12)
        np.testing.assert_allclose(record.p, p, 1e-12)
        np.testing.assert_allclose(record.l_new, l, 1e-12)
        np.testing.assert_allclose(record.a_new, a, 1e-12, 1e-12)
        m, l, a, seen = record.m_new, record.l_new, np.array(record.a_new), record.stop
    assert seen == len(scores)
    if max(scores) > -math.inf:
        weights = np.exp(np.array(scores) - max(scores))
        np.testing.assert_allclose(a / l, weights @ values / weights.sum(), 1e-12, 1e-12)


def test_records_are_plain_and_frozen():
    record = trace(torch.tensor([0.0, 1.0]), torch.ones(2, 3), 1)[1]
    for value in dataclasses.asdict(record).values():
        assert type(value) in (int, float, tuple)
        assert all(type(x) is float for x in (value if type(value) is tuple else ()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.alpha = 1.0


@pytest.mark.parametrize(
    ("scores", "values", "tile", "message"),
    [
        ([0.0, 1.0], [1.0, 2.0], 0, "tile must be an integer >= 1, got 0"),
        (
            [0.0, 1.0],
            [1.0],
            1,
            r"values must have shape \(S,\) or \(S, D\) with S = 2, got \(1,\)",
        ),
        ([[0.0]], [1.0], 1, r"scores must have shape \(S,\), got \(1, 1\)"),
        ([0.0], [[[1.0]]], 1, r"got \(1, 1, 1\)"),
    ],
)
def test_wrong_inputs(scores, values, tile, message):
    with pytest.raises(ValueError, match=message):
        trace(scores, values, tile)


def test_no_scores_are_no_tiles():
    assert trace([], [], 4) == []
