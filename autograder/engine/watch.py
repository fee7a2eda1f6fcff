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
