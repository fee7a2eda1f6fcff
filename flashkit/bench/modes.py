"""What a run of the bench holds: groups of shapes, each with its contestants and measures."""

from dataclasses import dataclass

from flashkit.bench.implementations import (
    AUTO,
    CHAPTER,
    CONTIGUOUS,
    CUDNN,
    DECODE,
    DECODE_TEACHING,
    EFFICIENT,
    FLASH,
    FLEX,
    HOPPER,
    PAGED,
    TEACHING,
    TRITON,
    XFORMERS,
    Implementation,
)
from flashkit.bench.ladder import climbs
from flashkit.bench.launchers import (
    BACKWARD_AUTO,
    BACKWARD_CUDNN,
    BACKWARD_EFFICIENT,
    BACKWARD_FLASH,
    BACKWARD_HOPPER,
    BACKWARD_TEACHING,
    BACKWARD_TRITON,
)
from flashkit.bench.rows import ROTATED, SEPARATE
from flashkit.bench.shapes import Shape, backward, decode, grouped, prefill, true_float32
from flashkit.bench.timing import Settings

PATHS = ("forward", "backward", "window", "fp32", "decode", "paged")
K = 1024


@dataclass(frozen=True)
class Group:
    """Shapes that the same implementations are timed on, by the same measures."""

    shapes: tuple[Shape, ...]
    implementations: tuple[Implementation, ...]
    measures: tuple[str, ...] = (SEPARATE,)


@dataclass(frozen=True)
class Mode:
    """A run: its groups, and how long one shape may take."""

    groups: tuple[Group, ...]
    settings: Settings

    def only(self, path: str | None) -> "Mode":
        """The part of the mode on one path; all of it for None."""
        if path is None:
            return self
        groups = [
            Group(kept, group.implementations, group.measures)
            for group in self.groups
            if (kept := tuple(shape for shape in group.shapes if shape.path == path))
        ]
        return Mode(tuple(groups), self.settings)


def _prefills(ds: tuple, ts: tuple, **mask) -> tuple[Shape, ...]:
    return tuple(prefill(d, t, **mask) for d in ds for t in ts)


def _both(ds: tuple, ts: tuple) -> tuple[Shape, ...]:
    return _prefills(ds, ts) + _prefills(ds, ts, causal=False)


LENGTHS = (512, K, 2 * K, 4 * K, 8 * K, 16 * K, 32 * K)
SHOWN = prefill(128, 16 * K)
GROUPED = (grouped(8 * K, True), grouped(8 * K, False))
TRAINED = tuple(map(backward, (*_both((128, 64), (4 * K, 8 * K, 16 * K)), *GROUPED)))
WINDOWS = _prefills((64, 128), (16 * K,), window=K)
CACHES = (K, 2 * K, 4 * K, 8 * K, 64 * K, 512 * K)
DECODES = tuple(decode(1, s) for s in CACHES) + (decode(16, 8 * K), decode(64, 8 * K))
PAGED_CACHES = ((16, 8 * K), (1, 64 * K))
PAGES = (16, 64, 128)
PAGED_DECODES = tuple(decode(b, s, page=page) for b, s in PAGED_CACHES for page in PAGES)

PEERS = (CUDNN, FLASH)
FAST = (*PEERS, TRITON, HOPPER, AUTO)
EVERYONE = (*PEERS, EFFICIENT, FLEX, XFORMERS, CHAPTER, TEACHING, TRITON, HOPPER, AUTO)
DECODERS = (*PEERS, DECODE_TEACHING, DECODE)
TRAINERS = (BACKWARD_CUDNN, BACKWARD_FLASH, BACKWARD_TRITON, BACKWARD_HOPPER, BACKWARD_AUTO)
MEASURES = (SEPARATE, ROTATED)

QUICK = Mode(
    (
        Group((SHOWN,), EVERYONE),
        Group(tuple(shape for shape in _both((128, 64), LENGTHS) if shape != SHOWN), FAST),
        Group(_both((256,), (4 * K, 16 * K)), FAST),
        Group(GROUPED, FAST),
        Group(TRAINED, TRAINERS),
        Group(WINDOWS, (FLEX, TRITON, HOPPER, AUTO)),
        Group((true_float32(4 * K),), (EFFICIENT, TEACHING, TRITON)),
        Group(DECODES, DECODERS, MEASURES),
        Group(PAGED_DECODES, (CONTIGUOUS, PAGED), MEASURES),
    ),
    Settings(budget_ms=250, rounds=(7, 40)),
)
FULL = Mode(
    (
        Group(_both((64, 128, 256), LENGTHS), EVERYONE),
        Group(GROUPED, EVERYONE),
        Group(TRAINED, (*TRAINERS, BACKWARD_EFFICIENT, BACKWARD_TEACHING)),
        Group(WINDOWS, (FLEX, CHAPTER, TEACHING, TRITON, HOPPER, AUTO)),
        Group((true_float32(4 * K), true_float32(4 * K, False)), EVERYONE),
        Group(DECODES, DECODERS, MEASURES),
        Group(PAGED_DECODES, (CONTIGUOUS, PAGED), MEASURES),
    ),
    Settings(budget_ms=1500, rounds=(10, 100)),
)
LADDER = Mode(
    tuple(Group(shapes, implementations) for shapes, implementations in climbs()),
    Settings(budget_ms=1500, rounds=(10, 60)),
)
MODES = {"quick": QUICK, "full": FULL, "ladder": LADDER}
