"""Which bug is it? The cases say that something is wrong, more calls say what.

A bug is named when it explains every wrong answer that it can be compared with, would leave right
what was right, and no other bug does. Else nothing is named.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from flashkit.exercises import manner
from flashkit.exercises.inputs import case_seed
from flashkit.exercises.marking import run_case
from flashkit.exercises.model import Answer, Case, CaseResult, Exercise, Inputs

Ask = Callable[[Inputs], Answer]
MAX_FAILED = 4
"""Failed cases that are looked at again; the probes come on top."""
ENOUGH = 6
"""Wrong answers that a single suspect must explain before no more are asked for."""
MAX_SUSPECTS = 8
"""More than these cannot be told apart."""
PROBE_SEED = 0


class Finding(NamedTuple):
    """The bug, or None, and where it first shows on inputs that a student may know."""

    bug: str | None
    seen: str = ""


def name_bug(
    exercise: Exercise,
    cases: Sequence[Case],
    results: Sequence[CaseResult],
    seed: int,
    ask: Ask,
    public: Sequence[str] = (),
) -> Finding:
    """The one classic bug that explains the results of the cases; `public` names those shown.

    ask is put more calls: the failed cases again, then the probes. Their results earn nothing.
    """
    failed = [pair for pair in zip(cases, results, strict=True) if pair[1].kind == "wrong"]
    if not failed:
        return Finding(None)
    right = [(case, seed) for case, r in zip(cases, results, strict=True) if r.passed]
    with one_thread():
        bug, evidence = _compared(exercise, failed, right, seed, ask)
        if bug is None and exercise.faulty_elsewhere:
            other = replace(exercise, faulty=exercise.faulty_elsewhere)
            bug, _ = _compared(other, failed, right, seed, ask)
        first = exercise.probes[0] if exercise.probes else failed[0][0]
        bug = manner.of(exercise, first, seed, ask) or bug
        bug = bug or manner.of_numbers(exercise, evidence.wrong, ask)
        if bug == "answer_varies":
            unwritten = _compared(exercise, failed, right, seed, manner.steady(ask))[0]
            bug = unwritten or (bug if manner.all_varies(exercise, evidence.wrong, ask) else None)
    shown = [*public, *(case.name for case in exercise.probes)]
    return Finding(bug, _first(evidence.results, shown) if bug else "")


def _compared(exercise: Exercise, failed, right, seed: int, ask: Ask):
    """The bug that the numbers of the answers betray, and the evidence."""
    evidence = _Evidence(exercise, ask)
    for case, result in failed[:MAX_FAILED]:
        evidence.add(case, seed, result)
    for case in exercise.probes:
        if evidence.open:
            evidence.add(case, PROBE_SEED)
    return evidence.bug(right), evidence


@contextmanager
def one_thread():
    """Small tensors are slower in several threads, and a loaded machine makes it far worse."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Evidence:
    """The suspects that are left, and what was seen so far."""

    def __init__(self, exercise: Exercise, ask: Ask):
        self.exercise, self.ask = exercise, ask
        self.suspects: set[str] | None = None
        self.results: list[CaseResult] = []
        self.wrong: list[tuple[Case, int]] = []
        self.right: list[tuple[Case, int]] = []
        self.stopped = False

    @property
    def open(self) -> bool:
        """Whether more calls could tell more."""
        left = len(self.exercise.faults if self.suspects is None else self.suspects)
        return not self.stopped and (left > 1 or (left == 1 and len(self.wrong) < ENOUGH))

    def add(self, case: Case, seed: int, result: CaseResult | None = None) -> None:
        """Ask again, unless the result names its bugs, and strike out what does not fit."""
        if self.stopped or "raises" in case.params:
            return
        if result is None or not result.bugs:
            result = self._again(case, seed)
        if "relation" in case.params and not result.bugs and not result.passed:
            return  # two right answers that do not agree bit by bit: no bug's numbers show in that
        self.stopped = result.kind in ("timeout", "died", "skipped")
        self.results.append(result)
        if result.passed:
            self.right.append((case, seed))
        elif result.kind == "wrong":
            self.wrong.append((case, seed))
            left = set(self.exercise.faults) if self.suspects is None else self.suspects
            found = set(result.bugs)
            self.suspects = found if self.suspects is None else left & found

    def _again(self, case: Case, seed: int) -> CaseResult:
        faults = self.exercise.faults if self.suspects is None else tuple(self.suspects)
        return run_case(self.exercise, case, seed, self.ask, faults)

    def bug(self, right: list[tuple[Case, int]]) -> str | None:
        """The only suspect that would have left right what was right."""
        suspects = self.suspects or set()
        if len(suspects) > MAX_SUSPECTS:
            return None
        for case, seed in [*self.right, *right]:
            if "raises" not in case.params:
                suspects = {bug for bug in suspects if harmless(self.exercise, bug, case, seed)}
        return suspects.pop() if len(suspects) == 1 else None


def harmless(exercise: Exercise, bug: str, case: Case, seed: int) -> bool:
    """Whether a function with this bug, in one way of writing it, would pass the case."""
    if bug not in exercise.faults:
        return True
    blind = replace(exercise, faults=())
    for inputs in exercise.build(case, case_seed(seed, exercise.id, case.name)):
        replies = exercise.faulty(bug, case, inputs)
        judged = (exercise.judge(blind, case, inputs, reply).passed for reply in replies)
        if replies and not any(judged):
            return False
    return True


def _first(results: list[CaseResult], shown: Sequence[str]) -> str:
    """Where the first wrong result on known inputs is, in words."""
    found = next((r for r in results if r.kind == "wrong" and r.name in shown), None)
    if found is None:
        return ""
    places = [] if found.tile is None else [f"tile {found.tile} of the queries"]
    if found.index and len(found.index) == 4:
        places += [f"row {found.index[2]}", f"head {found.index[1]}"]
    where = f": {', '.join(places)}" if places else ""
    return f'first seen with "{found.name}"{where}'
