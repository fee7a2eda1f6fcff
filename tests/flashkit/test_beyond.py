"""The pictures of lesson 6, and the files of results that it reads."""

import pytest

from flashkit.bench.results import RESULTS, newest, records
from flashkit.cost import visible_pairs
from flashkit.widgets.figures import beyond, ring_work, timeline


@pytest.mark.parametrize("placement", ["zigzag", "contiguous"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_ring_map_counts_every_visible_pair_once(world, placement):
    work = beyond.ring_pairs(world, placement)
    assert sum(map(sum, work)) == visible_pairs(16 * world, 16 * world)


def test_zigzag_gives_every_rank_the_same_work_in_every_step():
    work = beyond.ring_pairs(4, "zigzag")
    assert all(row == work[0] for row in work)
    assert "add up to 3.5 in order, 2.0 in zigzag" in ring_work(4).layout.title.text


@pytest.mark.parametrize(("d", "share"), [(64, 0.5), (128, 2 / 3), (256, 0.8)])
def test_a_lonely_program_keeps_the_tensor_cores_busy_for_a_share_of_its_time(d, share):
    assert beyond.busy_share(d) == pytest.approx(share)


@pytest.mark.parametrize("d", [64, 128, 256])
def test_no_unit_of_the_timeline_does_two_things_at_once(d):
    matmul, softmax = d * beyond.CLOCKS_PER_COLUMN, beyond.CLOCKS_PER_EXP
    blocks = beyond._blocks(matmul, softmax, 4)
    assert sum(kind == "tensor cores" for _, kind, *_ in blocks) == 16
    for alone in (True, False):
        mine = [x for x in blocks if (x[0] == beyond.ALONE) == alone and x[1] == "tensor cores"]
        mine.sort(key=lambda x: x[2])
        for (*_, start, length), (*_, after, _) in zip(mine, mine[1:], strict=False):
            assert start + length <= after + 1e-12
    assert len(timeline(d).data) == 2


def test_the_newest_file_that_has_what_is_asked_for_is_read(tmp_path):
    text = sorted(RESULTS.glob("*-h200-ladder.csv"))[0].read_text()
    (tmp_path / "2026-01-01-h200-ladder.csv").write_text(text)
    (tmp_path / "2026-01-02-h200-ladder.csv").write_text(text.replace("\nforward,", "\ndecode,"))
    comment, ceilings, rows = newest("ladder", lambda row: row.shape.path == "forward", tmp_path)
    assert comment in text.splitlines()[0]
    assert ceilings.matmul > 0
    assert {row.status for row in rows} == {"ok"}
    assert newest("ladder", lambda row: row.implementation == "nobody's", tmp_path) is None
    assert newest("quick", lambda row: True, tmp_path) is None


def test_records_are_rows_by_column(tmp_path):
    assert records("fp8", tmp_path) is None
    (tmp_path / "2026-01-01-h200-fp8.csv").write_text("# old\na,b\n1,2\n")
    (tmp_path / "2026-01-02-h200-fp8.csv").write_text("# new\na,b\n3,4\n")
    assert records("fp8", tmp_path) == ("new", [{"a": "3", "b": "4"}])
