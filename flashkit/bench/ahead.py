"""Compile before the clock runs, in several processes: one after the other takes minutes.

What a process compiles it leaves on disk, where the one that measures finds it.
"""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed

from flashkit.bench.implementations import Implementation
from flashkit.bench.modes import Mode
from flashkit.bench.runner import inputs
from flashkit.bench.shapes import Shape

WORKERS = min(8, max(1, (os.cpu_count() or 1) // 2))


def pool() -> ProcessPoolExecutor:
    """Processes of their own: one that has used the GPU cannot be forked."""
    return ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn"))


def tasks(mode: Mode) -> list[tuple[Implementation, tuple[Shape, ...]]]:
    """Who has something to compile, group by group."""
    return [
        (implementation, group.shapes)
        for group in mode.groups
        for implementation in group.implementations
        if implementation.compiles
    ]


def compiled(mode: Mode, workers: Executor, device: str) -> Iterator[str]:
    """Names, as their compilers are done. Faults are left to the run, which gives them a row."""
    jobs = {
        workers.submit(call_once, implementation, shapes, device): implementation.name
        for implementation, shapes in tasks(mode)
    }
    for job in as_completed(jobs):
        yield jobs[job]


def call_once(implementation: Implementation, shapes: tuple[Shape, ...], device: str) -> None:
    """One call on each shape."""
    for shape in shapes:
        try:
            (x,) = inputs(shape, 1, device)
            implementation.call(shape)(x)
        except Exception:  # not served, not installed, no room: the run will say so
            continue
