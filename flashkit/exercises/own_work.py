"""Whether an answer is the student's own work, by mechanism: what runs during a call is watched.

An exercise says what must be its own (`Exercise.own_work`):

    "torch"   attention, softmax and autograd of torch, and what flashkit has ready, are refused
    "kernel"  a @triton.jit function of the student computes: torch only allocates, reshapes,
              copies, casts and scales; something of their own must have been launched

Torch is watched below Python, where every operator passes whatever it was called through. What
this does not stop: code that searches this process for the watchman and changes it, text copied
from flashkit into a cell, a computation hidden before the call. A verdict rests on the numbers
that came back, which are compared in another process; this is evidence against, never for.
"""

import contextlib
import importlib.util
import math
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flashkit.exercises.fence import Fence, can_be_fenced, fence
from flashkit.exercises.operators import (
    AUTOGRAD,
    ELSEWHERE,
    EMPTY,
    ESCAPES,
    FRESH,
    PLAIN,
    READY_MADE,
)

FLASHKIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_TRITON = importlib.util.find_spec("triton")  # not imported: some exercises need no Triton
TRITON = os.path.dirname(_TRITON.origin) + os.sep if _TRITON else "no triton here"
HELPERS = tuple(FLASHKIT + name for name in ("runtime.py", "masks.py", "contracts.py", "__init__"))
STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
CALLING, *_ = OWN = tuple(
    FLASHKIT + os.path.join("exercises", f"{name}.py") for name in ("calling", "own_work", "fence")
)
LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
)
KERNEL_RULE = (
    "here your @triton.jit function computes, and torch may only allocate, reshape, copy, cast "
    "and scale."
)


class NotAllowed(Exception):
    """Something was called that does the exercise, or would hide who does it."""


class Watch(TorchDispatchMode):
    """Watches one call: refuses, fences new memory, counts its bytes and the launches."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first call loads torch's compiler, which takes seconds

    def __init__(self, own_work: str, is_own: Callable[[str], bool]):
        super().__init__()
        self.own_work, self.is_own = own_work, is_own
        self.refused: NotAllowed | None = None
        self.fences: list[Fence] = []
        self.allocated = self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split("::")[-1].split(".")[0]
        caller = who_calls()
        if caller == "triton":
            return func(*args, **(kwargs or {}))
        if caller == "flashkit":
            self.refuse("flashkit's own solution is called: write it yourself.")
        self.judge(name)
        result = func(*args, **(kwargs or {}))
        if self.own_work == "torch":
            self.measure(result)
        return self.count(name, result) if name in FRESH else result

    def judge(self, name: str) -> None:
        """Raise NotAllowed for an operator that the exercise forbids."""
        plain = name if name in PLAIN else name.rstrip("_")
        if self.own_work == "kernel" and plain not in PLAIN:
            self.refuse(f"torch's {name.strip('_')} is called: {KERNEL_RULE}")
        if any(word in name for word in READY_MADE):
            self.refuse(f"torch's {name.strip('_')} is called: it does the exercise for you.")

    def refuse(self, what: str) -> None:
        """Note what was done and raise it; code that swallows the exception gains nothing."""
        try:
            raise NotAllowed(what)
        except NotAllowed as error:
            self.refused = self.refused or error
            raise

    def measure(self, result: Any) -> None:
        """Where torch computes, tiles come and go: what counts is the largest tensor."""
        if isinstance(result, torch.Tensor) and result.layout == torch.strided:
            sizes = zip(result.shape, result.stride(), strict=True)
            places = math.prod(n for n, stride in sizes if stride)  # expanded ones share theirs
            self.allocated = max(self.allocated, places * result.element_size())

    def count(self, name: str, result: Any) -> Any:
        """New memory: its bytes are counted, and it is handed on inside a fence."""
        if not isinstance(result, torch.Tensor) or not can_be_fenced(result):
            return result
        what = f"a tensor of shape {tuple(result.shape)} that it made with torch.{name.strip('_')}"
        fenced, around = fence(result, what, len(self.fences), filled=name not in EMPTY)
        if self.own_work != "torch":  # whose operators do not miss: their fences need not stay
            self.fences.append(around)
            self.allocated += result.numel() * result.element_size()
        return fenced

    def launch(self, function: Any) -> None:
        """A kernel is launched: it must be the student's."""
        path = getattr(getattr(function, "__code__", None), "co_filename", "")
        if not self.is_own(path):
            name = getattr(function, "__name__", "a function")
            self.refuse(f"the kernel {name} is launched, which is not yours: write your own.")
        self.launches += 1


class Methods(TorchFunctionMode):
    """Refuses what no operator shows: a tensor handed to NumPy and the like."""

    def __init__(self, watch: Watch):
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in ESCAPES and who_calls() != "triton":
            self.watch.refuse(f"Tensor.{name} is called: {KERNEL_RULE}")
        return func(*args, **(kwargs or {}))


def who_calls() -> str:
    """ "triton" if Triton itself calls, "flashkit" if its solutions stand above, else ""."""
    frame, first = sys._getframe(2), ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path == CALLING:
            return ""
        if ready_made(path):
            return "flashkit"
        if not first and not _between(path):
            first = path
            if path.startswith(TRITON):
                return "triton"
        frame = frame.f_back
    return ""


def ready_made(path: str) -> bool:
    """Whether a file of code is one of flashkit's that may not be called."""
    return path.startswith(FLASHKIT) and not path.startswith(HELPERS) and path not in OWN


def _between(path: str) -> bool:
    """Whether code of this file only passes on what others ask."""
    library = path.startswith(STDLIB) and "-packages" not in path
    return library or path.startswith(TORCH) or path in OWN or path.startswith("<")


_watches: list[Watch] = []


def audit(event: str, arguments: tuple) -> None:
    """A hook for sys.addaudithook: during a call no work goes to other threads or processes.

    Python removes no such hook, so that only the grader's worker adds it.
    """
    if event in ELSEWHERE and _watches and who_calls() != "triton":
        _watches[-1].refuse(f"{event} is used: the work must be done where it is called.")


@contextlib.contextmanager
def watching(watch: Watch):
    """Watch what runs inside: operators of torch, launches of Triton, functions of flashkit."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_launches(watch))
        if watch.own_work == "kernel":
            stack.enter_context(Methods(watch))
        else:
            stack.enter_context(_calls(watch))
        stack.enter_context(watch)
        _watches.append(watch)
        stack.callback(_watches.remove, watch)
        yield


@contextlib.contextmanager
def _calls(watch: Watch):
    """Refuse every function of flashkit but the helpers, and torch's autograd."""

    def seen(frame, event, argument):
        if event == "c_call" and getattr(argument, "__name__", "") == AUTOGRAD:
            watch.refuse("torch's autograd is called: it does the exercise for you.")
        if event == "call" and ready_made(frame.f_code.co_filename):
            watch.refuse(f"flashkit's {frame.f_code.co_name} is called: write it yourself.")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def _launches(watch: Watch):
    """Count the launches of Triton's kernels, compiled or interpreted, where it is in use."""
    kinds = [getattr(sys.modules[m], name) for m, name in LAUNCHERS if m in sys.modules]
    before = [kind.run for kind in kinds]

    def counting(run):
        def counted(self, *args, **kwargs):
            watch.launch(self.fn)
            return run(self, *args, **kwargs)

        return counted

    for kind, run in zip(kinds, before, strict=True):
        kind.run = counting(run)
    try:
        yield
    finally:
        for kind, run in zip(kinds, before, strict=True):
            kind.run = run
