"""The tile map and the attention matrix: the kinds are true, and wrong answers are shown wrong."""

from functools import partial

import pytest
import torch

from flashkit import cost
from flashkit.faults import faulty_attention
from flashkit.widgets.explorers.attention import attention_explorer, attention_steps
from flashkit.widgets.explorers.learner import listed, trouble
from flashkit.widgets.explorers.tile_map import (
    MOST,
    SIGNS,
    tile_map_explorer,
    tile_map_steps,
)

PROBLEMS = [  # t, s, offset, block_m, block_n, causal, window
    (64, 64, 0, 16, 16, True, None),
    (40, 70, 30, 16, 16, True, 24),
    (37, 50, -20, 8, 16, True, None),
    (20, 33, 90, 16, 4, True, 7),
    (30, 41, 5, 8, 8, False, None),
]


def stub(*args, **kwargs):
    raise NotImplementedError


def grid(step):
    return step.panels[0]


def bare(text: str) -> str:
    """The sign of a tile without the brackets of the bounds."""
    return text.strip("[)")


def seen(problem):
    """The mask (T, S) of what is visible, from the rule itself."""
    t, s, offset, _, _, causal, window = problem
    rows, keys = offset + torch.arange(t)[:, None], torch.arange(s)[None, :]
    mask = torch.ones(t, s, dtype=torch.bool)
    if causal:
        mask &= keys <= rows
    return mask if window is None else mask & (keys > rows - window)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_signs_are_what_the_mask_says(problem):
    t, s, _, block_m, block_n, *_ = problem
    mask, steps = seen(problem), tile_map_steps(*problem)
    assert len(steps) == -(-t // block_m)
    for i, step in enumerate(steps):
        visited = []
        for j, text in enumerate(grid(step).texts[i]):
            tile = mask[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]
            whole = bool(tile.all()) and (j + 1) * block_n <= s
            kind = "full" if whole else "partial" if tile.any() else "skip"
            assert bare(text) == SIGNS[kind], (i, j)
            visited += [j] if kind != "skip" else []
        facts = dict(step.facts)
        first, stop = int(facts["first"]), int(facts["stop"])
        assert list(range(first, stop)) == visited, "the bounds are tight"
        assert facts["visited"] == f"{len(visited)} of {len(grid(step).columns)}"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_counts_are_those_of_cost(problem):
    counts = cost.tile_counts(*problem)
    for step in tile_map_steps(*problem):
        facts = dict(step.facts)
        assert {kind: int(facts[kind]) for kind in counts} == counts
        assert facts["work saved"] == f"{counts['skip'] / sum(counts.values()):.1%}"


def test_the_row_of_the_step_is_marked_and_bracketed():
    step = tile_map_steps(40, 70, 30, 16, 16, window=24)[1]
    assert grid(step).rows == ("0", "▶ 1", "2")
    assert grid(step).texts[1] == ("·", "[◪", "◪", "◪)", "·")
    assert not set("[)") & set("".join(grid(step).texts[0] + grid(step).texts[2]))
    lit = tile_map_steps(64, 64, 0, 16, 16)[3]
    assert grid(lit).kinds[3] == ("lit", "lit", "lit", "half")
    assert grid(lit).kinds[2] == ("plain", "plain", "half", "dim")


def test_a_query_tile_that_sees_nothing_says_so():
    step = tile_map_steps(32, 32, -16, 16, 16)[0]
    assert "sees no key and visits no tile" in step.sentence
    assert dict(step.facts)["stop"] == "0"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_right_bounds_are_right_everywhere(problem):
    for step in tile_map_steps(*problem, bounds=cost.tile_bounds):
        assert step.sentence.endswith(": right.")
        assert "wrong" not in {kind for row in grid(step).kinds for kind in row}
        assert dict(step.facts)["wrong query tiles"].startswith("0 of")


def changed(**changes):
    """tile_bounds of other arguments: what a learner who forgot something writes."""

    def bounds(i, t, s, offset, block_m, block_n, causal=True, window=None):
        given = {"s": s, "offset": offset, "causal": causal, "window": window, **changes}
        return cost.tile_bounds(i, t, block_m=block_m, block_n=block_n, **given)

    return bounds


def off_by_one(*args, **kwargs):
    first, stop = cost.tile_bounds(*args, **kwargs)
    return first, stop - 1


def wrong_tiles(steps, sign):
    """(i, j) of each tile of kind wrong with this sign."""
    cells = grid(steps[0])
    return [
        (i, j)
        for i, row in enumerate(cells.kinds)
        for j, kind in enumerate(row)
        if kind == "wrong" and bare(cells.texts[i][j]) == SIGNS[sign]
    ]


def test_a_stop_that_is_off_by_one_leaves_out_the_diagonal():
    steps = tile_map_steps(64, 64, 0, 16, 16, bounds=off_by_one)
    assert wrong_tiles(steps, "missing") == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert wrong_tiles(steps, "extra") == []
    assert "says (0, 1): it leaves out key tile 1, which it needs." in steps[1].sentence
    assert dict(steps[1].facts)["your stop"] == "1"


def test_bounds_without_the_offset_are_wrong_on_both_sides():
    steps = tile_map_steps(40, 70, 30, 16, 16, window=24, bounds=changed(offset=0))
    assert wrong_tiles(steps, "extra") == [(1, 0), (2, 0), (2, 1)]
    assert wrong_tiles(steps, "missing") == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4)]
    assert "visits key tile 0 for nothing" in steps[1].sentence
    assert "leaves out key tiles 2 and 3" in steps[1].sentence
    assert dict(steps[0].facts)["wrong query tiles"] == "3 of 3"
    assert grid(steps[0]).texts[2] == ("[+", "+", "◪)", "−", "−")


def test_bounds_without_the_window_visit_the_past_for_nothing():
    steps = tile_map_steps(96, 96, 0, 16, 16, window=20, bounds=changed(window=None))
    assert wrong_tiles(steps, "missing") == []
    assert (5, 0) in wrong_tiles(steps, "extra")
    assert steps[0].sentence.endswith(": right.")


def test_bounds_beyond_the_grid_are_named():
    steps = tile_map_steps(32, 32, 0, 16, 16, bounds=lambda *args, **kwargs: (-1, 10**9))
    assert "goes past the key tiles 0 to 1" in steps[1].sentence
    assert dict(steps[1].facts)["wrong query tiles"] == "2 of 2"


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (stub, "Your tile_bounds is not written yet."),
        (lambda *args, **kwargs: 1 // 0, "raised ZeroDivisionError"),
        (lambda i: (0, 1), "raised TypeError"),
        (lambda *args, **kwargs: None, "returned None"),
        (lambda *args, **kwargs: (0, 1, 2), "instead of two integers"),
        (lambda *args, **kwargs: (0.5, 1), "instead of two integers"),
    ],
)
def test_no_answer_is_a_sentence_and_the_truth_stays(bounds, said):
    steps = tile_map_steps(64, 64, 0, 16, 16, bounds=bounds)
    assert said in steps[0].sentence
    assert "Traceback" not in steps[0].sentence
    assert grid(steps[0]).kinds[3] == ("plain", "plain", "plain", "half")
    assert dict(steps[0].facts)["wrong query tiles"] == "no answer"


def test_too_many_tiles_and_empty_sizes_are_refused():
    side = MOST * 16
    assert len(tile_map_steps(side, side, 0, 16, 16)) == MOST
    with pytest.raises(ValueError, match=f"{MOST + 1} x {MOST} tiles are too many"):
        tile_map_steps(side + 1, side, 0, 16, 16)
    with pytest.raises(ValueError, match="block_n"):
        tile_map_steps(side, side, 0, 16, 0)


def test_the_controls_move_the_map():
    explorer = tile_map_explorer(64, 64)
    assert dict(explorer.steps[0].facts)["skip"] == "6"
    explorer.set(causal=False)
    assert dict(explorer.steps[0].facts)["skip"] == "0"
    explorer.set(causal=True, t=40, s=70, offset=30, window=24)
    assert dict(explorer.steps[0].facts)["partial"] == "9"
    explorer.set(t=4096)
    assert "too many to draw" in explorer.error
    assert len(explorer.steps) == 3, "the last good picture stays"
    explorer.set(t=40, block_m=8)
    assert explorer.error == ""
    assert len(explorer.steps) == 5
    explorer.close()


@pytest.mark.parametrize("size", [(48, 64), (40, 50), (1, 1), (33, 20)])
@pytest.mark.parametrize("offset", [None, 3, -20])
def test_flashkits_kernel_is_right_everywhere(size, offset):
    steps = attention_steps(None, *size, query_offset=offset)
    for i, step in enumerate(steps):
        facts = dict(step.facts)
        assert facts["first wrong tile"] == "none"
        assert facts["largest difference"] == "below 0.0001"
        assert facts["row sums"] == facts["right row sums"]
        assert "is right in every key tile" in step.sentence
        assert step.panels[0].rows[i] == f"▶ {i}"


def test_the_strips_are_the_rows_of_the_tile():
    first, *_, last = attention_steps(None, 40, 64)
    overview, got, want, error = last.panels
    assert len(overview.rows) == 3
    assert {len(x.rows) for x in (got, want, error)} == {8}, "the ragged tile has 8 rows"
    assert got.shades == want.shades
    assert not any(any(row) for row in error.shades)
    assert dict(first.facts)["row sums"] == "1.0000"
    # Row 0 stands at position 24: what it does not see is 0.
    assert not any(first.panels[1].shades[0][25:])
    assert all(first.panels[1].shades[0][:25])


@pytest.mark.parametrize(
    ("fault", "tile", "signs"),
    [
        ("bound_without_offset", "(0, 0)", ("✗−··", "✗✗−·", "✗✗✗−")),
        ("last_tile_skipped", "(2, 0)", ("✓✓··", "✓✓✓·", "✗✗✗−")),
        ("l_not_rescaled", "(0, 0)", None),
        ("acc_not_rescaled", "(0, 0)", None),
    ],
)
def test_a_planted_bug_is_found_at_its_first_tile_and_named(fault, tile, signs):
    steps = attention_steps(partial(faulty_attention, fault), 40, 50)
    facts = dict(steps[0].facts)
    assert facts["first wrong tile"] == tile
    assert facts["looks like"] == fault
    overview = steps[0].panels[0]
    if signs:
        assert tuple("".join(row) for row in overview.texts) == signs
    i, j = map(int, tile.strip("()").split(", "))
    assert overview.kinds[i][j] == "wrong"
    assert f"The first wrong tile is query tile {i}, key tile {j}." in steps[i].sentence
    assert facts["looks like"] in steps[i].sentence
    outlined = [kind for row in steps[i].panels[3].kinds for kind in row if kind == "wrong"]
    assert len(outlined) == 1


def test_one_wrong_entry_is_found_where_it_is():
    def kernel(q, k, v, **options):
        o = faulty_attention("bound_without_offset", q, k, v, 0)
        o[0, 0, 20, 5] += 0.25
        return o

    steps = attention_steps(kernel, 48, 48)
    assert dict(steps[0].facts)["first wrong tile"] == "(1, 0)"
    assert "wrong in key tile 0; the largest difference is 0.25, at query 20, key 5" in (
        steps[1].sentence
    )
    assert "The first wrong one is in query tile 1" in steps[0].sentence
    assert dict(steps[1].facts)["row sums"] == "1.0000 to 1.2500"
    assert "looks like" not in dict(steps[0].facts)


def test_a_kernel_of_nan_is_drawn():
    step = attention_steps(lambda q, k, v, **options: q * float("nan"), 20, 20)[0]
    assert "not a finite number" in step.sentence
    assert dict(step.facts)["row sums"] == "not all finite"
    assert {shade for row in step.panels[1].shades for shade in row} == {1.0}


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (stub, "Your kernel is not written yet. Below is flashkit's kernel"),
        (lambda q, k, v, **options: None, "Your kernel returned None"),
        (lambda q, k, v, **options: q[0], "instead of a tensor of shape (1, 1, 40, 64)"),
        (lambda q, k, v: q, "Your kernel raised TypeError"),
    ],
)
def test_a_kernel_without_an_answer_is_a_sentence_beside_flashkits_own(kernel, said):
    step = attention_steps(kernel)[0]
    assert said in step.sentence
    assert step.panels[1].title == "computed by flashkit's kernel"


def test_the_kernel_is_chosen():
    explorer = attention_explorer(partial(faulty_attention, "l_not_rescaled"))
    assert dict(explorer.steps[0].facts)["first wrong tile"] == "(0, 0)"
    explorer.set(whose="flashkit's")
    assert dict(explorer.steps[0].facts)["first wrong tile"] == "none"
    explorer.set(t=20, offset=-4)
    assert len(explorer.steps) == 2
    assert dict(explorer.steps[0].facts)["right row sums"] == "0.0000 to 1.0000"
    explorer.close()
    with pytest.raises(ValueError, match="S must be at most 64, got 65"):
        attention_steps(None, 48, 65)


def test_words():
    assert listed([3]) == "tile 3"
    assert listed([0, 1]) == "tiles 0 and 1"
    assert listed([0, 1, 2]) == "tiles 0 to 2"
    assert listed([0, 2, 5]) == "tiles 0, 2 and 5"
    assert trouble("f", ValueError("no good.")) == "Your f raised ValueError: no good."
