"""Fills the tables of a page of the docs from the files of results that the page itself names.

A table stands between two comments, so that the text around it can be written by hand:

    <!-- forward ladder from benchmarks/results/FILE.csv -->
    ...
    <!-- end -->
"""

import csv
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from flashkit import cost
from flashkit.bench.ladder import (
    A_PROGRAM_A_BLOCK,
    KEYS_OUTSIDE,
    LADDERS,
    ONE_PROGRAM,
    PREFILLS,
    Ladder,
    row_of,
    speed,
    table,
)
from flashkit.bench.rows import Row, read
from flashkit.bench.targets import Verdict, judged

BLOCK_M, BLOCK_N = 128, 64  # of the teaching kernels on a GPU
BLOCK = re.compile(r"<!-- ([\w ]+) from (\S+) -->\n.*?<!-- end -->", re.S)


def filled(text: str, root: Path) -> str:
    """The page with every table made anew. Raises ValueError for a table that nobody makes."""

    def block(found: re.Match) -> str:
        name, file = found.groups()
        if name not in TABLES:
            raise ValueError(f"no table is named {name!r}: there are {', '.join(TABLES)}")
        return f"<!-- {name} from {file} -->\n\n{TABLES[name](root / file)}\n\n<!-- end -->"

    return BLOCK.sub(block, text)


def _climbed(ladder: Ladder) -> Callable[[Path], str]:
    return lambda path: table(ladder.rungs, ladder.shapes, read(path)[2])


def _targets(path: Path) -> str:
    _, ceilings, rows = read(path)
    heads = ["target", "times", "at least", "aim", "measured, worst shape", "", "where"]
    return markdown([heads, *(_target(verdict) for verdict in judged(rows, ceilings))], {2, 3, 4})


def _target(verdict: Verdict) -> list[str]:
    wanted = (verdict.bar.at_least, verdict.bar.aim, verdict.value)
    numbers = ["—" if number is None else f"{number:.2f}" for number in wanted]
    word = f"**{verdict.word}**" if verdict.word == "gap" else verdict.word
    return [verdict.target, verdict.bar.against, *numbers, word, verdict.where]


def _provenance(path: Path) -> str:
    comments, _, rows = read(path)
    timed = [row for row in rows if row.status == "ok"]
    return "\n".join(f"- {line}" for line in [*comments, f"{len(rows)} rows, {len(timed)} timed"])


def _skipped(path: Path) -> str:
    """Who did not run, on how many rows, and why."""
    counts: dict[tuple[str, str], int] = {}
    for row in _not_timed(read(path)[2]):
        key = (row.implementation, row.note)
        counts[key] = counts.get(key, 0) + 1
    lines = [[name, str(count), note] for (name, note), count in counts.items()]
    return markdown([["implementation", "rows", "why not"], *lines], {1})


def _not_timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.status != "ok"]


def _loop_orders(path: Path) -> str:
    """The orders of the loops: traffic and operations of a head as counted, speed as measured."""
    shape, rows = PREFILLS[-1], read(path)[2]
    sizes, heads = (shape.t, shape.s, shape.d), shape.batch * shape.q_heads
    outside = (
        cost.keys_outside_bytes(*sizes, BLOCK_N),
        cost.non_matmul_flops(*sizes, BLOCK_N, keys_outside=True),
    )
    inside = cost.flash_bytes(*sizes, BLOCK_M), cost.non_matmul_flops(*sizes, BLOCK_N)
    plans = (
        (KEYS_OUTSIDE, heads, outside),
        (ONE_PROGRAM, heads, inside),
        (A_PROGRAM_A_BLOCK, heads * math.ceil(shape.t / BLOCK_M), inside),
    )
    lines = [["order", "programs", "bytes a head, GB", "other operations a score", "TFLOP/s"]]
    for order, programs, (moved, work) in plans:
        each = f"{moved / 1e9:.2f}", f"{work / (shape.t * shape.s):.1f}"
        lines.append([order.name, str(programs), *each, speed(row_of(order.name, shape, rows))])
    return markdown(lines, {1, 2, 3, 4})


def _copied(path: Path) -> str:
    """A file that is a table already, such as that of benchmarks/counters.py."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    table = list(csv.reader(lines))
    return markdown(table, set(range(1, len(table[0]))))


def markdown(lines: Sequence[Sequence[str]], right: set[int]) -> str:
    """A table of a head and lines; the columns of numbers, by their place, to the right."""
    rule = ["---:" if i in right else "---" for i in range(len(lines[0]))]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [cells[0], rule, *cells[1:]])


TABLES: dict[str, Callable[[Path], str]] = {
    **{f"{name} ladder": _climbed(ladder) for name, ladder in LADDERS.items()},
    "targets": _targets,
    "provenance": _provenance,
    "skipped": _skipped,
    "loop orders": _loop_orders,
    "profile": _copied,
    "memory": _copied,
}
