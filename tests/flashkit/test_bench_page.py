"""The page of the docs holds what the files say, to the last digit."""

import re
from pathlib import Path

import pytest

from flashkit.bench import check, ladder, page, runner
from flashkit.bench.ladder import (
    BACKWARD_RUNGS,
    BACKWARDS,
    DECODE_RUNGS,
    DECODES,
    IDEA_RUNGS,
    LADDERS,
    PREFILLS,
    RUNGS,
)
from flashkit.bench.machine import Ceilings, Machine
from flashkit.bench.modes import MODES
from flashkit.bench.rows import Row, compared, written
from flashkit.bench.shapes import Shape

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ladder.md"
HERE = Machine("2026-11-29", "NVIDIA H200", "580.1", "torch 2.11.0", "flashkit bench --ladder")
RATES = Ceilings(700.0, 50.0, 4000.0)


def all_rows(mode="ladder", ms=2.0):
    return [
        Row(shape, one.name, one.ours, measure, ms=ms, low=ms, high=ms, samples=9, error=1e-3)
        for group in MODES[mode].groups
        for shape in group.shapes
        for one in group.implementations
        for measure in group.measures
    ]


def save(path, rows):
    path.write_text(written(HERE, RATES, compared(rows, RATES)))
    return path


def test_the_ladder_climbs_from_the_chapter_to_the_fastest():
    assert RUNGS[0].implementation.options == {"backend": "teaching", "block_m": 32, "block_n": 32}
    assert RUNGS[-1].implementation.options == {"backend": "hopper"}
    for one in LADDERS.values():
        names = [rung.implementation.name for rung in one.rungs]
        assert len(set(names)) == len(names)
        assert [x.name for x in ladder.contestants(one)] == [*names, "cudnn"]


def test_a_table_has_the_speed_of_every_rung_and_its_share_of_cudnn():
    rows = all_rows(ms=4.0)
    fast = [r for r in rows if r.implementation == "hopper" and r.shape.causal][0]
    rows[rows.index(fast)] = Row(fast.shape, "hopper", True, "call", ms=2.0)
    lines = ladder.table(RUNGS, PREFILLS, rows).splitlines()
    assert len(lines) == 2 + len(RUNGS) + 1
    cells = lines[-2].split(" | ")
    assert cells[0] == "| hopper"
    assert cells[2] == f"{fast.shape.flops / 2e-3 / 1e12:.0f}"
    assert cells[4:] == ["2.00", "1.00 |"]
    assert lines[-1].startswith("| cuDNN")


def test_a_rung_that_was_skipped_is_a_dash_and_one_that_is_missing_an_error():
    rows = all_rows()
    where = next(i for i, r in enumerate(rows) if r.implementation == "hopper")
    rows[where] = Row(rows[where].shape, "hopper", True, "call", "skipped", "not served")
    assert " | — | " in ladder.table(RUNGS, PREFILLS, rows).splitlines()[-2]
    del rows[where]
    with pytest.raises(ValueError, match="no row of hopper on D128 causal"):
        ladder.table(RUNGS, PREFILLS, rows)


def test_ladders_on_the_same_shapes_share_what_is_on_both():
    climbs = dict(ladder.climbs())
    assert set(climbs) == {PREFILLS, BACKWARDS, DECODES}
    names = [implementation.name for implementation in climbs[PREFILLS]]
    assert len(names) == len(set(names))
    assert {rung.implementation.name for rung in (*RUNGS, *IDEA_RUNGS)} < set(names)
    for one in LADDERS.values():
        assert ladder.table(one.rungs, one.shapes, all_rows()).count("\n") == len(one.rungs) + 2


def test_each_step_of_the_backward_ladder_is_one_switch():
    shape = BACKWARDS[0]
    full = ladder._without(shape)["config"]
    addressed, masked = (
        rung.implementation.options["options"](shape)["config"] for rung in BACKWARD_RUNGS[1:3]
    )
    for walk in ("dkdv", "dq"):
        whole = getattr(full, walk)
        assert (whole.tma, whole.split_masks) == (True, True)
        assert getattr(addressed, walk) == whole._replace(tma=False, split_masks=False)
        assert getattr(masked, walk) == whole._replace(split_masks=False)


def test_a_page_is_filled_from_the_file_it_names(tmp_path):
    save(tmp_path / "a.csv", all_rows())
    text = "before\n<!-- decode ladder from a.csv -->\nold\n<!-- end -->\nafter\n"
    once = page.filled(text, tmp_path)
    table = ladder.table(DECODE_RUNGS, DECODES, all_rows())
    assert once == f"before\n<!-- decode ladder from a.csv -->\n\n{table}\n\n<!-- end -->\nafter\n"
    assert page.filled(once, tmp_path) == once


def test_a_table_that_nobody_makes_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no table is named 'x'"):
        page.filled("<!-- x from a.csv -->\n<!-- end -->", tmp_path)


def test_targets_and_reasons_are_told(tmp_path):
    rows = all_rows("quick")
    at = next(i for i, r in enumerate(rows) if r.implementation == "xformers")
    rows[at] = Row(rows[at].shape, "xformers", False, "call", "skipped", "not installed: no")
    save(tmp_path / "a.csv", rows)
    kinds = ("targets", "skipped", "provenance")
    text = "".join(f"<!-- {kind} from a.csv -->\n<!-- end -->\n" for kind in kinds)
    text = page.filled(text, tmp_path)
    assert "| forward, Triton, D128, T 8k to 16k | cudnn | 0.75 | 0.85 | 1.00 | aim |" in text
    assert "| --- | --- | ---: | ---: | ---: | --- | --- |" in text
    assert "| xformers | 1 | not installed: no |" in text
    assert f"- {HERE.line()}" in text
    assert f"{len(rows)} rows, {len(rows) - 1} timed" in text


def test_the_orders_of_the_loops_are_counted_and_timed(tmp_path):
    """One head of 16k tokens, D 128: o, q, k and v of 2 bytes hold 4 MiB each, o of 4 bytes 8."""
    save(tmp_path / "a.csv", all_rows(ms=4.0))
    text = page.filled("<!-- loop orders from a.csv -->\n<!-- end -->", tmp_path)
    keys, one, many = (line.split(" | ") for line in text.splitlines()[4:7])
    mib, rows = 2**20, 16384
    moved = 2 * 4 * mib + 256 * (4 * mib + 2 * 8 * mib + 2 * 2 * 4 * rows)
    assert keys[:3] == ["| keys outside", "32", f"{moved / 1e9:.2f}"]
    moved = 2 * 4 * mib + 128 * 2 * 4 * mib
    assert one[:3] == ["| queries outside", "32", f"{moved / 1e9:.2f}"]
    assert many[:3] == ["| a program a block", "4096", one[2]]
    # a tile of 64 keys: 128 numbers of o are multiplied, added to and divided, or multiplied only
    assert [line[3] for line in (keys, one)] == ["11.0", "7.1"]
    speed = f"{PREFILLS[-1].flops / 4e-3 / 1e12:.0f} |"
    assert [line[4] for line in (keys, one, many)] == [speed] * 3


def test_counters_are_copied(tmp_path):
    (tmp_path / "p.csv").write_text("# where\ncounter,triton,hopper\nregisters,255,168\n")
    text = page.filled("<!-- profile from p.csv -->\n<!-- end -->", tmp_path)
    assert "| registers | 255 | 168 |" in text


def test_a_bar_in_a_cell_does_not_end_it():
    assert page.markdown([["a"], ["x|y"]], set()) == "| a |\n| --- |\n| x\\|y |"


RUN_ANYWHERE = [*RUNGS[:3], *IDEA_RUNGS[:4], *BACKWARD_RUNGS[:4]]


@pytest.mark.parametrize("rung", RUN_ANYWHERE, ids=lambda rung: rung.new)
def test_the_rungs_that_the_interpreter_can_run_are_right(rung):
    path = "backward" if rung in BACKWARD_RUNGS else "forward"
    shape = Shape(path, 1, 2, 2, 70, 70, 64, dtype="float32")
    (x,) = runner.inputs(shape, 1, "cpu")
    o = rung.implementation.call(shape)(x)
    assert check.error(o, check.exact(shape, x)) < 1e-5


def test_the_page_of_the_docs_is_what_its_files_say():
    text = PAGE.read_text()
    assert page.filled(text, ROOT) == text, "run benchmarks/ladder_page.py"
    assert len(page.BLOCK.findall(text)) == 11


def test_no_speed_is_written_by_hand():
    prose = page.BLOCK.sub("", PAGE.read_text())
    assert re.findall(r"\d[\d.,]* ?(?:%|times|ms|us|(?:TFLOP|[GT]B)/s)", prose) == []


@pytest.mark.parametrize("picture", re.findall(r"\]\((\S+\.png)\)", PAGE.read_text()))
def test_its_pictures_are_there(picture):
    assert (PAGE.parent / picture).is_file()
