"""What an exercise, a case and a verdict are: plain frozen data that goes to JSON and back."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One question put to the student's function, and the bug it is there to catch.

    params say how the tensors are made (see `inputs`); args are handed on as they are.
    """

    name: str
    reason: str
    params: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseResult:
    """What became of one case.

    kind: pass, wrong, error, unwritten, timeout, died or skipped. index is the first entry that
    differs, tile the first wrong tile of queries, bugs the bugs that give this output. Of a hidden
    case a student is told its name, reason, kind and tile, never a number of its inputs.
    """

    name: str
    reason: str = ""
    kind: str = "pass"
    message: str = ""
    index: tuple[int, ...] | None = None
    wanted: str = ""
    got: str = ""
    tile: int | None = None
    bugs: tuple[str, ...] = ()
    told: str = ""  # what a student reads in place of the message where the case is hidden
    hidden: bool = False
    map: tuple[tuple[int, ...], ...] = ()  # the error by head and tile, see `errormap`

    @property
    def passed(self) -> bool:
        """Only an answer that was judged right counts."""
        return self.kind == "pass"


@dataclass(frozen=True)
class StudentError:
    """An exception from the student's code, as text: where it was and what it usually means."""

    type: str
    message: str
    cell: str = ""
    line: int | None = None
    code: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Answer:
    """What came back from one call: a plain value (see `values`), or why there is none."""

    value: Any = None
    error: StudentError | None = None
    changed: tuple[str, ...] = ()
    failure: str = ""  # "", "timeout" or "died"
    detail: str = ""
    memory: tuple[int, int] = (0, 0)  # bytes of new tensors (see `own_work`), and the GPU's peak


Inputs = dict[str, Any]
"""The arguments of one call in the order of the signature, by name."""


@dataclass(frozen=True)
class Exercise:
    """One thing that students are asked to write.

    build(case, seed) gives the inputs of one or more calls; judge(exercise, case, inputs, value)
    compares the reply with the oracle. faulty(fault, case, inputs) are the replies that a classic
    bug may give, for each of `faults`; they are compared as view(reply). Where public_counts is
    false, the public cases are for the student alone and earn nothing.
    """

    id: str
    lesson: str
    title: str
    function: str
    points: int
    signature: str
    returns: str
    public: tuple[Case, ...]
    build: Callable[[Case, int], list[Inputs]]
    judge: Callable[["Exercise", Case, Inputs, Any], CaseResult]
    faults: tuple[str, ...] = ()
    faulty: Callable[[str, Case, Inputs], list[Any]] | None = None
    view: Callable[[Any], Any] = lambda reply: reply
    faulty_elsewhere: Callable[[str, Case, Inputs], list[Any]] | None = None  # in other tiles
    probes: tuple[Case, ...] = ()  # more calls that tell bugs apart; they earn nothing
    own_work: str = ""  # what must be the student's own: "", "torch" or "kernel"
    limit_s: float = 30.0
    public_counts: bool = True
    note: str = ""  # shown when every public case passes
    explanation: str = ""  # shown in the graded report


@dataclass(frozen=True)
class Verdict:
    """The result of one check. status: public (run in place), graded, or infra (not judged)."""

    exercise: str
    points: float
    max_points: float
    cases: tuple[CaseResult, ...]
    status: str
    seed: int
    device: str
    versions: dict[str, str] = field(default_factory=dict)
    bug: str | None = None
    tile: int | None = None
    note: str = ""
    answer: str = ""  # a hash of the cells that were judged
    seen: str = ""  # where the bug first shows, on inputs that the student may know
    jailed: bool = False  # whether the student's code ran in the grader's jail
    provisional: bool = False  # whether a GPU may yet find what cannot show here

    @property
    def passed(self) -> int:
        """The number of cases that passed."""
        return sum(case.passed for case in self.cases)

    def to_json(self) -> str:
        """One line of JSON, keys in a fixed order."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Verdict":
        """The verdict that `to_json` wrote; ValueError or TypeError for anything else."""
        record = json.loads(text)
        cases = tuple(_case_result(case) for case in record.pop("cases"))
        return cls(cases=cases, **record)


def _case_result(record: dict[str, Any]) -> CaseResult:
    index = record["index"]
    lists = {"index": None if index is None else tuple(index), "bugs": tuple(record["bugs"])}
    rows = tuple(tuple(row) for row in record.get("map", ()))
    return CaseResult(**{**record, **lists, "map": rows})
