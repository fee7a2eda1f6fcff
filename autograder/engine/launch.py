"""Start a worker and end it: the seam where a jail goes.

Everything that a worker is given is decided here: program, environment, working directory,
descriptors. A jail wraps `command` and narrows `environment`; nothing else need change.
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

import autograder
from autograder.engine import protocol

STARTUP_S = 180.0
LOG_BYTES = 8192
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CC", "LANG")
_ROOT = Path(autograder.__file__).resolve().parents[1]


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
        "PYTHONPATH": str(_ROOT),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
    }
    mode = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return passed | folders | own | mode


class Worker:
    """A worker process in a session of its own, with its two pipes."""

    def __init__(self, home: Path, device: str):
        for folder in ("home", "tmp", "triton", "work"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        theirs_in, self._requests = os.pipe()
        self._replies, theirs_out = os.pipe()
        os.set_blocking(self._requests, False)
        try:
            self._process = subprocess.Popen(
                command(theirs_in, theirs_out),
                env=environment(home, device),
                cwd=home / "work",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        except OSError:
            _close(self._requests, self._replies)
            raise
        finally:
            _close(theirs_in, theirs_out)
        self._log = bytearray()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def wait_ready(self) -> dict:
        """The versions that the worker reports before any student code runs."""
        return protocol.receive(self._replies, time.monotonic() + STARTUP_S).get("versions", {})

    def ask(self, message: dict, deadline: float) -> dict:
        """The reply to a message; TimedOut, Died or ProtocolError where there is none."""
        nonce = secrets.token_hex(8)
        protocol.send(self._requests, message | {"nonce": nonce}, deadline)
        reply = protocol.receive(self._replies, deadline)
        if reply.get("nonce") != nonce:
            raise protocol.ProtocolError("a reply to something else")
        return reply

    def stop(self) -> int | None:
        """Kill the process and its group; the exit code."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._reader.join(timeout=2)  # a process that left the group may hold the pipe open
        _close(self._requests, self._replies)
        return self._process.returncode

    def exit_code(self) -> int | None:
        """How the process ended by itself, given a moment to do so."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=2)
        return None

    def log(self) -> str:
        """The end of what the process printed; for people, never parsed."""
        return bytes(self._log).decode("utf-8", "replace")

    def _drain(self) -> None:
        """Read stdout and stderr so that nobody blocks on them, and keep the end."""
        with self._process.stdout as stream:
            while chunk := stream.read1(65536):
                self._log = (self._log + chunk)[-LOG_BYTES:]


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)
