"""The map of a backward pass: is every visible tile visited once, by the program that owns it?"""

import pytest

from flashkit.cost import tile_kind
from flashkit.widgets.explorers import backward_map_explorer, backward_map_steps
from flashkit.widgets.explorers.backward_map import KERNELS

SIZES = [(24, 32, 4, None), (9, 21, 4, None), (21, 9, 4, None), (30, 30, 8, 6), (1, 1, 16, None)]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("t", "s", "block", "window"), SIZES)
def test_every_visible_tile_is_visited_once_by_the_program_that_owns_it(
    t, s, block, window, kernel
):
    steps = backward_map_steps(t, s, block, kernel, window)
    visited = set()
    for n, step in enumerate(steps):
        cells = step.panels[0]
        order = {
            (i, j): int(text.rstrip("◪"))
            for i, row in enumerate(cells.texts)
            for j, text in enumerate(row)
            if text not in ("", "·")
        }
        own = list(order)
        assert {(j if KERNELS[kernel].owns == "key" else i) for i, j in own} <= {n}
        assert list(order.values()) == list(range(1, len(own) + 1))
        assert not visited & set(own)
        visited |= set(own)
        assert dict(step.facts)["tiles of this program"] == str(len(own))
    kinds = {
        (i, j): tile_kind(i, j, t, s, s - t, block, block, True, window)
        for i in range(-(-t // block))
        for j in range(-(-s // block))
    }
    assert visited == {place for place, kind in kinds.items() if kind != "skip"}


def test_the_split_kernels_do_seven_products_where_the_fused_one_does_five():
    counts = {}
    for kernel in KERNELS:
        said = dict(backward_map_steps(24, 32, 4, kernel)[0].facts)["matmuls of this kernel"]
        counts[kernel] = int(said.split("= ")[1])
    assert 5 * (counts["dk and dv"] + counts["dq"]) == 7 * counts["fused"]


def test_a_program_with_nothing_to_see_writes_zeros():
    steps = backward_map_steps(12, 4, 4, "dq")
    assert steps[0].sentence == (
        "Program 0 owns query tile 0. Nothing is visible in its tiles: it writes dq of rows 0 to "
        "3, which are 0."
    )


def test_too_many_tiles_are_refused_with_what_fits():
    with pytest.raises(ValueError, match="at most 12 x 12 fit"):
        backward_map_steps(192, 192, 4)


def test_the_explorer_computes_again_when_a_control_changes():
    explorer = backward_map_explorer()
    assert len(explorer.steps) == 8
    explorer.set(kernel="dq")
    assert len(explorer.steps) == 6
