"""The jail around a worker: bubblewrap, which must be installed on the machine that grades.

Inside there are the interpreter with its packages, the system's libraries, flashkit and the few
modules of the worker, all read-only; a /tmp of limited size; the GPU's devices where one is asked
for. There is no network, no other process, no home, no course. docs/grading.md says what this
guarantees and what it does not.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRATCH, CELLS = "/tmp", "/tmp/cells"  # as the worker sees them
FOLDERS = {"HOME": "/tmp/home", "TMPDIR": "/tmp/tmp", "TRITON_CACHE_DIR": "/tmp/triton"}
WORK = "/tmp/work"
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
LINKER = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
"""What of /etc programs and compilers need."""
SEEN = ("__init__", "inside", "protocol", "sentinel", "worker")
MODULES = ("__init__", *(f"engine/{name}" for name in SEEN))
"""What of this package the worker may see: no hidden case, no catalogue."""
FIRST_UID, UIDS = 61184, 4000
"""Users whom a system gives to no person; root runs every jail as another of them, so that the
number of its processes is counted by itself."""
GIB = 2**30


class JailError(Exception):
    """No jail can be had here; the text says why, and what to do."""


@dataclass(frozen=True)
class Limits:
    """What a jail may use: seconds of CPU time, bytes, processes and threads, open files."""

    cpu_s: int = 900
    data: int = 4 * GIB  # of one process
    memory: int = 4 * GIB  # of all processes together; the supervisor watches it
    scratch: int = GIB // 4
    file: int = GIB // 8
    processes: int = 100
    files: int = 1024

    def inside(self) -> dict[str, int]:
        """The limits that the kernel keeps, by their names in the module `resource`."""
        return {
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_DATA": self.data,
            "RLIMIT_FSIZE": self.file,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": self.files,
            "RLIMIT_CORE": 0,
        }


LIMITS = {
    "cpu": Limits(),
    # CUDA counts what it reserves, and the compiler of Triton writes larger files.
    "cuda": Limits(data=64 * GIB, memory=16 * GIB, scratch=GIB, processes=400, files=4096),
}


def command(program: list[str], given: dict[str, str], device: str, cells: Path) -> list[str]:
    """The command that runs a program in the jail, with `cells` to be read at CELLS.

    given is its environment; it inherits the descriptors. JailError without bubblewrap.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise JailError("there is no program bwrap on PATH")
    root = os.geteuid() == 0
    parts = [bwrap, *_namespaces(root), "--die-with-parent", "--new-session", "--clearenv"]
    for name, value in (given | FOLDERS).items():
        parts += ["--setenv", name, value]
    parts += _places(device, cells)
    uid = FIRST_UID + os.getpid() * 31 % UIDS if root else None
    orders = json.dumps({"limits": LIMITS[device].inside(), "uid": uid})
    first = [sys.executable, "-I", "-S", str(ROOT / "autograder" / "engine" / "inside.py")]
    return [*parts, "--chdir", WORK, "--", *first, orders, *program]


def _namespaces(root: bool) -> list[str]:
    """Root needs no user namespace, and would stay root on the outside of one."""
    if not root:
        return ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    shut = [f"--unshare-{kind}" for kind in ("ipc", "pid", "net", "uts", "cgroup-try")]
    return [*shut, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def _places(device: str, cells: Path) -> list[str]:
    """What there is inside; a later part hides an earlier one."""
    parts = ["--proc", "/proc", "--dev", "/dev"]
    parts += ["--perms", "1777", "--size", str(LIMITS[device].scratch), "--tmpfs", SCRATCH]
    for folder in (*FOLDERS.values(), WORK):
        parts += ["--perms", "0777", "--dir", folder]
    package = ROOT / "autograder"
    parts += _bound([*visible(), *(f"/etc/{name}" for name in LINKER)], "--ro-bind-try")
    parts += ["--perms", "0755", "--tmpfs", str(package)]  # it may lie in a folder that is seen
    parts += _bound([ROOT / "flashkit", *(package / f"{name}.py" for name in MODULES)])
    parts += ["--ro-bind", str(cells), CELLS]
    if device == "cuda":
        parts += _gpu()
    sealed = (str(package), "/dev", "/")
    return parts + [word for path in sealed for word in ("--remount-ro", path)]


def _bound(paths: Iterable[str | Path], how: str = "--ro-bind") -> list[str]:
    """Each path at its own place; any user may enter the folders above, bwrap's are for root."""
    parts = []
    for path in map(Path, paths):
        for way in reversed(path.parents):
            parts += ["--perms", "0755", "--dir", str(way)]
        parts += [how, str(path), str(path)]
    return parts


def _gpu() -> list[str]:
    """The devices of the driver, what it reads, and the toolkit where it lies apart."""
    parts = ["--ro-bind", "/sys", "/sys"]
    for path in sorted(map(str, Path("/dev").glob("nvidia*"))):
        parts += ["--dev-bind", path, path]
    asked = [os.environ.get("CUDA_HOME", ""), *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    if os.environ.get("CC", "").startswith("/"):
        asked.append(str(Path(os.environ["CC"]).parents[1]))
    return parts + _bound(path for path in asked if path.startswith("/") and not is_seen(path))


def is_seen(path: str | Path) -> bool:
    """Whether a path is to be seen in the jail, or is no folder at all."""
    path = Path(path)
    return not path.is_dir() or any(path.is_relative_to(folder) for folder in visible())


def visible() -> list[str]:
    """The folders of this machine that are seen inside, apart from our own modules."""
    return [*SYSTEM, *dict.fromkeys(os.path.realpath(p) for p in (sys.base_prefix, sys.prefix))]


@functools.cache
def refusal(device: str = "cpu") -> str:
    """Why no jail can be had here for this device, or ""; tried once."""
    trial = [sys.executable, "-S", "-P", "-c", "import autograder.engine.inside"]
    try:
        said = subprocess.run(
            command(trial, {"PYTHONPATH": str(ROOT)}, device, ROOT / "flashkit"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (JailError, OSError, subprocess.TimeoutExpired) as error:
        return f"{error}"
    return "" if said.returncode == 0 else said.stderr.strip()[-300:] or "it ended at once"


def require(device: str = "cpu", course: str | Path | None = None) -> None:
    """JailError where students' code cannot be jailed, or would see the folder of the course."""
    if course and is_seen(course):
        raise JailError(
            f"The course must not lie in {course}, which students' code can read: move it out of"
            " /usr and of the Python installation, or say --unjailed; docs/grading.md says more."
        )
    if why := refusal(device):
        raise JailError(
            f"Students' code cannot be jailed here: {why}. Install bubblewrap 0.8 or newer"
            " (apt-get install bubblewrap), or say --unjailed to run their code with your own"
            " rights; docs/grading.md says more."
        )
