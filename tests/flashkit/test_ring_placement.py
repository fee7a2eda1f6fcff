"""Who holds and who sees what in a ring: every pair of tokens once, and work shared equally."""

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit.ring import PLACEMENTS, spans, visits
from flashkit.ring.placement import take

SMALL = settings(derandomize=True, max_examples=120, deadline=None)
WORLD = st.integers(1, 8)
CHUNK = st.integers(1, 5)
PLACEMENT = st.sampled_from(sorted(PLACEMENTS))
MASK = st.fixed_dictionaries({"causal": st.booleans(), "window": st.none() | st.integers(1, 90)})


def held(world: int, chunk: int, placement: str):
    """T, and what each rank holds of it."""
    t = world * chunk * (1 if placement == "contiguous" or world == 1 else 2)
    return t, [spans(rank, world, t, placement) for rank in range(world)]


def positions(runs) -> np.ndarray:
    """The position of each token of a shard."""
    return np.concatenate([np.arange(run.start, run.stop) for run in runs])


def pairs(rows, keys, visit) -> list[tuple[int, int]]:
    """The positions of all (query, key) that one visit computes."""
    here, there = positions(rows)[visit.rows], positions(keys)[visit.keys]
    return [
        (i, j)
        for a, i in enumerate(here)
        for b, j in enumerate(there)
        if oracle.sees(visit.offset + a, b, visit.causal, visit.window)
    ]


@SMALL
@given(WORLD, CHUNK, PLACEMENT)
def test_every_token_is_held_once_and_all_ranks_hold_equally_many(world, chunk, placement):
    t, ranks = held(world, chunk, placement)
    assert sorted(np.concatenate([positions(runs) for runs in ranks])) == list(range(t))
    for runs in ranks:
        assert len(positions(runs)) == t // world
        assert all(a.stop < b.start for a, b in zip(runs, runs[1:], strict=False))  # else one run
        assert [run.local for run in runs] == list(
            np.cumsum([0, *(run.stop - run.start for run in runs[:-1])])
        )


@SMALL
@given(WORLD, CHUNK, PLACEMENT, MASK)
def test_every_visible_pair_is_computed_once_by_one_rank(world, chunk, placement, mask):
    t, ranks = held(world, chunk, placement)
    count = np.zeros((t, t), int)
    for rows in ranks:
        for keys in ranks:
            for visit in visits(rows, keys, **mask):
                for i, j in pairs(rows, keys, visit):
                    count[i, j] += 1
    want = [[oracle.sees(i, j, **mask) for j in range(t)] for i in range(t)]
    assert (count == want).all()


@SMALL
@given(WORLD, CHUNK, PLACEMENT, MASK)
def test_no_visit_is_empty(world, chunk, placement, mask):
    _, ranks = held(world, chunk, placement)
    for rows in ranks:
        for keys in ranks:
            assert all(pairs(rows, keys, visit) for visit in visits(rows, keys, **mask))


def work(ranks, step: int) -> list[int]:
    """Pairs that each rank computes in a step, the keys having travelled that far."""
    return [
        sum(
            len(pairs(rows, ranks[rank - step], visit))
            for visit in visits(rows, ranks[rank - step])
        )
        for rank, rows in enumerate(ranks)
    ]


@SMALL
@given(WORLD, CHUNK)
def test_zigzag_gives_all_ranks_the_same_work_in_each_step(world, chunk):
    _, ranks = held(world, chunk, "zigzag")
    for step in range(world):
        assert len(set(work(ranks, step))) == 1


def test_contiguous_does_not():
    _, ranks = held(4, 3, "contiguous")
    assert [work(ranks, step) for step in range(4)] == [
        [6, 6, 6, 6], [0, 9, 9, 9], [0, 0, 9, 9], [0, 0, 0, 9],
    ]  # fmt: skip


@SMALL
@given(st.integers(2, 8), CHUNK)
def test_away_from_home_zigzag_needs_one_call_without_a_mask(world, chunk):
    _, ranks = held(world, chunk, "zigzag")
    for rank, rows in enumerate(ranks):
        for source, keys in enumerate(ranks):
            if source != rank:
                (visit,) = visits(rows, keys)
                assert (visit.causal, visit.window) == (False, None)


@SMALL
@given(WORLD, CHUNK, PLACEMENT)
def test_shards_put_together_are_the_whole(world, chunk, placement):
    t, ranks = held(world, chunk, placement)
    x = torch.arange(2 * t).reshape(2, t)
    whole = torch.cat([take(x, runs, 1) for runs in ranks], 1)
    assert torch.equal(whole.sort(1).values, x)
    assert [take(x[0], runs, 0).tolist() for runs in ranks] == [
        positions(runs).tolist() for runs in ranks
    ]


@pytest.mark.parametrize(("placement", "world", "t"), [("zigzag", 4, 66), ("contiguous", 4, 66)])
def test_a_length_that_does_not_divide(placement, world, t):
    with pytest.raises(
        ValueError, match=f"{placement} on 4 ranks needs T a multiple of [48], got"
    ):
        spans(0, world, t, placement)


def test_one_rank_takes_any_length():
    assert [run[:2] for run in spans(0, 1, 7, "zigzag")] == [(0, 7)]


def test_an_unknown_placement():
    with pytest.raises(ValueError, match="placement must be one of zigzag, contiguous, got"):
        spans(0, 2, 8, "ring")
