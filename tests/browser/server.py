"""A JupyterLab in a process of its own: start it, wait for its address, ask it, stop it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Lab:
    """A running server: its address, its token and the folder that it serves."""

    url: str
    token: str
    folder: Path

    def ask(self, method: str, path: str, body: dict | None = None):
        """Call the server's own interface, and give the JSON that it answers."""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def start(home: Path, root: Path | None = None) -> subprocess.Popen:
    """Start the server of `root`, by default home/root; it writes its address into home/log."""
    own = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
    variables = {f"JUPYTER_{name}": str(home / folder) for name, folder in own.items()}
    variables |= {"IPYTHONDIR": str(home / "ipython"), "OMP_NUM_THREADS": "1"}
    variables |= {"PYTHONPATH": str(ROOT), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0"]
    command += ["--allow-root", f"--ServerApp.root_dir={root or home / 'root'}"]
    with (home / "log").open("w") as log:
        return subprocess.Popen(
            command,
            cwd=home / "root",
            env=os.environ | variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(process: subprocess.Popen, home: Path) -> Lab:
    """The server once it answers; fails with its log if it ends."""
    for _ in range(600):
        text = (home / "log").read_text()
        found = re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", text)
        if found:
            return Lab(*found.groups(), home / "root")
        assert process.poll() is None, text
        time.sleep(0.2)
    raise AssertionError(text)


def stop(process: subprocess.Popen) -> None:
    """Kill the server and its kernels."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
