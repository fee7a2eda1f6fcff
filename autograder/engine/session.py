"""A submission in a worker process, and in a fresh one when a case has cost the first.

One worker serves all cases of a check. It fails closed: no answer, no points.
"""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from autograder.engine import SolutionCell, protocol, watch
from autograder.engine.launch import STARTUP_S, Worker
from flashkit.exercises.judge import failed
from flashkit.exercises.marking import error_text, run_case
from flashkit.exercises.model import Answer, Case, CaseResult, Exercise, StudentError

CELL_LIMIT_S = 60.0
MAX_LOST = 4
"""Cases that may cost a process each before the rest is not run."""
_LOST = (protocol.TimedOut, protocol.Died, protocol.ProtocolError)


class Infra(Exception):
    """The machine failed, not the student: no worker could be started."""


class Session:
    """The cells of a submission, the first of them its imports, and the worker that ran them."""

    def __init__(
        self,
        exercise: Exercise,
        cells: list[SolutionCell],
        device: str,
        scratch: Path,
        jailed: bool = True,
    ):
        self.exercise, self.cells, self.device, self.scratch = exercise, cells, device, scratch
        self.jailed = jailed
        self.worker: Worker | None = None
        self.started = self.lost = 0
        self.unsure = False  # whether a process was lost since the machine was last tried
        self.memory = (0, 0)  # bytes that the last call made, and its peak
        self.versions: dict[str, str] = {}
        self.errors: dict[int, str] = {}  # what went wrong in which cell
        self.fatal: set[int] = set()  # cells that cost a process
        self.missing = ""  # why there is no function to call

    def run(self, case: Case, seed: int) -> CaseResult:
        """One case; the clock of the exercise runs over all of its calls."""
        if self.lost > MAX_LOST:
            return failed(case, f"not run: {self.lost} cases before it did not end.", "skipped")
        try:
            self._ready()
            if self.missing:
                return failed(case, self.missing, self._missing_kind())
            deadline = time.monotonic() + self.exercise.limit_s
            return run_case(self.exercise, case, seed, lambda inputs: self._ask(inputs, deadline))
        except Infra:
            raise
        except Exception as error:  # a reply that our own judge trips over earns nothing
            what = f"the answer could not be judged ({type(error).__name__})."
            return failed(case, what, "error")

    def probe(self, inputs: dict[str, Any]) -> Answer:
        """One more call, which earns nothing, for the diagnosis of what has failed."""
        try:
            self._ready()
        except Infra as error:
            return Answer(failure="skipped", detail=str(error))
        if self.lost > MAX_LOST or self.missing:
            return Answer(failure="skipped")
        return self._ask(inputs, time.monotonic() + self.exercise.limit_s)

    def stop(self) -> None:
        """Kill the worker, if there is one."""
        if self.worker:
            self.worker.stop()
        self.worker = None

    def _ready(self) -> None:
        """See that there is a worker that has run the cells."""
        while self.worker is None and self.lost <= MAX_LOST:
            self._start()
            self._load()

    def _start(self) -> None:
        """Start a worker; a second attempt is the last."""
        said = ""
        for _ in range(2):
            self.started += 1
            home = self.scratch / f"worker-{self.started}"
            try:
                worker = Worker(home, self.device, self.jailed)
            except OSError as error:
                said = str(error)
                continue
            try:
                versions = worker.wait_ready()
                said = self._trouble(worker)
            except _LOST as error:
                said = f"{type(error).__name__} {worker.log()}"
            if said:
                worker.stop()
                continue
            names = _write(home / "cells", self.cells)
            self.worker, self.files = worker, [worker.cells / name for name in names]
            self.versions = {str(name): str(number) for name, number in versions.items()}
            self.unsure = False
            return
        raise Infra(f"No worker could be started: {said[-500:].strip()}")

    def _trouble(self, worker: Worker) -> str:
        """What a fresh worker cannot do although it is known to work, or ""."""
        request = {"op": "sentinel", "device": self.device}
        request["kernels"] = self.exercise.own_work == "kernel"
        reply = worker.ask(request, time.monotonic() + STARTUP_S).get("trouble")
        return reply if type(reply) is str else "no answer"

    def settle(self) -> None:
        """After a case that has cost a process: Infra if the machine is to blame."""
        if self.unsure:
            self._start()
            self.stop()

    def _load(self) -> None:
        """Run the cells in order; one that costs the process is left out of the next."""
        for number, path in enumerate(self.files):
            if number in self.fatal:
                continue
            request = {"op": "exec", "cell": self.cells[number].id, "path": str(path)}
            try:
                reply = self.worker.ask(request, time.monotonic() + CELL_LIMIT_S)
            except _LOST as error:
                self.fatal.add(number)
                self.errors[number] = self._loss(error, CELL_LIMIT_S)
                return
            if reply.get("error"):
                self.errors[number] = error_text(self.exercise, _student_error(reply["error"]))
        request = {"op": "find", "function": self.exercise.function}
        try:
            found = self.worker.ask(request, time.monotonic() + CELL_LIMIT_S).get("found") is True
        except _LOST as error:
            self.lost += 1
            self.missing = self._loss(error, CELL_LIMIT_S)
            return
        self.missing = "" if found else self._why_missing()

    def _why_missing(self) -> str:
        imports = 0
        own = [
            n for n, cell in enumerate(self.cells) if n == imports or cell.id == self.exercise.id
        ]
        blamed = next((n for n in reversed(own) if n in self.errors), None)
        if blamed is None:
            function, signature = self.exercise.function, self.exercise.signature
            return f"There is no function {function}: its cell must define {signature}."
        return f"Cell {self.cells[blamed].id} failed: {self.errors[blamed]}"

    def _missing_kind(self) -> str:
        return "unwritten" if "is not written yet" in self.missing else "error"

    def _ask(self, inputs: dict[str, Any], deadline: float) -> Answer:
        request = {
            "op": "call",
            "function": self.exercise.function,
            "inputs": inputs,
            "device": self.device,
            "own_work": self.exercise.own_work,
        }
        pid = self.worker.pid()
        before = watch.forget_peak(pid)
        try:
            answer = _answer(self.worker.ask(request, deadline))
        except _LOST as error:
            self.lost += 1
            kind = "timeout" if isinstance(error, protocol.TimedOut) else "died"
            return Answer(failure=kind, detail=self._loss(error, self.exercise.limit_s))
        made, on_gpu = answer.memory
        self.memory = (made, on_gpu if self.device == "cuda" else watch.peak(pid) - before)
        if answer.error and "CUDA" in answer.error.message:
            self.stop()  # after a fault on the GPU nothing else works in that process
            self.unsure = True
        return self._with_blame(answer)

    def _with_blame(self, answer: Answer) -> Answer:
        """A name that is missing because another cell failed: say so."""
        if not answer.error or answer.error.type != "NameError" or not self.errors:
            return answer
        number, text = next(iter(self.errors.items()))
        hint = f"Cell {self.cells[number].id} failed before: {text}"
        return replace(answer, error=replace(answer.error, hint=hint))

    def _loss(self, error: Exception, limit_s: float) -> str:
        """Give the worker up, and what the student is told."""
        worker, self.worker, self.unsure = self.worker, None, True
        code = worker.exit_code() if isinstance(error, protocol.Died) else None
        worker.stop()
        if worker.excess:
            return f"the process was ended: {worker.excess}."
        if isinstance(error, protocol.TimedOut):
            return f"no answer within {limit_s:g} s: is there a loop that never ends?"
        if isinstance(error, protocol.ProtocolError):
            return f"the answer could not be read ({error})."
        how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        return f"the process ended before it answered ({how}): return, do not exit."


def _write(folder: Path, cells: list[SolutionCell]) -> list[str]:
    """Each cell in a file of its own, which another user may read; the names of the files."""
    names = []
    for number, cell in enumerate(cells):
        name = re.sub(r"\W", "_", cell.id, flags=re.ASCII)[:60]
        names.append(f"{number:02d}_{name}.py")
        path = folder / names[-1]
        path.write_text(cell.source, encoding="utf-8", errors="backslashreplace")
        path.chmod(0o644)
    folder.chmod(0o755)
    return names


def _answer(reply: dict[str, Any]) -> Answer:
    error, changed, memory = (reply.get(name) for name in ("error", "changed", "memory"))
    if error:
        return Answer(error=_student_error(error))
    if type(changed) is not list or type(memory) is not list or "value" not in reply:
        raise protocol.ProtocolError("no answer in it")
    if [type(number) for number in memory] != [int, int]:
        raise protocol.ProtocolError("no two numbers of bytes")
    changed = tuple(str(name)[:40] for name in changed)
    return Answer(value=reply["value"], changed=changed, memory=tuple(memory))


def _student_error(record: Any) -> StudentError:
    """The record of an exception, as text, whatever the worker sent."""
    record = record if type(record) is dict else {}
    line = record.get("line")
    texts = {
        name: str(record.get(name) or "")[:400]
        for name in ("type", "message", "cell", "code", "hint")
    }
    return StudentError(**texts, line=line if type(line) is int else None)
