"""Watch a jail from outside: what all of its processes use together, which no rlimit counts."""

from pathlib import Path

PAGE = 4096
PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all that descend from it. In a jail nobody leaves the family."""
    found, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for listed in PROC.glob(f"{pid}/task/*/children"):
            try:
                waiting += map(int, listed.read_text().split())
            except OSError:  # it ended meanwhile
                continue
    return found


def memory(pids: list[int]) -> int:
    """Bytes of main memory that the processes hold, not counting what they share with files."""
    total = 0
    for pid in pids:
        try:
            fields = (PROC / str(pid) / "statm").read_text().split()
        except OSError:
            continue
        total += (int(fields[1]) - int(fields[2])) * PAGE
    return total


def forget_peak(pid: int) -> int:
    """Let the process's peak of memory start anew; the bytes that it holds now, 0 if unknown."""
    try:
        (PROC / str(pid) / "clear_refs").write_text("5")
    except OSError:
        return 0
    return peak(pid)


def peak(pid: int) -> int:
    """The most bytes that the process held at once, 0 if unknown."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
