"""Run the catalogue through the engine, and say where its answers do not fare as they must."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from autograder.catalogue import Entry
from autograder.catalogue.one_shape import accepts
from autograder.engine import SolutionCell, grade
from flashkit.exercises import EXERCISES

SEED = 15
PRELUDE = "import flashkit  # before triton: it chooses the interpreter where there is no GPU"
NAMED_RIGHTLY = 0.9
"""The share of the wrong answers whose bug must be named; none may be named wrongly."""


@dataclass(frozen=True)
class Outcome:
    """What became of one answer.

    failed are the cases that it failed, of `cases`; public those of them that a student can see;
    one_shape is whether a test of one shape accepts it, None where there is no such test.
    """

    entry: Entry
    device: str
    status: str
    cases: int
    failed: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    bug: str | None = None
    provisional: bool = False
    one_shape: bool | None = None
    note: str = ""
    seconds: float = 0.0

    @property
    def hidden_here(self) -> bool:
        """Whether its bug cannot show on this device."""
        return self.entry.needs_gpu and self.device == "cpu"

    @property
    def problem(self) -> str:
        """Where it did not fare as it must, or ""."""
        entry, failed = self.entry, ", ".join(self.failed) or "none"
        if self.status != "graded":
            return f"{entry.name} was not graded: {self.note}"
        if entry.right and self.failed:
            return f"{entry.name} is right and fails: {failed}"
        if self.hidden_here and (self.failed or not self.provisional):
            return f"{entry.name} must pass here and be marked provisional, failed: {failed}"
        if not entry.right and not self.hidden_here and entry.dies_by not in self.failed:
            return f"{entry.name} must die by {entry.dies_by!r}, failed: {failed}"
        if self.bug not in (None, entry.bug):
            return (
                f"{entry.name} is named {self.bug}, and is {entry.bug or 'none that has a name'}"
            )
        return ""


def run(
    entries: Sequence[Entry], device: str, jobs: int, jailed: bool = True
) -> Iterator[Outcome]:
    """The outcome of each answer as it is done, `jobs` at a time."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(jobs, context, _prepare, (device,)) as pool:
        tasks = [pool.submit(judge, entry, device, jailed) for entry in entries]
        try:
            for task in as_completed(tasks):
                yield task.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare(device: str) -> None:
    """Before anything else in a process of the pool."""
    torch.set_num_threads(1)
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # on a machine with a GPU too


def judge(entry: Entry, device: str, jailed: bool = True) -> Outcome:
    """One answer through the engine, and through the test of one shape."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="catalogue-") as scratch:
        verdict = grade(
            entry.exercise,
            [SolutionCell(entry.exercise, entry.source)],
            prelude=PRELUDE,
            device=device,
            seed=SEED,
            scratch=Path(scratch),
            jailed=jailed,
        )
    failed = tuple(case.name for case in verdict.cases if not case.passed)
    public = {case.name for case in EXERCISES[entry.exercise].public}
    return Outcome(
        entry=entry,
        device=device,
        status=verdict.status,
        cases=len(verdict.cases),
        failed=failed,
        public=tuple(name for name in failed if name in public),
        bug=verdict.bug,
        provisional=verdict.provisional,
        one_shape=accepts(entry.path, entry.exercise, device),
        note=verdict.note,
        seconds=time.monotonic() - start,
    )


def problems(outcomes: Sequence[Outcome], whole: bool = True) -> list[str]:
    """Every sentence that stands between the outcomes and what the catalogue promises.

    The share of bugs that are named is asked of the whole catalogue only.
    """
    found = [outcome.problem for outcome in outcomes if outcome.problem]
    score = scores(outcomes)
    if whole and score.named < NAMED_RIGHTLY * score.nameable:
        found.append(
            f"{score.named} of {score.nameable} bugs that have a name are named, "
            f"at least {NAMED_RIGHTLY:.0%} must be"
        )
    return found


@dataclass(frozen=True)
class Scores:
    """How many of the wrong answers that can be caught here each suite catches.

    nameable are those whose bug has an id; named are those that were given it.
    """

    wrong: int
    caught: int
    by_public: int
    one_shape_of: int
    by_one_shape: int
    nameable: int
    named: int
    right: int
    spared: int


def scores(outcomes: Sequence[Outcome]) -> Scores:
    """The totals over all outcomes."""
    wrong = [o for o in outcomes if not o.entry.right and not o.hidden_here]
    right = [o for o in outcomes if o.entry.right]
    shaped = [o for o in wrong if o.one_shape is not None]
    nameable = [o for o in wrong if o.entry.bug]
    return Scores(
        wrong=len(wrong),
        caught=sum(bool(o.failed) for o in wrong),
        by_public=sum(bool(o.public) for o in wrong),
        one_shape_of=len(shaped),
        by_one_shape=sum(not o.one_shape for o in shaped),
        nameable=len(nameable),
        named=sum(o.bug == o.entry.bug for o in nameable),
        right=len(right),
        spared=sum(not o.failed for o in right),
    )
