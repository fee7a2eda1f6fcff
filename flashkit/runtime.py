"""Where kernels run: compiled on a GPU, or step by step in Triton's interpreter.

Triton fixes the mode of each kernel at the moment `@triton.jit` decorates it, by the variable
TRITON_INTERPRET. So the choice has to be made before any kernel is defined: importing flashkit
makes it, and a value that the user has set is left alone.
"""

import importlib.util
import os

import torch


def select_interpreter() -> None:
    """Choose the interpreter where torch sees no GPU and the user has not chosen."""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def interpreting() -> bool:
    """Whether a kernel defined now would run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def has_triton() -> bool:
    """Whether the package triton is installed; the kernels need it, nothing else does."""
    return importlib.util.find_spec("triton") is not None


def device() -> str:
    """The device that lessons put their tensors on: "cuda" where there is a GPU, else "cpu"."""
    return "cpu" if interpreting() or not torch.cuda.is_available() else "cuda"
