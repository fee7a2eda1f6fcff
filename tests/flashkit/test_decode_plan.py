"""The measured model behind the splits of decode: its readings, choices, facts that must hold."""

import itertools
import math

import pytest

from flashkit.contracts import Dims
from flashkit.kernels import decode_plan
from flashkit.kernels.decode_plan import HOPPER, choose, merge_columns, predicted_us, tile_of

SMS = 132
TILE = tile_of(Dims(1, 32, 8, 1, 8192, 128, 128), 2)
"""64 keys of D 128 in half precision, a group of 4."""

# (batch, keys): microseconds of one call on an H200, calls on different caches back to back
READINGS = {
    (1, 1024): 5.2,
    (1, 2048): 6.7,
    (1, 4096): 8.9,
    (1, 8192): 12.3,
    (1, 65536): 64.9,
    (4, 8192): 36.0,
    (16, 8192): 123.7,
    (64, 8192): 470.5,
    (1, 524288): 466.5,
}


def pipeline(stages):
    return next(p for p in HOPPER.pipelines if p.stages == stages)


def best(batch, keys, num_splits=None):
    """The plan for 8 KV heads, and what the model says that it takes."""
    tiles = math.ceil(keys / TILE.block_n)
    plan = choose(HOPPER, SMS, 8 * batch, tiles, TILE, num_splits)
    chosen = pipeline(plan.stages), plan.num_splits
    return plan, predicted_us(HOPPER, SMS, 8 * batch, tiles, TILE.bytes, *chosen)


@pytest.mark.parametrize(("batch", "keys"), READINGS)
def test_the_model_is_near_its_readings(batch, keys):
    _, us = best(batch, keys)
    assert us == pytest.approx(READINGS[batch, keys], rel=0.12)


def test_it_never_says_less_than_reading_takes():
    for batch, keys in itertools.product((1, 3, 16, 100), (1, 64, 1000, 8192, 10**6)):
        cache = 2 * 8 * batch * keys * 128 * 2
        assert best(batch, keys)[1] >= cache / HOPPER.rate


@pytest.mark.parametrize("batch", [1, 2, 7, 16, 64])
def test_more_keys_never_take_less_time(batch):
    times = [best(batch, keys)[1] for keys in range(64, 20000, 640)]
    assert times == sorted(times)


@pytest.mark.parametrize("batch", [1, 4, 20, 64, 500])
@pytest.mark.parametrize("keys", [64, 1000, 65536])
def test_no_other_settings_are_faster_by_the_model(batch, keys):
    tiles = math.ceil(keys / TILE.block_n)
    _, us = best(batch, keys)
    splits = range(1, min(tiles, max(1, 2 * SMS // batch), 128) + 1)
    for p, n in itertools.product(HOPPER.pipelines, splits):
        fills = p.stages <= max(3, math.ceil(tiles / n) // 2)
        assert not fills or us <= predicted_us(HOPPER, SMS, 8 * batch, tiles, TILE.bytes, p, n)


def test_splits_fill_the_device_and_no_wave_is_nearly_empty():
    """Few sequences are cut until every SM has work; many are not cut at all."""
    for batch in (1, 2, 4, 8):
        plan, _ = best(batch, 65536)
        programs = 8 * batch * plan.num_splits
        assert programs >= 0.9 * SMS
        waves = programs / (SMS * pipeline(plan.stages).resident)
        assert waves <= 1 or waves / math.ceil(waves) >= 0.9
    assert best(64, 8192)[0].num_splits == 1


def test_what_is_given_is_an_upper_bound():
    assert best(1, 8192, num_splits=5)[0].num_splits == 5
    assert best(1, 128, num_splits=5)[0].num_splits == 2, "one a tile"
    assert best(1, 0, num_splits=5)[0].num_splits == 1
    assert best(1, 10**6, num_splits=5000)[0].num_splits == decode_plan.MAX_SPLITS


def test_long_sequences_among_short_ones_are_cut_finer():
    def splits(batch, keys, uneven):
        return choose(HOPPER, SMS, 8 * batch, keys // 64, TILE, None, uneven).num_splits

    assert splits(16, 16384, True) >= 8 > splits(16, 16384, False)
    assert splits(16, 8192, True) == splits(16, 8192, False), "short ones cost too little"
    assert splits(500, 16384, True) <= 2, "many sequences fill the device by themselves"


@pytest.mark.parametrize("num_splits", [None, 3])
@pytest.mark.parametrize("tiles", [0, 1, 2, 1000])
def test_without_readings(num_splits, tiles):
    """Two programs an SM, and loads that any GPU has the memory for."""
    plan = choose(None, 40, 4, tiles, TILE, num_splits)
    assert plan.stages == 2
    assert plan.num_splits == max(1, min(tiles, num_splits or 20))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("page", [0, 1, 16, 24, 64, 128, 192, 256])
def test_tiles_fit_a_multiprocessor(itemsize, page):
    for d, group in itertools.product((16, 17, 64, 80, 128, 256), (1, 5, 20, 71, 200)):
        tile = tile_of(Dims(1, group, 1, 1, 8192, d, d), itemsize, page)
        for size in (tile.block_g, tile.block_n):
            assert size >= 16
            assert size & (size - 1) == 0
        assert 2 * tile.block_n * d * itemsize <= tile.bytes <= 32 * 1024
        if page and page % 64 == 0:
            assert page % tile.block_n == 0, "a tile lies in one page"


def test_merging_programs_are_many_but_not_too_many():
    assert merge_columns(32, 128) == 16
    assert merge_columns(10**6, 80) == 128
    for rows, d in itertools.product((1, 32, 512, 5000), (16, 80, 128, 256)):
        columns = merge_columns(rows, d)
        assert 16 <= columns < 2 * max(d, 16)
        assert columns & (columns - 1) == 0
