"""Tensors inside fences, so that a store past the end of one is seen and a load past it shows.

Around every tensor, and in the gaps between its rows, lies a pattern: a NaN that no arithmetic
makes, for integers a number. After the call it must be there still. Neighbours have different
patterns, for a kernel may copy what lies past the end of one tensor past the end of another.
"""

from typing import NamedTuple

import torch
from torch import Tensor

GUARD = 8192
"""Elements of the pattern before and after; a multiple of 16, so that addresses stay aligned."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PATTERNS = {
    torch.float64: 0x7FF8BEEFBEEFBEE0,
    torch.float32: 0x7FC0BEE0,
    torch.float16: 0x7EE0,
    torch.bfloat16: 0x7FE0,
    torch.bool: 1,
}
NUMBER = 80
"""The pattern of integers."""
KINDS = 16
"""As many patterns of each there are, one after another."""


class Fence(NamedTuple):
    """One tensor's surroundings: buffer (n,) of integers, inside (n,) bool: what is the tensor."""

    what: str
    buffer: Tensor
    inside: Tensor
    pattern: int


def fence(x: Tensor, what: str, kind: int, filled=True, device=None) -> tuple[Tensor, Fence]:
    """A copy of x (any shape, strides, dtype) in a fence; nothing but pattern if not `filled`.

    Tensors of different `kind`, any integer, have different patterns around them.
    """
    pattern, bits = PATTERNS.get(x.dtype, NUMBER), BITS[x.element_size()]
    pattern += kind % KINDS if x.dtype != torch.bool else 0
    device, once = device or x.device, tuple(slice(0, 1 if n == 0 else None) for n in x.stride())
    span = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    buffer = torch.full((span + 2 * GUARD,), pattern, dtype=bits, device=device)
    inside = torch.zeros_like(buffer, dtype=torch.bool)
    inside.as_strided(x.shape, x.stride(), GUARD)[once].fill_(True)
    copy = buffer.view(x.dtype).as_strided(x.shape, x.stride(), GUARD)
    if filled:
        copy[once].copy_(x[once])  # an expanded entry is one place in memory
    return copy, Fence(what, buffer, inside, pattern)


def can_be_fenced(x: Tensor) -> bool:
    """Whether x is an ordinary dense tensor with something in it."""
    plain = x.layout == torch.strided and not (x.is_meta or x.is_quantized or x.is_complex())
    return plain and x.numel() > 0 and x.element_size() in BITS


def broken(fences: list[Fence]) -> list[str]:
    """What each fence that was written over belongs to."""
    return [f.what for f in fences if ((f.buffer != f.pattern) & ~f.inside).any()]
