"""What a kernel's own variables hold after each step of its loop, in Triton's interpreter.

There a kernel is a Python function, so a trace function sees its local variables. Nothing of the
kernel is changed and nothing in it needs a certain name: the loop is found in its source.
"""

import ast
import itertools
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

from flashkit import runtime

MAX_EVENTS = 4096
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class Iteration:
    """One finished step of the loop: what every variable of the kernel holds, by name."""

    program: int  # programs count from 0 in the order in which they ran
    number: int  # of the step in its program, from 0
    values: dict[str, np.ndarray]


@dataclass
class Recording:
    """All finished steps of a launch, in order.

    carried names what lives through the loop: assigned before it and again inside it. counter is
    the loop variable, "" if there is none. error is what the launch raised; result what it
    returned. cut says that there were more steps than were kept.
    """

    kernel: str = ""
    carried: tuple[str, ...] = ()
    counter: str = ""
    iterations: list[Iteration] = field(default_factory=list)
    error: Exception | None = None
    result: object = None
    cut: bool = False

    def of_program(self, program: int) -> list[Iteration]:
        """The steps of one program."""
        return [each for each in self.iterations if each.program == program]


def numbers(value) -> np.ndarray | None:
    """The numbers in a kernel's variable, or None for pointers and all that holds none.

    `handle.data` is the one inner name of the interpreter in use; `flashkit doctor` tries it.
    """
    if hasattr(value, "handle"):
        value = getattr(value.handle, "data", None)
    elif not isinstance(value, (int, float)):
        return None
    value = np.array(value)  # a copy: the kernel goes on
    return value if value.dtype.kind in "fi" else None  # unsigned: addresses, bfloat16 as bits


def record(
    launch: Callable, kernel_name: str | None = None, *, max_events: int = MAX_EVENTS
) -> Recording:
    """Call launch() and record each step of the loop of the kernel that it runs.

    kernel_name picks a kernel where several have loops. Of a kernel's loops those are followed
    that hold the most `tl.dot`, or the first. An exception of launch ends up in the recording.
    Raises ValueError outside the interpreter and where no loop of a kernel was reached.
    """
    if not runtime.interpreting():
        raise ValueError(
            "a kernel's variables can be seen in Triton's interpreter only: this needs "
            "TRITON_INTERPRET=1. On a GPU, restart the notebook's kernel with it set"
        )
    tracer, before = _Tracer(kernel_name, max_events), sys.gettrace()
    found = tracer.recording
    sys.settrace(tracer.called)
    try:
        found.result = launch()
    except Exception as error:  # a student's: it is part of what there is to show
        found.error = _cause(error)
    finally:
        sys.settrace(before)
    if not found.kernel and found.error is None:
        wanted = f"named {kernel_name} " if kernel_name else ""
        raise ValueError(f"no @triton.jit kernel {wanted}with a loop in it was run")
    return found


def _cause(error: Exception) -> Exception:
    """The kernel's own exception, out of the interpreter's wrapping."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


class _Loop(NamedTuple):
    """The lines of a loop's body, its variable, and what it carries from step to step."""

    first: int
    last: int
    counter: str
    carried: tuple[str, ...]


class _Tracer:
    """The trace function: one `called` for every call, one follower for each kernel frame."""

    def __init__(self, kernel_name: str | None, max_events: int):
        self.recording = Recording()
        self._name, self._limit = kernel_name, max_events
        self._known: dict[CodeType, tuple[_Loop, ...] | None] = {}
        self._root: FrameType | None = None
        self._program, self._count = -1, 0

    def called(self, frame: FrameType, event: str, _argument):
        """Follow the frame if it is a kernel with a loop; every other one runs untraced."""
        if event != "call":
            return None
        loops = self._loops(frame.f_code)
        if not loops or (self._name and frame.f_code.co_name != self._name):
            return None
        if self.recording.kernel not in ("", frame.f_code.co_name):
            return None  # a second kernel: the first one is followed
        self._enter(frame, loops)
        return self._follower(loops)

    def _loops(self, code: CodeType) -> tuple[_Loop, ...] | None:
        if code not in self._known:
            self._known[code] = _kernel_loops(code)
        return self._known[code]

    def _enter(self, frame: FrameType, loops: tuple[_Loop, ...]) -> None:
        """Count programs by their outermost kernel frame: a loop may stand in a helper."""
        self.recording.kernel = frame.f_code.co_name
        self.recording.counter = loops[0].counter
        self.recording.carried = tuple(dict.fromkeys(n for loop in loops for n in loop.carried))
        root, outer = frame, frame.f_back
        while outer is not None:
            root = outer if self._loops(outer.f_code) is not None else root
            outer = outer.f_back
        if root is not self._root:
            self._root, self._count = root, 0
            self._program += 1

    def _follower(self, loops: tuple[_Loop, ...]):
        """A local trace function: a step is finished when its frame leaves the loop's body."""
        inside = None

        def follow(frame, event, _argument):
            nonlocal inside
            if event == "line":
                line = frame.f_lineno
                now = next((loop for loop in loops if loop.first <= line <= loop.last), None)
                if inside is not None and now is not inside:
                    self._finished(frame)
                inside = now
            return follow

        return follow

    def _finished(self, frame: FrameType) -> None:
        found = self.recording
        if len(found.iterations) >= self._limit:
            found.cut = True
            return
        named = {name: numbers(value) for name, value in dict(frame.f_locals).items()}
        values = {name: value for name, value in named.items() if value is not None}
        found.iterations.append(Iteration(self._program, self._count, values))
        self._count += 1


def _kernel_loops(code: CodeType) -> tuple[_Loop, ...] | None:
    """The loops to follow in a @triton.jit function; None for every other function."""
    path = code.co_filename
    if path.startswith(_LIBRARIES) and f"{os.sep}flashkit{os.sep}" not in path:
        return None
    lines = linecache.getlines(path)
    if not any("jit" in line for line in lines):
        return None
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name and _is_jit(node):
            start = min(node.lineno, *(each.lineno for each in node.decorator_list))
            if start <= code.co_firstlineno <= node.lineno:
                return _followed(node)
    return None


def _is_jit(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def _followed(function: ast.FunctionDef) -> tuple[_Loop, ...]:
    """The loops with the most dots in their own body; the first one where none has any."""
    loops = [node for node in ast.walk(function) if isinstance(node, (ast.For, ast.While))]
    if not loops:
        return ()
    dots = {loop: sum(_is_dot(node) for node in _own(loop)) for loop in loops}
    most = max(dots.values())
    chosen = [loop for loop in loops if dots[loop] == most] if most else loops[:1]
    return tuple(_loop(function, loop) for loop in sorted(chosen, key=lambda x: x.lineno))


def _own(loop: ast.AST):
    """The nodes inside a loop, without those of loops inside it."""
    for child in ast.iter_child_nodes(loop):
        if not isinstance(child, (ast.For, ast.While)):
            yield child
            yield from _own(child)


def _is_dot(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "dot"


def _loop(function: ast.FunctionDef, loop: ast.For | ast.While) -> _Loop:
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    before = {name for node, name in _assigned(function) if node.lineno < loop.lineno}
    inside = itertools.chain.from_iterable(_assigned(statement) for statement in loop.body)
    carried = dict.fromkeys(name for _, name in inside if name in before | arguments)
    target = getattr(loop, "target", None)
    counter = target.id if isinstance(target, ast.Name) else ""
    return _Loop(loop.body[0].lineno, loop.body[-1].end_lineno, counter, tuple(carried))


def _assigned(node: ast.AST):
    """The names that are assigned inside a node, with their place."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each, each.id
