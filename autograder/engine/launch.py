"""Start a worker and end it, in a jail (see `jail`) or, where that was asked for, without one.

What a worker is given is decided here: program, environment, descriptors. In a jail a thread of
this process watches what all processes of the worker use together, and ends them.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from autograder.engine import protocol, watch
from autograder.engine.jail import CELLS, GIB, LIMITS, ROOT
from autograder.engine.jail import command as jailed_command

STARTUP_S = 180.0
LOG_BYTES = 8192
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CC", "LANG")
WATCH_S = 0.2


def command(requests: int, replies: int) -> list[str]:
    """The worker's program; -P keeps its working directory off the import path."""
    return [sys.executable, "-P", "-m", "autograder.engine.worker", str(requests), str(replies)]


def environment(home: Path, device: str) -> dict[str, str]:
    """A clean environment: nothing of the supervisor's but what finds programs and the GPU."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    folders = {
        name: str(home / folder)
        for name, folder in (("HOME", "home"), ("TMPDIR", "tmp"), ("TRITON_CACHE_DIR", "triton"))
    }
    own = {
        "PYTHONPATH": str(ROOT),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
        "USER": "student",
    }
    mode = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return passed | folders | own | mode


class Worker:
    """A worker process in a session of its own, with its two pipes.

    home is an empty folder of its own; the worker finds in `cells` the files of home / "cells".
    Raises JailError or OSError where it cannot be started.
    """

    def __init__(self, home: Path, device: str, jailed: bool = True):
        for folder in ("home", "tmp", "triton", "work", "cells"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        self.jailed, self._limits, self.excess = jailed, LIMITS[device], ""
        self.cells = Path(CELLS) if jailed else home / "cells"
        theirs_in, self._requests = os.pipe()
        self._replies, theirs_out = os.pipe()
        os.set_blocking(self._requests, False)
        try:
            self._process = self._started(home, device, theirs_in, theirs_out)
        except BaseException:
            _close(self._requests, self._replies)
            raise
        finally:
            _close(theirs_in, theirs_out)
        self._log, self._ended = bytearray(), threading.Event()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()
        if jailed:
            threading.Thread(target=self._watch, daemon=True).start()

    def _started(self, home: Path, device: str, *descriptors: int) -> subprocess.Popen:
        program, given = command(*descriptors), environment(home, device)
        if self.jailed:
            program = jailed_command(program, given, device, home / "cells")
        return subprocess.Popen(
            program,
            env=given,
            cwd=home / "work",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            start_new_session=True,
        )

    def wait_ready(self) -> dict:
        """The versions that the worker reports before any student code runs."""
        return protocol.receive(self._replies, time.monotonic() + STARTUP_S).get("versions", {})

    def pid(self) -> int:
        """The process that answers, or the one in charge of its jail while there is none."""
        return watch.family(self._process.pid)[: 3 if self.jailed else 1][-1]

    def ask(self, message: dict, deadline: float) -> dict:
        """The reply to a message; TimedOut, Died or ProtocolError where there is none."""
        nonce = secrets.token_hex(8)
        protocol.send(self._requests, message | {"nonce": nonce}, deadline)
        reply = protocol.receive(self._replies, deadline)
        if reply.get("nonce") != nonce:
            raise protocol.ProtocolError("a reply to something else")
        return reply

    def stop(self) -> int | None:
        """Kill the process and its group, or the whole jail; the exit code."""
        self._ended.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._reader.join(timeout=2)  # a process that left the group may hold the pipe open
        _close(self._requests, self._replies)
        return self._process.returncode

    def exit_code(self) -> int | None:
        """How the process ended by itself, given a moment to do so; a signal is negative."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=2)
            return 128 - code if self.jailed and code > 128 else code  # as bubblewrap tells it
        return None

    def log(self) -> str:
        """The end of what the process printed; for people, never parsed."""
        return bytes(self._log).decode("utf-8", "replace")

    def _watch(self) -> None:
        """Kill the jail when its processes use too much together."""
        most = self._limits
        while not self._ended.wait(WATCH_S) and self._process.poll() is None:
            pids = watch.family(self._process.pid)
            if watch.memory(pids) > most.memory:
                self.excess = f"it used more than {most.memory / GIB:g} GiB of memory"
            elif len(pids) > most.processes:
                self.excess = f"it had more than {most.processes} processes"
            if self.excess:
                self._process.kill()  # the jail dies with its parent
                return

    def _drain(self) -> None:
        """Read stdout and stderr so that nobody blocks on them, and keep the end."""
        with self._process.stdout as stream:
            while chunk := stream.read1(65536):
                self._log = (self._log + chunk)[-LOG_BYTES:]


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)
