"""A recorded kernel beside the reference: the first step that differs, and the bug it shows.

The reference is `flashkit.online` in float64 over the same keys as the kernel's own loop, for all
rows of a query tile at once, so that order and size of the key tiles are the kernel's business.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from flashkit.contracts import require
from flashkit.faults import faulty_update
from flashkit.kernel_trace.names import Finder, agrees, normal_form
from flashkit.kernel_trace.recorder import Iteration, Recording
from flashkit.online import EMPTY, State, update

_STEP_FAULTS = (
    "l_not_rescaled", "acc_not_rescaled", "nothing_rescaled", "alpha_inverted", "no_max",
    "max_starts_at_zero", "max_frozen", "softmax_per_tile", "divided_early",
)  # fmt: skip
_SCORE_FAULTS = (
    "scale_missing", "scale_by_d", "causal_ignored", "causal_strict", "offset_ignored",
    "padded_keys_counted",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One head in float64, q (T, D), k and v (S, D), and the rows of one query tile."""

    q: Tensor
    k: Tensor
    v: Tensor
    offset: int
    rows: range

    def scores(self, keys: range, fault: str = "") -> Tensor:
        """Scores (R, N) of keys that may lie past the end; hidden ones are -inf."""
        d, s = self.q.shape[1], len(self.k)
        scale = {"scale_missing": 1.0, "scale_by_d": 1.0 / d}.get(fault, d**-0.5)
        columns, rows = torch.tensor(keys), torch.tensor(self.rows)[:, None]
        position = rows if fault == "offset_ignored" else rows + self.offset
        seen = columns < position if fault == "causal_strict" else columns <= position
        seen = torch.ones_like(seen) if fault == "causal_ignored" else seen
        if fault != "padded_keys_counted":
            seen = seen & (columns < s)
        scores = self.q[self.rows.start : self.rows.stop] @ _taken(self.k, keys).T * scale
        return scores.masked_fill(~seen, -math.inf)

    def states(self, tiles: list[range], fault: str = "") -> list[State]:
        """The state after each tile of keys, right or with one bug of `FAULTS`."""
        state = _nothing(len(self.rows), self.v.shape[1])
        found = []
        for keys in tiles:
            scores, values = self.scores(keys, fault), _taken(self.v, keys)
            if fault in _STEP_FAULTS:
                state = State(*faulty_update(fault, *state, scores, values))
            else:
                state = update(state, scores, values)
            found.append(state)
        return found


def _nothing(rows: int, d: int) -> State:
    """The state of rows before any key."""
    m = EMPTY.m.double().expand(rows)
    return State(m, torch.zeros_like(m), m.new_zeros(rows, d))


def _taken(x: Tensor, keys: range) -> Tensor:
    """Rows of k or v; past the end they are 0, as a masked load gives them."""
    index = torch.tensor(keys)
    return x[index.clamp(0, len(x) - 1)] * ((index >= 0) & (index < len(x)))[:, None]


@dataclass(frozen=True)
class Comparison:
    """The steps of one query tile: mine[i][role] beside right[i], and what was found of names.

    A role of `ROLES` that was not found is in no dict. notes are sentences for the reader.
    """

    problem: Problem
    block_m: int
    tiles: list[range]
    names: dict[str, str]
    notes: tuple[str, ...]
    mine: list[dict[str, Tensor]]
    right: list[State]

    @cached_property
    def wrong(self) -> list[dict[str, Tensor]]:
        """Which rows differ: wrong[i][role] is (R,) bool."""
        pairs = zip(self.mine, self.right, strict=True)
        return [{role: ~agrees(role, x, y) for role, x in each.items()} for each, y in pairs]

    def first_wrong(self, row: int) -> int | None:
        """The first tile where a value of this row of the query tile differs."""
        for i, roles in enumerate(self.wrong):
            if any(bool(bad[row]) for bad in roles.values()):
                return i
        return None

    def faults(self, tile: int) -> tuple[str, ...]:
        """The bugs of `FAULTS` that give all of the kernel's values up to this tile."""
        return tuple(f for f in (*_STEP_FAULTS, *_SCORE_FAULTS) if self._explains(f, tile))

    def _explains(self, fault: str, tile: int) -> bool:
        states = self.problem.states(self.tiles[: tile + 1], fault)
        pairs = zip(self.mine, states, strict=False)
        return all(
            bool(agrees(role, x, state).all()) for mine, state in pairs for role, x in mine.items()
        )

    def reach(self, tile: int, row: int) -> int | None:
        """The n for which the row's wrong values in a tile are those of the keys before n only."""
        count, keys, at = len(self.problem.rows), self.tiles[tile], slice(row, row + 1)
        before = self.right[tile - 1] if tile else _nothing(count, self.problem.v.shape[1])
        every = self.problem.scores(keys, "causal_ignored")
        for n in range(keys.start, keys.stop + 1):
            scores = every.masked_fill(torch.tensor(keys) >= n, -math.inf)
            state = update(before, scores, _taken(self.problem.v, keys))
            if all(bool(agrees(role, x, state)[at]) for role, x in self.mine[tile].items()):
                return n
        return None

    def missed(self, row: int) -> list[int]:
        """Keys that the row sees and no step of the loop visited."""
        position = self.problem.offset + self.problem.rows[row]
        visited = {key for keys in self.tiles for key in keys}
        return [j for j in range(min(position + 1, len(self.problem.k))) if j not in visited]

    def bound_fault(self) -> str | None:
        """The one bug of `FAULTS` that would end the loop where it ended."""
        if not self.tiles:
            return None
        s, offset, size = len(self.problem.k), self.problem.offset, len(self.tiles[0])
        first, end = self.problem.rows.start, self.tiles[-1].stop
        needed = min(s, offset + self.problem.rows.stop)
        ends = {
            "bound_without_offset": min(s, self.problem.rows.stop),
            "blocks_confused": min(s, offset + (first // self.block_m + 1) * size),
            "last_tile_skipped": min(needed, s // size * size),
        }
        found = [f for f, stop in ends.items() if stop < needed and -(-stop // size) * size == end]
        return found[0] if len(found) == 1 else None


def compare(
    recording: Recording, q: Tensor, k: Tensor, v: Tensor, *,
    offset: int, query_tile: int, block_m: int, block_n: int, names: dict[str, str],
) -> Comparison:  # fmt: skip
    """One query tile of a recorded launch on one head, q (T, D), k and v (S, D).

    block_m and block_n count where the kernel's variables do not show its own tiles; names maps
    roles of `ROLES` to variables where the reader knows better.
    """
    block_m = _rows_of_a_tile(recording, block_m)
    rows, steps = _query_tile(recording, query_tile, block_m, len(q))
    problem = Problem(*(x.cpu().double() for x in (q, k, v)), offset, rows)
    tiles = _key_tiles(steps, recording.counter, block_n)
    right = problem.states(tiles)
    finder = Finder(steps, recording.carried, right)
    found, notes = finder.find(names)
    mine = [{role: finder.taken(role, s, name) for role, name in found.items()} for s in steps]
    notes += normal_form(mine, right)
    return Comparison(problem, block_m, tiles, found, tuple(notes), mine, right)


def _rows_of_a_tile(recording: Recording, otherwise: int) -> int:
    """BLOCK_M as the kernel has it: the size of the vectors that its loop carries."""
    for name, x in recording.iterations[0].values.items() if recording.iterations else ():
        if name in recording.carried and x.dtype.kind == "f" and x.ndim == 1 and x.size > 1:
            return x.size
    return otherwise


def _query_tile(
    recording: Recording, query_tile: int, size: int, t: int
) -> tuple[range, list[Iteration]]:
    """The rows of a query tile, and the steps of the program that took it.

    Programs are taken to come in the order of their tiles, unless a variable that counts the rows
    says otherwise.
    """
    count = -(-t // size)
    require(0 <= query_tile < count, f"query tile must be 0 to {count - 1}, got {query_tile}")
    program = _programs(recording, size, t).get(query_tile * size, query_tile)
    rows = range(query_tile * size, min((query_tile + 1) * size, t))
    return rows, recording.of_program(program)


def _programs(recording: Recording, size: int, t: int) -> dict[int, int]:
    """From the first row of each query tile to its program, where a variable shows it."""
    firsts = [step for step in recording.iterations if step.number == 0]
    for name in firsts[0].values if firsts else ():
        runs = [_run(step, name) for step in firsts]
        starts = [run.start for run in runs if run and len(run) == size]
        if sorted(starts) == list(range(0, t, size)):
            return {start: s.program for start, s in zip(starts, firsts, strict=True)}
    return {}


def _run(step: Iteration, name: str) -> range | None:
    """The consecutive whole numbers that a variable holds, if it does."""
    x = step.values.get(name)
    if x is None or x.dtype.kind != "i" or x.ndim != 1 or x.size < 2 or (np.diff(x) != 1).any():
        return None
    return range(int(x[0]), int(x[0]) + x.size)


def _key_tiles(steps: list[Iteration], counter: str, block_n: int) -> list[range]:
    """The keys of each step: a variable that holds them, else from the loop variable."""
    for name in steps[0].values if len(steps) > 1 else ():
        runs = [_run(step, name) for step in steps]
        if all(runs) and len({run.start for run in runs}) == len(runs):
            return runs
    at = [s.values[counter].item() if counter in s.values else None for s in steps]
    if None in at or any(isinstance(x, float) for x in at):
        return [range(i * block_n, (i + 1) * block_n) for i in range(len(steps))]
    stride = abs(at[1] - at[0]) if len(at) > 1 else block_n
    if stride <= 1:  # the loop counts tiles
        return [range(x * block_n, (x + 1) * block_n) for x in at]
    return [range(x, x + stride) for x in at]
