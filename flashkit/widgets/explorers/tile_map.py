"""The tile map: which key tiles each query tile visits, and the learner's own bounds over it."""

import math
from collections.abc import Callable
from typing import NamedTuple

from flashkit.contracts import check_positive, require
from flashkit.cost import tile_bounds, tile_kind
from flashkit.exercises.judge import whole
from flashkit.exercises.values import describe
from flashkit.widgets.explorers.learner import listed, trouble
from flashkit.widgets.panel import Choice, Explorer, Number
from flashkit.widgets.scene import Cells, Step

MOST = 24  # tiles on a side: more could not be told apart on a page
SIGNS = {"skip": "·", "partial": "◪", "full": "■", "extra": "+", "missing": "−"}
SHOWN = {"skip": "dim", "partial": "half", "full": "plain", "extra": "wrong", "missing": "wrong"}
BLOCKS = (4, 8, 16, 32, 64, 128)


class _Problem(NamedTuple):
    """What the functions of `cost` take after the numbers of the tiles, in their order."""

    t: int
    s: int
    offset: int
    block_m: int
    block_n: int
    causal: bool
    window: int | None


class _Row(NamedTuple):
    """One query tile: the kinds of its tiles, its true bounds, and what the learner says.

    claim is None where there is no answer, and says why. signs has "extra" and "missing" where
    the claim is wrong; outside says that the claim leaves the grid.
    """

    kinds: list[str]
    truth: tuple[int, int]
    claim: tuple[int, int] | None
    why: str
    signs: list[str]
    outside: bool


def tile_map_steps(
    t: int, s: int, offset: int, block_m: int, block_n: int,
    causal: bool = True, window: int | None = None, bounds: Callable | None = None,
) -> list[Step]:  # fmt: skip
    """One step per query tile: the whole grid of tiles, and what this query tile visits.

    bounds is the learner's tile_bounds; its [first, stop) is drawn over the truth, and the tiles
    that it visits for nothing (+) or leaves out (−) are wrong. Raises ValueError for sizes that
    are not positive and for more than 24 tiles on a side.
    """
    problem = _Problem(t, s, offset, block_m, block_n, causal, window)
    for name in ("t", "s", "block_m", "block_n", "window"):
        check_positive(name, getattr(problem, name))
    count, columns = math.ceil(t / block_m), math.ceil(s / block_n)
    require(
        max(count, columns) <= MOST,
        f"{count} x {columns} tiles are too many to draw, at most {MOST} x {MOST}: "
        "take larger tiles or smaller T and S",
    )
    rows = [_row(i, columns, problem, bounds) for i in range(count)]
    return [_step(i, rows, problem, asked=bounds is not None) for i in range(count)]


def tile_map_explorer(
    t: int = 64, s: int = 64, offset: int | None = None, block_m: int = 16, block_n: int = 16,
    window: int | None = None, bounds: Callable | None = None, *, name: str = "",
) -> Explorer:  # fmt: skip
    """The tile map with controls for all of its numbers; offset is S - T unless given.

    bounds is the learner's own tile_bounds, drawn over the truth. Explorers that are to live side
    by side need different names.
    """

    def compute(t, s, offset, window, block_m, block_n, causal):
        return tile_map_steps(t, s, offset, block_m, block_n, causal, window or None, bounds)

    sizes = [(str(n), n) for n in sorted({*BLOCKS, block_m, block_n})]
    controls = [
        Number("t", "T", t, 1, 4096),
        Number("s", "S", s, 1, 4096),
        Number("offset", "offset", s - t if offset is None else offset, -4096, 4096),
        Number("window", "window (0: none)", window or 0, 0, 4096),
        Choice("block_m", "BLOCK_M", sizes, block_m),
        Choice("block_n", "BLOCK_N", sizes, block_n),
        Choice("causal", "causal", [("yes", True), ("no", False)], True),
    ]
    name = name or ("tile map" if bounds is None else "your tile_bounds")
    return Explorer(name, compute, controls, step_label="step")


def _row(i: int, columns: int, problem: _Problem, bounds: Callable | None) -> _Row:
    kinds = [tile_kind(i, j, *problem) for j in range(columns)]
    claim, why = (None, "") if bounds is None else _asked(bounds, i, problem)
    signs = list(kinds)
    for j, kind in enumerate(kinds):
        visited = claim is not None and claim[0] <= j < claim[1]
        if claim is not None and visited != (kind != "skip"):
            signs[j] = "extra" if visited else "missing"
    outside = claim is not None and claim[0] < claim[1] and (claim[0] < 0 or claim[1] > columns)
    return _Row(kinds, tile_bounds(i, *problem), claim, why, signs, outside)


def _asked(bounds: Callable, i: int, problem: _Problem) -> tuple[tuple[int, int] | None, str]:
    """What the learner's function answers, or None and why that cannot be drawn."""
    *sizes, causal, window = problem
    try:
        value = bounds(i, *sizes, causal=causal, window=window)
    except Exception as error:  # whatever it raises is the learner's to read
        return None, f"{trouble('tile_bounds', error)} The map shows the truth."
    got = tuple(whole(x) for x in value) if isinstance(value, (tuple, list)) else ()
    if len(got) != 2 or None in got:
        return None, f"Your tile_bounds returned {describe(value)} instead of two integers."
    return got, ""


def _step(i: int, rows: list[_Row], problem: _Problem, asked: bool) -> Step:
    row, size = rows[i], problem.block_m
    last = min((i + 1) * size, problem.t) - 1
    first, stop = row.truth
    kinds = [kind for other in rows for kind in other.kinds]
    facts = [
        ("query tile", f"{i} (of 0 to {len(rows) - 1})"),
        ("rows", f"{i * size} to {last}"),
        ("positions", f"{problem.offset + i * size} to {problem.offset + last}"),
        ("first", str(first)),
        ("stop", str(stop)),
        ("visited", f"{stop - first} of {len(row.kinds)}"),
        *((kind, str(kinds.count(kind))) for kind in ("skip", "full", "partial")),
        ("work saved", f"{kinds.count('skip') / len(kinds):.1%}"),
    ]
    if asked:
        said = ("none", "none") if row.claim is None else tuple(map(str, row.claim))
        wrong = sum(other.signs != other.kinds or other.outside for other in rows)
        unanswered = any(other.claim is None for other in rows)
        facts += [("your first", said[0]), ("your stop", said[1])]
        facts += [("wrong query tiles", "no answer" if unanswered else f"{wrong} of {len(rows)}")]
    where = f"Query tile {i} holds rows {i * size} to {last}, which stand at positions "
    where += f"{problem.offset + i * size} to {problem.offset + last}. "
    return Step(where + _sentence(row) + _verdict(row), tuple(facts), (_grid(i, rows, asked),))


def _sentence(row: _Row) -> str:
    """What the query tile visits, in truth."""
    first, stop = row.truth
    if first == stop:
        return "It sees no key and visits no tile."
    masked, skipped = row.kinds.count("partial"), row.kinds.count("skip")
    need = "none needs the mask" if not masked else f"{masked} need{'s' * (masked == 1)} the mask"
    left = "no tile is skipped" if not skipped else f"{skipped} of {len(row.kinds)} are skipped"
    return f"It visits key {listed(range(first, stop))}, so [{first}, {stop}): {need}, {left}."


def _verdict(row: _Row) -> str:
    """What the learner's bounds do to this query tile; "" where none were asked for."""
    if row.claim is None:
        return f" {row.why}" if row.why else ""
    said = f" Your tile_bounds says ({row.claim[0]}, {row.claim[1]})"
    extra, missing = (
        [j for j, sign in enumerate(row.signs) if sign == kind] for kind in ("extra", "missing")
    )
    faults = [f"it visits key {listed(extra)} for nothing"] if extra else []
    faults += [f"it leaves out key {listed(missing)}, which it needs"] if missing else []
    faults += [f"it goes past the key tiles 0 to {len(row.kinds) - 1}"] if row.outside else []
    return f"{said}: {' and '.join(faults)}." if faults else f"{said}: right."


def _grid(i: int, rows: list[_Row], asked: bool) -> Cells:
    """The whole map; the bounds stand as brackets in their tiles, row i's full tiles are lit."""
    title = "■ full   ◪ needs the mask   · skipped   [ first … last )"
    if asked:
        title += " by your bounds   + visited for nothing   − left out"
    kinds = [[SHOWN[sign] for sign in row.signs] for row in rows]
    kinds[i] = ["lit" if kind == "plain" else kind for kind in kinds[i]]
    texts = [
        _bracketed(row, row.claim if asked else row.truth if r == i else None)
        for r, row in enumerate(rows)
    ]
    return Cells(
        title,
        rows=tuple(f"▶ {r}" if r == i else str(r) for r in range(len(rows))),
        columns=tuple(str(j) for j in range(len(rows[i].kinds))),
        kinds=tuple(map(tuple, kinds)),
        texts=tuple(map(tuple, texts)),
    )


def _bracketed(row: _Row, bounds: tuple[int, int] | None) -> list[str]:
    """The signs of a row, with [ in the first tile visited and ) in the last."""
    texts = [SIGNS[sign] for sign in row.signs]
    if bounds is not None and max(bounds[0], 0) < min(bounds[1], len(texts)):
        first, last = max(bounds[0], 0), min(bounds[1], len(texts)) - 1
        texts[first] = f"[{texts[first]}"
        texts[last] = f"{texts[last]})"
    return texts
