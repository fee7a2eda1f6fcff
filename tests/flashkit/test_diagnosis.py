"""Is a wrong output traced to its bug, and never to a bug it does not have?"""

import pytest
import torch

from flashkit.diagnosis import diagnose, first_bad_tile, matching
from flashkit.faults import CLASSIC, faulty_attention
from flashkit.reference import causal_attention

SHAPES = {
    "blocks_confused": {"block_m": 32, "query_offset": 0},
    "padded_keys_counted": {"query_offset": 100},
    "window_off_by_one": {"window": 5},
    "window_ignored": {"window": 5},
    "no_guard": {"window": 5},
}
EXTREME = ("no_max", "max_starts_at_zero", "max_frozen")


def problem(t=33, s=37, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    shapes = ((1, 4, t, 16), (1, 2, s, 16), (1, 2, s, 16))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("fault", [f for f in CLASSIC if f not in EXTREME])
def test_a_bug_is_named_from_its_output(fault, dtype):
    q, k, v = problem({"blocks_confused": 37}.get(fault, 20), dtype=dtype)
    given = SHAPES.get(fault, {})
    got = faulty_attention(fault, q, k, v, **given).to(dtype)
    assert diagnose(q, k, v, **given, got=got) == fault


def test_a_window_without_guard_is_named_though_no_tile_is_skipped():
    q, k, v = problem()
    got = faulty_attention("no_guard", q, k, v, window=5, skip=False)
    assert diagnose(q, k, v, window=5, got=got) == "no_guard"


@pytest.mark.parametrize("wrong", [torch.zeros_like, torch.ones_like, torch.randn_like])
def test_what_no_bug_gives_is_not_named(wrong):
    q, k, v = problem()
    assert diagnose(q, k, v, got=wrong(q)) is None


def test_all_nan_is_not_blamed_on_a_bug():
    q, k, v = problem()
    assert diagnose(q, k, v, got=torch.full_like(q, torch.nan)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_right_output_is_not_blamed_on_a_bug(dtype):
    q, k, v = problem(dtype=dtype)
    assert diagnose(q, k, v, got=causal_attention(q, k, v)) is None


def test_bugs_that_cannot_be_told_apart_are_all_reported():
    right, wrong = torch.zeros(4), torch.ones(4)
    wrongs = {"a": [wrong], "b": [wrong], "c": [2 * wrong], "harmless": [right]}
    assert set(matching(wrong, right + 1e-9, wrongs)) == {"a", "b"}


def test_the_first_bad_tile_is_counted_in_query_tiles():
    bad = torch.zeros(2, 3, 50, 16, dtype=torch.bool)
    assert first_bad_tile(bad, 16) is None
    bad[1, 2, 33, 5] = bad[0, 0, 49, 0] = True
    assert first_bad_tile(bad, 16) == 2
