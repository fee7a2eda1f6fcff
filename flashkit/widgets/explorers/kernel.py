"""Your kernel, tile by tile: m, l and acc of the learner's own kernel beside the right ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

import flashkit
from flashkit import runtime
from flashkit.contracts import check_positive, require
from flashkit.exercises.values import describe
from flashkit.faults import FAULTS
from flashkit.kernel_trace import ROLES, Comparison, Recording, compare, parse_names, record
from flashkit.online import State, finish
from flashkit.widgets.explorers.kernel_scene import end_step, number, span, tile_step
from flashkit.widgets.explorers.learner import trouble
from flashkit.widgets.panel import Choice, Explorer, Number, Text
from flashkit.widgets.scene import Step

INPUTS = ("random", "all scores far below 0", "large scores")
MOST = 128  # queries and keys; the interpreter takes a millisecond a tile
SAME = 1e-3  # of an output row in float32
STUB = (
    "Your flash_attention is not written yet, so this is flashkit's own kernel: write yours, run "
    "its cell and this one again."
)
BOUNDS = (
    "Look at where the loop stops: the last key a query tile needs is at "
    "offset + (pid_m + 1) * BLOCK_M - 1, and at most S - 1."
)


class _Run(NamedTuple):
    """One launch of the learner's kernel, what it was given, and what is to be said about it."""

    recording: Recording
    q: Tensor
    k: Tensor
    v: Tensor
    offset: int
    block_m: int
    block_n: int
    said: str

    def compared(self, query_tile: int, names: dict[str, str]) -> Comparison:
        """One query tile beside the reference."""
        return compare(
            self.recording, self.q[0, 0], self.k[0, 0], self.v[0, 0], offset=self.offset,
            query_tile=query_tile, block_m=self.block_m, block_n=self.block_n, names=names,
        )  # fmt: skip


def kernel_steps(
    flash_attention: Callable, q: Tensor, k: Tensor, v: Tensor, program: int = 0, row: int = 0,
    *, query_offset: int | None = None, block_m: int = 16, block_n: int = 16, names: str = "",
) -> list[Step]:  # fmt: skip
    """One step per key tile that the learner's kernel visits for a query row, until one is wrong.

    flash_attention(q, k, v, query_offset, block_m=, block_n=) is called once, on q (1, 1, T, D)
    and k, v (1, 1, S, D); program is the query tile, row a row of it. names maps variables as in
    "m = top, l = total" where they are not recognised. Raises ValueError for what is not there.
    """
    require(q.shape[:2] == (1, 1), f"q must have one batch and one head, got {tuple(q.shape)}")
    mapping = parse_names(names)
    run = _run(flash_attention, q, k, v, query_offset, block_m, block_n)
    return _steps(run, program, row, mapping)


def kernel_explorer(
    flash_attention: Callable, t: int = 48, s: int = 48, d: int = 16, block_m: int = 16,
    block_n: int = 16, *, name: str = "your kernel, tile by tile",
) -> Explorer:  # fmt: skip
    """The learner's own kernel in the interpreter: m, l and acc after each tile of keys.

    It is run again when the inputs change; query tile and row are looked up in that run.
    """
    runs: dict[tuple, _Run] = {}

    def compute(program, row, t, s, offset, inputs, names):
        mapping, key = parse_names(names), (t, s, offset, inputs)
        if key not in runs:
            qkv, query_offset = draw(inputs, t, s, d), _typed_offset(offset)
            runs.clear()
            runs[key] = _run(flash_attention, *qkv, query_offset, block_m, block_n)
        return _steps(runs[key], program, row, mapping)

    controls = [
        Number("program", "query tile", (t - 1) // block_m, 0, MOST - 1),
        Number("row", "row of the tile", 0, 0, MOST - 1),
        Number("t", "T", t, 1, MOST),
        Number("s", "S", s, 1, MOST),
        Text("offset", "offset (empty: S - T)", ""),
        Choice("inputs", "inputs", INPUTS, INPUTS[0]),
        Text("names", "names, as in m = top", ""),
    ]
    return Explorer(name, compute, controls)


def draw(inputs: str, t: int, s: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """q (1, 1, T, D), k and v (1, 1, S, D), the same each time; inputs is one of INPUTS."""
    require(inputs in INPUTS, f"inputs must be one of {', '.join(INPUTS)}, got {inputs!r}")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, d, generator=generator) for length in (t, s, s))
    if inputs == "all scores far below 0":
        q, k = q / 4 + 3, k / 4 - 3
    elif inputs == "large scores":
        q, k = q * 8, k * 8
    return tuple(x.to(runtime.device()) for x in (q, k, v))


def _typed_offset(text: str) -> int | None:
    """The offset that was typed; None for S - T."""
    if not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"offset must be a whole number or empty, got {text!r}") from None


def _run(flash_attention, q, k, v, query_offset, block_m, block_n) -> _Run:
    """Record the learner's kernel, or flashkit's where that is not written yet."""
    check_positive("block_m", block_m)
    check_positive("block_n", block_n)

    def recorded(function):
        blocks = {"block_m": block_m, "block_n": block_n}
        return record(lambda: function(q, k, v, query_offset, **blocks))

    found, said = recorded(flash_attention), ""
    if isinstance(found.error, NotImplementedError):
        found, said = recorded(flashkit.flash_attention), STUB
    offset = k.shape[2] - q.shape[2] if query_offset is None else query_offset
    return _Run(found, q, k, v, offset, block_m, block_n, said)


def _steps(run: _Run, query_tile: int, row: int, names: dict[str, str]) -> list[Step]:
    recording = run.recording
    if recording.error is not None and not recording.iterations:
        raised = trouble("flash_attention", recording.error)
        return [end_step(f"{raised} No tile was finished, so there is nothing to compare.")]
    found = run.compared(query_tile, names)
    rows = len(found.problem.rows)
    require(0 <= row < rows, f"row of the tile must be 0 to {rows - 1}, got {row}")
    wrong = found.first_wrong(row)
    steps = [tile_step(found, i, row) for i in range(len(found.tiles) if wrong is None else wrong)]
    steps.append(_last(run, found, row, names) if wrong is None else tile_step(found, wrong, row))
    if run.said:
        steps[0] = replace(steps[0], sentence=f"{run.said} {steps[0].sentence}")
    return steps


def _last(run: _Run, found: Comparison, row: int, names: dict[str, str]) -> Step:
    """After the last tile of a row whose tiles were all right."""
    looks = (_raised, _missed, _stored, _not_found, _elsewhere)
    said = next(filter(None, (look(run, found, row, names) for look in looks)), "")
    tiles = len(found.tiles)
    good = f"All tiles agree ({tiles}), in every row and query tile, and so does the output."
    return end_step(said or good, found, row, wrong=bool(said))


def _raised(run: _Run, found: Comparison, _row, _names) -> str:
    error = run.recording.error
    if error is None:
        limit = "The recording ends here: there were more steps than it keeps."
        return limit if run.recording.cut else ""
    said, last = trouble("flash_attention", error), run.recording.iterations[-1].program
    if not found.tiles:
        return f"{said} It stopped before it came to this query tile: choose query tile {last}."
    return f"Tile {len(found.tiles) + 1} was not finished. {said}"


def _missed(run: _Run, found: Comparison, row: int, _names) -> str:
    missed = found.missed(row)
    if not missed:
        return ""
    fault, position = found.bound_fault(), run.offset + found.problem.rows[row]
    first = f"The loop ended, but {span(missed)} {'was' if len(missed) == 1 else 'were'} never "
    first += f"visited, and this row, at position {position}, sees every key up to its own. "
    return first + (FAULTS[fault] if fault else BOUNDS)


def _stored(run: _Run, found: Comparison, row: int, _names) -> str:
    """What is wrong with the output of a row whose state was right to the end."""
    o = run.recording.result
    if not isinstance(o, Tensor) or o.shape != run.q.shape:
        return f"The state is right to the end, but flash_attention returned {describe(o)}."
    got = o[0, 0, found.problem.rows[row]].detach().cpu().double()
    state = State(*(x[row] for x in (found.right[-1] if found.right else _nothing(found))))
    right = finish(state) if state.l else torch.zeros_like(state.a)
    if torch.allclose(got, right, rtol=SAME, atol=SAME):
        return ""
    if torch.allclose(got, state.a, rtol=SAME, atol=SAME):
        return f"The state is right to the end, but not the output. {FAULTS['not_divided']}"
    return (
        f"The state is right to the end, but the output is not: its first entry is "
        f"{number(got[0].item())}, right is {number(right[0].item())}. Look at the division by l "
        "and at where the row is stored."
    )


def _nothing(found: Comparison) -> State:
    count, d = len(found.problem.rows), found.problem.v.shape[1]
    return State(torch.full((count,), -torch.inf), torch.zeros(count), torch.zeros(count, d))


def _not_found(_run, found: Comparison, _row, _names) -> str:
    lost = [role for role in ROLES if role not in found.names]
    return (
        f"What was found agrees; not looked at: {', '.join(lost)}. {found.notes[-1]}"
        if lost
        else ""
    )


def _elsewhere(run: _Run, found: Comparison, row: int, names: dict[str, str]) -> str:
    """Where another row is wrong: a bug need not show in the row that was chosen."""
    first, size = found.problem.rows.start // found.block_m, found.block_m
    others = [i for i in range(-(-run.q.shape[2] // size)) if i != first]
    for i in [first, *others]:
        there = found if i == first else run.compared(i, names)
        for r in range(len(there.problem.rows)):
            tile = there.first_wrong(r)
            if tile is not None or there.missed(r):
                what = f"tile {tile + 1} differs" if tile is not None else "keys are never visited"
                return (
                    f"This row is right, but not all are: set query tile {i} and row {r}, {what}."
                )
    return ""
