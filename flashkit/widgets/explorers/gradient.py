"""The backward pass of one row of attention, part by part, and a nudge of each score beside it."""

import math
from dataclasses import dataclass

import torch

from flashkit.contracts import require
from flashkit.widgets.panel import Choice, Explorer, Number, Text, numbers
from flashkit.widgets.scene import Bars, Lines, Step
from flashkit.widgets.wording import number

MOST_KEYS = 10
NUDGE = 1e-4
FORGET = ("nothing", "delta")


@dataclass(frozen=True)
class Row:
    """One row, values of one column: all parts in float64, as lists over the keys."""

    p: list[float]
    o: float
    do: float
    dv: list[float]
    dp: list[float]
    delta: float
    ds: list[float]
    measured: list[float]  # the change of do * o as each score is nudged, by the nudge


def gradient_row(scores: list[float], values: list[float], do: float, forget="nothing") -> Row:
    """The parts; with forget="delta" ds is what it would be without it."""
    require(len(scores) == len(values), f"{len(scores)} scores, but {len(values)} values")
    require(len(scores) <= MOST_KEYS, f"at most {MOST_KEYS} keys fit, got {len(scores)}")
    s, v = torch.tensor(scores).double(), torch.tensor(values).double()
    p = s.softmax(0)
    o, dp = (p * v).sum(), do * v
    delta = do * o
    ds = p * (dp if forget == "delta" else dp - delta)
    nudged = s + NUDGE * torch.eye(len(s)).double()
    measured = (do * (nudged.softmax(1) @ v) - do * ((2 * s - nudged).softmax(1) @ v)) / 2 / NUDGE
    lists = (x.tolist() for x in (p, do * p, dp, ds, measured))
    p, dv, dp, ds, measured = lists
    return Row(p, o.item(), do, dv, dp, delta.item(), ds, measured)


def gradient_steps(
    scores: list[float], values: list[float], do: float = 1.0, forget: str = "nothing"
) -> list[Step]:
    """Forward, dv, dp, delta, ds, and ds beside what a nudge of each score measures."""
    require(forget in FORGET, f"forget must be one of {FORGET}, got {forget!r}")
    row = gradient_row(scores, values, do, forget)
    facts = (("O", number(row.o)), ("delta", number(row.delta)))
    says, lines = _sentences(row, forget), _numbers(row, scores, values, forget)
    return [
        Step(sentence, facts, (*bars, Lines("In numbers", texts)))
        for sentence, bars, texts in zip(says, _panels(row, forget), lines, strict=True)
    ]


def _panels(row: Row, forget: str) -> tuple[tuple[Bars, ...], ...]:
    p = _bars("p = exp(s − lse)", row.p, low=0.0, high=1.0)
    dv, dp = _bars("dv = p · do", row.dv), _bars("dp = do · v", row.dp)
    marked, ds = _against(row, forget), _bars("ds", row.ds, kinds=_kinds(row))
    measured = _bars("measured by a nudge", row.measured, kinds=("good",) * len(row.ds))
    return (p,), (p, dv), (p, dp), (p, marked), (p, marked, ds), (ds, measured)


def _numbers(row: Row, scores: list[float], values: list[float], forget: str):
    """The formulas of each step with their numbers."""
    do, top = number(row.do, 2), max(scores)
    lse = math.log(sum(math.exp(x - top) for x in scores)) + top
    mean = sum(x * y for x, y in zip(row.p, row.dp, strict=True))
    return (
        (f"lse = {number(lse)}", f"O = Σ p · v = {number(row.o)}"),
        (f"dv = p · do, for key 0: {number(row.p[0])} · {do} = {number(row.dv[0])}",),
        (f"dp = do · v, for key 0: {number(values[0])} · {do} = {number(row.dp[0])}",),
        (f"delta = do · O = {do} · {number(row.o)} = {number(row.delta)}",
         f"      = Σ p · dp = {number(mean)}"),
        _ds_lines(row, forget),
        (f"nudge: s[j] ± {NUDGE}, and see how do · O moves",
         f"largest difference: {number(max(map(abs, _apart(row))), 6)}"),
    )  # fmt: skip


def _against(row: Row, forget: str) -> Bars:
    """dp with delta as a line; without it nothing is measured against."""
    line = {} if forget == "delta" else {"line": row.delta, "line_text": "delta"}
    kinds = tuple("lit" if x > row.delta else "plain" for x in row.dp)
    return _bars("dp against delta", row.dp, kinds=kinds, also=row.delta, **line)


def _sentences(row: Row, forget: str) -> tuple[str, ...]:
    up = [str(j) for j, x in enumerate(row.ds) if x > 0]
    rise = f"the scores of keys {', '.join(up)} should rise" if up else "no score should rise"
    worst = max(map(abs, _apart(row)))
    sums = f"All ds add up to {number(round(sum(row.ds), 4) + 0.0)}"
    return (
        f"Forward: the weights p give O = {number(row.o)}; of all this only O and lse are kept.",
        "dv first: each value gets as much of do as its weight.",
        "dp: what the output would gain from a larger weight, key by key.",
        f"delta = {number(row.delta)} is the mean of dp under p, and equals do · O: "
        "no weight is needed to compute it.",
        "ds = p · dp: delta is forgotten. " + f"{sums}, and should add up to 0."
        if forget == "delta"
        else f"ds = p · (dp − delta): for a larger loss {rise}. {sums}.",
        "A nudge of each score measures the same."
        if worst < 1e-6
        else f"A nudge of each score measures something else: it is {worst:.2g} apart.",
    )


def _ds_lines(row: Row, forget: str) -> tuple[str, ...]:
    minus = "" if forget == "delta" else f" − {number(row.delta)}"
    rows = enumerate(zip(row.p, row.dp, row.ds, strict=True))
    return tuple(f"ds[{j}] = {number(p)} · ({number(dp)}{minus}) = {number(ds)}"
                 for j, (p, dp, ds) in rows)  # fmt: skip


def _apart(row: Row) -> list[float]:
    return [x - y for x, y in zip(row.ds, row.measured, strict=True)]


def _kinds(row: Row) -> tuple[str, ...]:
    """Wrong where a nudge measures something else; lit where the score should rise."""
    pairs = zip(_apart(row), row.ds, strict=True)
    return tuple("wrong" if abs(x) > 1e-6 else "lit" if ds > 0 else "plain" for x, ds in pairs)


def _bars(title: str, values: list[float], *, kinds=None, low=None, high=None, also=0.0, **line):
    """Bars on an axis that holds 0 and the number `also`."""
    span = [*values, also, 0.0]
    kinds = kinds or ("plain",) * len(values)
    pairs = zip(values, kinds, strict=True)
    digits = 4 if len(values) <= 6 else 2
    texts = tuple(("✗ " if kind == "wrong" else "") + number(x, digits) for x, kind in pairs)
    labels = tuple(str(j) for j in range(len(values)))
    low, high = min(span) if low is None else low, max(span) if high is None else high
    return Bars(title, labels, tuple(values), kinds, texts, low=low, high=high or 1.0, **line)


def gradient_explorer(
    scores: str = "0, 1, 2, -1", values: str = "2, 4, 1, 3", do: float = 1.0
) -> Explorer:
    """One row backwards, part by part; the reader sets the row, do, and what is forgotten."""

    def compute(scores, values, do, forget):
        return gradient_steps(numbers(scores), numbers(values), do, forget)

    controls = [
        Text("scores", "scores", scores),
        Text("values", "values", values),
        Number("do", "do", do, -10.0, 10.0, 0.5),
        Choice("forget", "forget", FORGET, FORGET[0]),
    ]
    return Explorer("gradient", compute, controls, step_label="part")
