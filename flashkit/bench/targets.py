"""What the kernels should reach on an H200, and how far a run is from it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flashkit.bench.machine import Ceilings
from flashkit.bench.rows import SEPARATE, Row, best_peer

K = 1024


@dataclass(frozen=True)
class Bar:
    """A yardstick, and the times of it that a row should reach: at least, and at best.

    against: the name of an implementation, "best peer", "copy rate", "matmul rate", or "full
    causal" (the same implementation without the window).
    """

    against: str
    at_least: float | None = None
    aim: float | None = None


@dataclass(frozen=True)
class Target:
    """One line of the table: these implementations (the first with a time counts) on the shapes
    whose fields have one of these values."""

    name: str
    implementations: tuple[str, ...]
    select: Mapping[str, tuple]
    bars: tuple[Bar, ...]
    measure: str = SEPARATE

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that the target speaks of, one a shape."""
        found: dict = {}
        for row in rows:
            wanted = row.implementation in self.implementations and row.measure == self.measure
            if wanted and all(getattr(row.shape, key) in ok for key, ok in self.select.items()):
                found.setdefault(row.shape, []).append(row)
        return [min(each, key=self._rank) for each in found.values()]

    def _rank(self, row: Row) -> tuple[bool, int]:
        return row.status != "ok", self.implementations.index(row.implementation)


def _forward(d: int, *ts: int) -> dict[str, tuple]:
    return {"path": ("forward",), "kv_heads": (2048 // d,), "d": (d,), "t": ts}


def _cache(batches: tuple, *lengths: int) -> dict[str, tuple]:
    return {"path": ("decode",), "batch": batches, "s": lengths}


def _backward(d: int) -> dict[str, tuple]:
    return {"path": ("backward",), "kv_heads": (2048 // d,), "d": (d,), "t": TRAINED}


TRAINED = (4 * K, 8 * K, 16 * K)
LONG = (4 * K, 8 * K, 16 * K, 32 * K)
SHORT = {"path": ("forward",), "kv_heads": (16, 32), "t": (512, K, 2 * K)}
HOPPER, DECODE, PAGED = ("hopper",), ("triton",), ("paged",)
AUTO = ("auto", "hopper", "triton")  # where the target names no kernel

TARGETS = (
    Target(
        "forward, Triton, D128, T 8k to 16k", ("triton",), _forward(128, 8 * K, 16 * K),
        (Bar("cudnn", 0.75, 0.85), Bar("flash", 1.25)),
    ),
    Target(
        "forward, Gluon, D128, T 4k to 32k", HOPPER, _forward(128, *LONG),
        (Bar("cudnn", 1.0, 1.1), Bar("matmul rate", None, 0.9)),
    ),
    Target(
        "forward, Gluon, D64, T 4k to 32k", HOPPER, _forward(64, *LONG),
        (Bar("cudnn", 1.0, 1.1),),
    ),
    Target(
        "forward, Gluon, D256", HOPPER, _forward(256, *LONG), (Bar("cudnn", 1.0, 1.05),)
    ),
    Target("forward, short, T 512 to 2k", AUTO, SHORT, (Bar("cudnn", 0.95, 1.1),)),
    Target(
        "forward, 64 heads on 8, T 8k", AUTO, {"path": ("forward",), "q_heads": (64,)},
        (Bar("cudnn", 0.95, 1.1),),
    ),
    Target(
        "backward, Triton, D128, T 4k to 16k", ("triton",), _backward(128),
        (Bar("cudnn", 0.75, 0.9), Bar("flash", 1.0)),
    ),
    Target(
        "backward, Triton, D64, T 4k to 16k", ("triton",), _backward(64),
        (Bar("cudnn", 0.8, 0.9), Bar("flash", 1.0)),
    ),
    Target(
        "backward, Gluon, D128, T 4k to 16k", HOPPER, _backward(128), (Bar("cudnn", 1.0, 1.15),)
    ),
    Target(
        "backward, Gluon, D64, T 4k to 16k", HOPPER, _backward(64), (Bar("cudnn", 1.05, 1.25),)
    ),
    Target(
        "backward, 64 heads on 8, T 8k", AUTO, {"path": ("backward",), "q_heads": (64,)},
        (Bar("cudnn", 0.95, 1.1),),
    ),
    Target(
        "window 1024, D64 and D128, T 16k", AUTO,
        {"path": ("window",), "d": (64, 128), "t": (16 * K,)},
        (Bar("full causal", 3.0, 6.0), Bar("flex", 1.0)),
    ),
    Target(
        "decode B1, S 1k to 4k", DECODE, _cache((1,), K, 2 * K, 4 * K), (Bar("cudnn", 1.2, 1.3),)
    ),
    Target("decode B1, S 8k", DECODE, _cache((1,), 8 * K), (Bar("cudnn", 1.15, 1.3),)),
    Target(
        "decode B1, S 64k", DECODE, _cache((1,), 64 * K),
        (Bar("best peer", 1.0), Bar("copy rate", None, 0.86)),
    ),
    Target(
        "decode B16, S 8k", DECODE, _cache((16,), 8 * K),
        (Bar("copy rate", 0.94, 0.97), Bar("cudnn", None, 1.0)),
    ),
    Target(
        "decode of 2 GB: B64 S 8k", DECODE, _cache((64,), 8 * K), (Bar("copy rate", 1.04, 1.07),)
    ),
    Target(
        "decode of 2 GB: B1 S 512k", DECODE, _cache((1,), 512 * K),
        (Bar("copy rate", 1.04, 1.07),),
    ),
    Target(
        "paged decode, page 64", PAGED, {"path": ("paged",), "page": (64,)},
        (Bar("contiguous", 0.98, 1.0),),
    ),
    Target(
        "paged decode, page 16", PAGED, {"path": ("paged",), "page": (16,)},
        (Bar("contiguous", 0.96, 1.0),),
    ),
    Target("float32 (ieee), D64", ("triton",), {"path": ("fp32",)}, (Bar("best peer"),)),
)  # fmt: skip


class Verdict(NamedTuple):
    """One bar of one target: the worst value over its shapes, where that was, and the word."""

    target: str
    bar: Bar
    value: float | None
    where: str
    word: str  # "aim", "pass", "gap", "below the aim", "report", "not measured"


def judged(rows: Sequence[Row], ceilings: Ceilings) -> list[Verdict]:
    """Every bar of every target that the rows speak of."""
    verdicts = []
    for target in TARGETS:
        chosen = target.rows(rows)
        if chosen:
            verdicts += [_verdict(target, bar, chosen, rows, ceilings) for bar in target.bars]
    return verdicts


def _verdict(target: Target, bar: Bar, chosen, rows, ceilings: Ceilings) -> Verdict:
    values = []
    for row in chosen:
        value = times_of(bar.against, row, rows, ceilings) if row.status == "ok" else None
        if value is None:
            why = row.note or f"no time of {bar.against}"
            return Verdict(target.name, bar, None, f"{row.shape.label}: {why}", "not measured")
        values.append((value, row.shape.label))
    value, where = min(values)
    return Verdict(target.name, bar, value, where, _word(bar, value))


def _word(bar: Bar, value: float) -> str:
    if bar.aim is not None and value >= bar.aim:
        return "aim"
    if bar.at_least is not None:
        return "pass" if value >= bar.at_least else "gap"
    return "report" if bar.aim is None else "below the aim"


def times_of(against: str, row: Row, rows: Sequence[Row], ceilings: Ceilings) -> float | None:
    """How many times the yardstick's speed the row has; None where there is no such yardstick."""
    if against == "copy rate":
        return row.gbs / ceilings.copy_gbs
    if against == "matmul rate":
        return row.tflops / ceilings.tflops(row.shape.dtype)
    if against == "best peer":
        other = best_peer(row, rows)
    elif against == "full causal":
        whole = replace(row.shape, path="forward", window=None)
        other = _find(rows, whole, row.implementation, row.measure)
    else:
        other = _find(rows, row.shape, against, row.measure)
    return other.ms / row.ms if other else None


def _find(rows: Iterable[Row], shape, implementation: str, measure: str) -> Row | None:
    wanted = (shape, implementation, measure, "ok")
    for row in rows:
        if (row.shape, row.implementation, row.measure, row.status) == wanted:
            return row
    return None
