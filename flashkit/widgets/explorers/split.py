"""Flash-decoding's split: programs against SMs, waves, predicted time, and the merge as a tree.

The time is that of `cost.decode_time`, a simple model: a lead, not a reading.
"""

import math
from dataclasses import dataclass

from flashkit import cost
from flashkit.contracts import check_positive
from flashkit.widgets.explorers.merging import GROUPINGS, MOST_PARTS, cut, merged, output, tree
from flashkit.widgets.panel import Choice, Explorer, Number
from flashkit.widgets.scene import Bars, Cells, Step, Tree
from flashkit.widgets.wording import duration, number

HEAD_DIM, ITEMSIZE, BLOCK_N = 128, 2, 64
A_ROW = 22  # SMs drawn side by side
# The worked example's four keys, each twice: the mean of their values stays what it was.
SCORES = [0.0, 1.0, 2.0, -1.0, 2.0, 0.0, -1.0, 1.0]
VALUES = [2.0, 4.0, 1.0, 3.0, 1.0, 2.0, 3.0, 4.0]


@dataclass(frozen=True)
class Plan:
    """How num_splits cuts a decode step, and the seconds that the model predicts."""

    splits: int
    programs: int
    keys: int  # that each program reads
    waves: int
    busy: int  # SMs at work in the last wave
    seconds: float


def plans(batch: int, kv_heads: int, s: int, device: cost.Device) -> list[Plan]:
    """A plan for 1, 2, 4, ... splits, up to one a tile of keys."""
    for name, value in (("batch", batch), ("kv_heads", kv_heads), ("s", s)):
        check_positive(name, value)
    found = []
    for n in (2**i for i in range(math.ceil(s / BLOCK_N).bit_length())):
        programs = cost.decode_programs(batch, kv_heads, n)
        waves = math.ceil(programs / device.sms)
        busy = programs - (waves - 1) * device.sms
        seconds = cost.decode_time(
            batch, kv_heads, s, n, device, d=HEAD_DIM, itemsize=ITEMSIZE, block_n=BLOCK_N
        )
        found.append(Plan(n, programs, math.ceil(s / n), waves, busy, seconds))
    return found


def split_steps(
    batch: int, kv_heads: int, s: int, device: cost.Device, grouping: str = "pairwise"
) -> list[Step]:
    """One step per num_splits, for one query a sequence and S cached keys of 128 numbers.

    The tree merges a row of eight keys, cut into num_splits parts but at most eight.
    """
    every = plans(batch, kv_heads, s, device)
    cache = 2 * batch * kv_heads * s * HEAD_DIM * ITEMSIZE
    best = cost.roofline_time(0, cache, device)
    fastest = min(plan.seconds for plan in every)
    steps = []
    for plan in every:
        end, picture = _merge(plan.splits, grouping)
        panels = (
            _programs(every, plan, device.sms),
            _last_wave(plan, device.sms),
            _times(every, plan, best),
            picture,
        )
        sentence = _sentence(plan, device.sms, plan.seconds == fastest, end)
        steps.append(Step(sentence, _facts(plan, device.sms, best, end), panels))
    return steps


def _sentence(plan: Plan, sms: int, fastest: bool, end: float) -> str:
    idle = f"{sms - plan.busy} stand idle" if plan.busy < sms else "all are busy"
    if plan.waves > 1:
        idle = f"{plan.waves} waves, and in the last one {idle}"
    least = ", the least of all" if fastest else ""
    merges = f"merged, the example's parts give O = {number(end)}"
    return (
        f"{plan.programs:,} programs on {sms} SMs: {idle}. Each reads {plan.keys:,} keys; the "
        f"model predicts {duration(plan.seconds)}{least}; {merges}."
    )


def _facts(plan: Plan, sms: int, best: float, end: float) -> tuple[tuple[str, str], ...]:
    return (
        ("num_splits", f"{plan.splits:,}"),
        ("programs", f"{plan.programs:,}"),
        ("SMs", str(sms)),
        ("waves", f"{plan.waves:,}"),
        ("busy in the last wave", f"{plan.busy / sms:.0%}"),
        ("keys a program", f"{plan.keys:,}"),
        ("predicted time", duration(plan.seconds)),
        ("all SMs reading", duration(best)),
        ("O of the example", number(end)),
    )


def _names(every: list[Plan]) -> tuple[str, ...]:
    return tuple(f"{plan.splits:,}" for plan in every)


def _programs(every: list[Plan], now: Plan, sms: int) -> Bars:
    values = tuple(plan.programs for plan in every)
    kinds = tuple("lit" if plan is now else "dim" for plan in every)
    return Bars(
        "Programs for each num_splits, log scale", _names(every), values, kinds,
        tuple(f"{value:,}" for value in values), line=sms, line_text=f"{sms} SMs",
        log=True, low=0.5, high=2 * max(*values, sms),
    )  # fmt: skip


def _last_wave(plan: Plan, sms: int) -> Cells:
    """Every SM as a cell: a cross where a program runs in the last wave, a dot where none does."""
    columns = min(A_ROW, sms)
    rows = math.ceil(sms / columns)
    places = [[row * columns + column for column in range(columns)] for row in range(rows)]

    def fill(busy: str, idle: str, nothing: str) -> tuple[tuple[str, ...], ...]:
        pick = [[busy if i < plan.busy else idle if i < sms else nothing for i in row]
                for row in places]  # fmt: skip
        return tuple(tuple(row) for row in pick)

    return Cells(
        "SMs in the last wave: × works, · stands idle",
        tuple(str(row * columns) for row in range(rows)), tuple(str(i) for i in range(columns)),
        kinds=fill("good", "dim", "plain"), texts=fill("×", "·", ""),
    )  # fmt: skip


def _times(every: list[Plan], now: Plan, best: float) -> Bars:
    values = tuple(plan.seconds * 1e6 for plan in every)
    kinds = tuple("lit" if plan is now else "dim" for plan in every)
    texts = tuple(duration(plan.seconds) for plan in every)
    return Bars(
        "Predicted time, log scale; the line: all SMs reading at once", _names(every), values,
        kinds, texts, line=best * 1e6, line_text=duration(best),
        log=True, low=best * 1e6 / 2, high=2 * max(values),
    )  # fmt: skip


def _merge(splits: int, grouping: str) -> tuple[float, Tree]:
    """O of the example row and the tree of its parts."""
    nodes = merged(cut(SCORES, VALUES, min(splits, MOST_PARTS)), grouping)
    title = f"A small row of {len(SCORES)} keys, cut into num_splits parts and merged"
    return output(nodes[-1]), tree(title, nodes, digits=2)


def split_explorer(
    batch: int = 1, kv_heads: int = 8, s: int = 8192, device: str = "H200"
) -> Explorer:
    """num_splits on the slider: how a decode step fills a GPU, and what merging its parts gives.

    The controls set batch, KV heads, the length S of the cache, the device, and the grouping.
    """

    def compute(device, **values):
        return split_steps(**values, device=cost.DEVICES[device])

    controls = [
        Number("batch", "batch", batch, 1, 1024),
        Number("kv_heads", "KV heads", kv_heads, 1, 256),
        Number("s", "S", s, 1, 2**20, 1024),
        Choice("device", "device", tuple(cost.DEVICES), device),
        Choice("grouping", "grouping", GROUPINGS, GROUPINGS[0]),
    ]
    return Explorer("split", compute, controls, step_label="cut")
