"""Run a function on many tasks in processes, where a task may take its process down with it."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

Task = tuple
"""The arguments of one call; they and the result travel between processes."""


def each(function: Callable, tasks: Iterable[Task], jobs: int) -> Iterator[tuple[Task, Any]]:
    """Yield (task, result) as they are done, `jobs` at a time; None for a task that is fatal.

    When a process dies, those that ran beside it are tried again, each alone: only the one that
    kills its process twice is given up.
    """
    todo = deque(tasks)
    while todo:
        for task in (yield from _together(function, todo, jobs)):
            yield task, _alone(function, task)


def _together(
    function: Callable, todo: deque, jobs: int
) -> Generator[tuple[Task, Any], None, list[Task]]:
    """Work on `todo` until it is empty or a process dies; the tasks that ran at that moment."""
    running: dict = {}
    with _pool(jobs) as pool:
        try:
            while todo or running:
                while todo and len(running) < jobs:
                    future = pool.submit(function, *todo[0])
                    running[future] = todo.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running[future], future.result()
                    del running[future]
        except BrokenProcessPool:
            return list(running.values())
    return []


def _alone(function: Callable, task: Task) -> Any:
    with _pool(1) as pool:
        try:
            return pool.submit(function, *task).result()
        except BrokenProcessPool:
            return None


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
