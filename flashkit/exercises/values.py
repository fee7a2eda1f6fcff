"""Replies of student code as plain data: exact built-in types and strided tensors, nothing else.

A student's object never meets `==`, `bool` or `repr`: whatever is not plain becomes `Opaque`.
"""

from dataclasses import dataclass
from typing import Any

import torch

MAX_BYTES = 64 * 2**20
MAX_ITEMS = 256
MAX_DEPTH = 6
MAX_TEXT = 2000


@dataclass(frozen=True)
class Opaque:
    """Something that is no plain value; only what it was is known."""

    what: str


def plain(value: Any, depth: int = 0) -> Any:
    """None, bool, int, float, str, tensors on the CPU, and tuples, lists and dicts of these."""
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return value
    if kind is str:
        return value[:MAX_TEXT]
    if kind is torch.Tensor:
        return _plain_tensor(value)
    if kind.__module__ == "numpy" and hasattr(kind, "item") and not hasattr(value, "__len__"):
        return plain(value.item(), depth)
    if depth < MAX_DEPTH:
        if isinstance(value, (tuple, list)) and len(value) <= MAX_ITEMS:
            return (list if kind is list else tuple)(plain(x, depth + 1) for x in value)
        if kind is dict and len(value) <= MAX_ITEMS and all(type(key) is str for key in value):
            return {key: plain(x, depth + 1) for key, x in value.items()}
    return Opaque(f"an object of type {kind.__name__[:100]}")


def _plain_tensor(x: torch.Tensor) -> Any:
    if x.layout != torch.strided or x.is_meta or x.is_quantized:
        return Opaque("a tensor that is not an ordinary dense one")
    size = x.numel() * x.element_size()
    if size > MAX_BYTES:
        return Opaque(f"a tensor of shape {tuple(x.shape)}: far too large to be the answer")
    return x.detach().cpu()


def describe(value: Any) -> str:
    """A few words on what a plain value is: "a tensor of shape (2, 3), float32"."""
    if isinstance(value, Opaque):
        return value.what
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(describe(x) for x in value[:4]) + (", ..." if len(value) > 4 else "")
        return f"a {type(value).__name__} of {len(value)} ({inner})" if value else "nothing: ()"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(value)}" if value else "an empty dict"
    if value is None:
        return "None (does the function end with return?)"
    return f"the {type(value).__name__} {value!r}"[:200]


def leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """The leaves of a plain value with their names: [("a[0]", tensor), ...]."""
    if isinstance(value, (tuple, list)):
        return [leaf for i, x in enumerate(value) for leaf in leaves(x, f"{name}[{i}]")]
    if isinstance(value, dict):
        return [leaf for key, x in value.items() for leaf in leaves(x, f"{name}[{key!r}]")]
    return [(name, value)]


def mapped(function: Any, value: Any) -> Any:
    """The plain value with every tensor x replaced by function(x)."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(function, x) for x in value)
    if isinstance(value, dict):
        return {key: mapped(function, x) for key, x in value.items()}
    return value
