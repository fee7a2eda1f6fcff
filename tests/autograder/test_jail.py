"""What can a program do from inside the jail? Nothing that anybody outside would notice."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autograder.engine import SolutionCell, grade, jail, launch, session, watch
from autograder.engine.jail import JailError

SYSTEM_PYTHON = "/usr/bin/python3"
FOLDER = Path(jail.ROOT)


@pytest.fixture(autouse=True)
def _jail_works(request):
    if why := jail.refusal():
        pytest.skip(f"needs bubblewrap: {why}")


@pytest.fixture
def inside(tmp_path):
    """Run Python lines in the jail; what they print."""
    tmp_path.chmod(0o755)

    def run(lines, **given):
        program = [sys.executable, "-I", "-S", "-c", lines]
        command = jail.command(program, given, "cpu", tmp_path)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return (done.stdout + done.stderr).strip()

    return run


@pytest.mark.parametrize(
    "path",
    [
        *("autograder/hidden", "autograder/catalogue", "autograder/execute.py", "autograder/work"),
        *("solutions", "notebooks", "tests", ".git", "pyproject.toml"),
    ],
)
def test_nothing_of_the_course_is_seen(inside, path):
    assert inside(f"import os; print(os.path.exists({str(FOLDER / path)!r}))") == "False"


def test_no_file_of_another_is_seen(inside, tmp_path_factory):
    secret = tmp_path_factory.mktemp("gradebook") / "gradebook.db"
    secret.write_text("marks")
    assert inside(f"import os; print(os.path.exists({str(secret)!r}))") == "False"
    assert inside("import os; print(sorted(os.listdir('/etc')))") == str(
        sorted(name for name in jail.LINKER if Path("/etc", name).exists())
    )
    assert inside("import os; print(os.listdir('/tmp/home'), os.listdir('/tmp/cells'))") == "[] []"


def test_what_the_worker_needs_is_there_and_cannot_be_changed(inside):
    path = FOLDER / "flashkit" / "online.py"
    assert inside(f"print(len(open({str(path)!r}).read()))") == str(len(path.read_text()))
    for target in (path, FOLDER / "autograder" / "x", "/usr/x", "/dev/x", "/x", "/tmp/cells/x"):
        assert "Error" in inside(f"open({str(target)!r}, 'w')")


def test_the_environment_is_what_was_given(inside, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    names = inside("import os; print(*sorted(os.environ))", GIVEN="1").split()
    assert set(names) - {"PWD", "LC_CTYPE"} == {"GIVEN", *jail.FOLDERS}


def test_there_is_no_network(inside):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lines = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert "Error" in inside(lines)


def test_there_is_no_other_process_and_no_root(inside):
    lines = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]), os.getuid())"
    processes, uid = map(int, inside(lines).split())
    assert processes <= 2
    assert uid != 0
    assert "Error" in inside("import os; os.setuid(0)")
    assert "Error" in inside(f"import os; os.kill({os.getpid()}, 0)")


FILES = """
for n in range(9):
    with open(f"/tmp/{n}", "wb") as f:
        f.write(bytes(2**26))
"""


def test_its_disk_is_small(inside):
    assert "No space left" in inside(FILES)
    assert "File too large" in inside("open('/tmp/a', 'wb').write(bytes(2**28))")


FORKS = """
import os, time
print(*sorted(os.listdir(FOLDER)))
n = 0
try:
    while n < 2000:
        if os.fork() == 0:
            time.sleep(30)
        n += 1
except BlockingIOError:
    print(n)
""".replace("FOLDER", repr(str(FOLDER)))


def test_a_fork_bomb_ends_at_the_limit(inside):
    seen, forks = inside(FORKS).splitlines()
    assert set(seen.split()) <= {"autograder", "flashkit", ".venv"}
    assert 0 < int(forks) <= jail.LIMITS["cpu"].processes


def test_one_process_has_an_end_of_memory_and_of_files(inside):
    assert inside("bytearray(5 * 2**30)").endswith("MemoryError")
    assert "Too many open files" in inside("x = [open('/dev/null') for _ in range(5000)]")


DAEMONS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        os.write(1, b"x")
        time.sleep(60)
time.sleep(60)
"""


def test_no_process_outlives_the_jail(tmp_path):
    command = jail.command([sys.executable, "-I", "-S", "-c", DAEMONS], {}, "cpu", tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.read(6) == b"x" * 6
        pids = watch.family(process.pid)
        process.kill()
    assert len(pids) == 9  # bubblewrap twice, the program, six daemons
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, "something of the jail lives on"
        time.sleep(0.05)


MEMORY_EATERS = """
import os, time

def answer_1():
    for _ in range(3):
        if os.fork() == 0:
            x = bytearray(2**28)
            x[::4096] = x[::4096].replace(bytes(1), bytes([1]))
            time.sleep(60)
    time.sleep(60)
"""


def test_processes_that_use_too_much_together_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "MAX_LOST", 0)
    monkeypatch.setitem(launch.LIMITS, "cpu", jail.Limits(memory=2**29))
    cells = [SolutionCell("question_1", MEMORY_EATERS)]
    verdict = grade("question_1", cells, scratch=tmp_path)
    assert verdict.cases[0].kind == "died"
    assert "it used more than 0.5 GiB of memory" in verdict.cases[0].message


def test_without_bubblewrap_grading_refuses_unless_it_is_told_otherwise(tmp_path, monkeypatch):
    cells = [SolutionCell("question_1", "def answer_1(): return 'b'")]
    assert grade("question_1", cells, scratch=tmp_path / "jailed").jailed
    monkeypatch.setattr(jail, "refusal", lambda device: "there is no program bwrap on PATH")
    with pytest.raises(JailError, match="no program bwrap on PATH. Install bubblewrap"):
        grade("question_1", cells, scratch=tmp_path)
    verdict = grade("question_1", cells, scratch=tmp_path / "unjailed", jailed=False)
    assert (verdict.points, verdict.jailed) == (1.0, False)


def test_a_course_that_the_jail_would_show_is_refused(tmp_path):
    jail.require("cpu", tmp_path)
    with pytest.raises(JailError, match="The course must not lie in .*lib"):
        jail.require("cpu", Path(sys.prefix) / "lib")


def test_what_bubblewrap_says_is_told(monkeypatch):
    monkeypatch.setattr(jail, "_gpu", lambda: ["--ro-bind", "/no/such/folder", "/x"])
    assert "/no/such/folder" in jail.refusal.__wrapped__("cuda")


ORDINARY = """
import subprocess, sys
from pathlib import Path
from autograder.engine import jail
assert jail.refusal() == "", jail.refusal()
command = jail.command([sys.executable, "-I", "-S", "-c", FORKS], {}, "cpu", Path("/usr"))
print(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)
""".replace("FORKS", repr(FORKS))


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test runs as an ordinary user here")
def test_an_ordinary_user_has_the_same_jail():
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"needs a Python that any user can run: {SYSTEM_PYTHON}")
    said = subprocess.run(
        [SYSTEM_PYTHON, "-c", ORDINARY],
        env={"PYTHONPATH": str(FOLDER), "PATH": os.environ["PATH"]},
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        cwd="/",
    )
    seen, forks = said.stdout.split("\n")[:2] if said.stdout else (said.stderr, "0")
    assert seen == "autograder flashkit"
    assert 0 < int(forks) <= jail.LIMITS["cpu"].processes
