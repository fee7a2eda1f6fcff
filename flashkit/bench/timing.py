"""Taking times: interleaved, each run after a flush, medians with the middle 60 %.

Who measures one version after the other measures the weather: the clock of a GPU follows its
power, and its power follows what ran before. So every round runs every contestant once, in an
order that turns from round to round.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """Where marks come from: events on a GPU, a list of numbers in a test."""

    def mark(self) -> object:
        """A point in time, in the order of the work."""

    def settle(self) -> None:
        """Wait until all marks are in the past."""

    def between(self, start: object, stop: object) -> float:
        """Milliseconds from mark to mark."""


class Run(NamedTuple):
    """Something to time: `replay` does `calls` calls, which left what they return in `results`.

    A graph knows addresses only; `held` keeps alive what lies there.
    """

    replay: Callable[[], None]
    calls: int
    results: list
    how: str = "graph"
    held: object = None


class Times(NamedTuple):
    """Milliseconds a call: the median, and the marks below which 20 % and 80 % lie."""

    median: float
    low: float
    high: float


def times(samples: Sequence[float]) -> Times:
    """The three numbers of a list of at least one sample, by linear interpolation."""
    ordered = sorted(samples)
    return Times(statistics.median(ordered), quantile(ordered, 0.2), quantile(ordered, 0.8))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered samples lie."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def sample(
    contestants: Mapping[str, Sequence[Run]],
    rounds: int,
    clock: Clock,
    flush: Callable[[], object],
) -> dict[str, list[float]]:
    """Milliseconds a call of each contestant, `rounds` of them.

    A contestant is a list of runs on different inputs, taken in turn. `flush` empties the caches
    before each; nothing waits for the device until the end, so the host stays ahead of it.
    """
    names = list(contestants)
    marks: dict[str, list] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            run = contestants[name][number % len(contestants[name])]
            flush()
            start = clock.mark()
            run.replay()
            marks[name].append((start, clock.mark(), run.calls))
    clock.settle()
    return {
        name: [clock.between(start, stop) / calls for start, stop, calls in marks[name]]
        for name in names
    }


def rounds_for(samples: Mapping[str, Sequence[float]], calls: int, settings: "Settings") -> int:
    """How many rounds fit into the budget, given what a first round took."""
    one_round = sum(max(column) for column in samples.values()) * calls
    wanted = int(settings.budget_ms / max(one_round, 1e-3))
    return max(settings.rounds[0], min(settings.rounds[1], wanted))


class Settings(NamedTuple):
    """How long one shape may take: milliseconds, and the fewest and the most rounds."""

    budget_ms: float
    rounds: tuple[int, int]
