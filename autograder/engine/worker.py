"""The process in which student code runs: it answers calls and knows no right answer.

    python -m autograder.engine.worker REQUESTS REPLIES        two inherited file descriptors

The supervisor starts it (see `launch`) and kills it. What student code prints goes to stdout and
stderr, which nobody parses; replies go over a descriptor of their own.
"""

import os
import re
import sys
import types
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from autograder.engine import protocol, sentinel
from flashkit.exercises.calling import call
from flashkit.exercises.errors import explain
from flashkit.exercises.own_work import audit

MODULE = "submission"
THREADS = "A thread is still running that a cell has started: end it before the cell ends."


def main(requests: int, replies: int) -> None:
    """Answer requests until the supervisor closes its end."""
    for fd in (requests, replies):
        os.set_inheritable(fd, False)
    sys.addaudithook(audit)
    sys.modules["autograder.hidden"] = None  # what is hidden is not imported here by accident
    session = Session()
    protocol.send(replies, {"ready": True, "versions": versions()})
    while True:
        try:
            request = protocol.receive(requests)
        except protocol.Died:
            return
        reply = session.answer(request) | {"nonce": request["nonce"]}
        protocol.send(replies, reply)


def versions() -> dict[str, str]:
    """The versions that a verdict records."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("torch", "triton"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "none"
    return found


class Session:
    """One namespace for all cells of a submission, as in the notebook."""

    def __init__(self):
        self.module = types.ModuleType(MODULE)
        sys.modules[MODULE] = self.module  # so that what looks for a function's module finds it
        self.cells: dict[str, str] = {}

    def answer(self, request: dict) -> dict:
        """The reply to one request: sentinel, exec, find or call."""
        handlers = {"exec": self.execute, "find": self.find, "call": self.call}
        if request["op"] == "sentinel":
            return {"trouble": sentinel.trouble(request["device"], request["kernels"])}
        return handlers[request["op"]](request)

    def execute(self, request: dict) -> dict:
        """Run a cell from its file; an exception is reported, the names it made stay."""
        path, error = request["path"], None
        self.cells[path] = request["cell"]
        try:
            exec(compiled(path), self.module.__dict__)
        except BaseException as raised:
            error = asdict(explain(raised, self.cells))
        return {"error": error}

    def find(self, request: dict) -> dict:
        """Whether there is a function of that name."""
        return {"found": callable(self.module.__dict__.get(request["function"]))}

    def call(self, request: dict) -> dict:
        """Call a function of the submission."""
        function = self.module.__dict__.get(request["function"])
        if request["own_work"] == "kernel" and len(sys._current_frames()) > 1:
            return {"error": {"type": "NotAllowed", "message": THREADS}}
        given = (request["inputs"], request["device"], self.cells, request["own_work"])
        answer = call(function, *given)
        error = asdict(answer.error) if answer.error else None
        changed, memory = list(answer.changed), list(answer.memory)
        return {"value": answer.value, "error": error, "changed": changed, "memory": memory}


def compiled(path: str):
    """The code of a cell, under the name of its real file, which is where Triton reads source.

    Lines of IPython magic (%time, !ls) are left out where the cell is no Python otherwise.
    """
    source = Path(path).read_text(encoding="utf-8")
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError:
        plain = re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)
        if plain == source:
            raise
    return compile(plain, path, "exec", dont_inherit=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
