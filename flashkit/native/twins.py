"""Online softmax for one query and one head, in C++, in Rust and, to compare, in Python."""

import ctypes
import math

import torch
from torch import Tensor

from flashkit.contracts import check_positive, require
from flashkit.native.build import load
from flashkit.online import EMPTY, State, finish, update

POINTERS, SIZES = [ctypes.c_void_p] * 4, [ctypes.c_size_t] * 4
NO_KEY = "a query row has no visible key"
LANGUAGES = ("cpp", "rust", "python")


def online_attention(
    q: Tensor, k: Tensor, v: Tensor, tile: int = 16, *, language: str = "cpp"
) -> tuple[Tensor, State]:
    """Attention of one query q (D,) over all keys k (S, D) and values v (S, Dv): o and its trace.

    o is (Dv,). The trace is the state after each tile, in order: m and l (tiles,), a (tiles, Dv).
    All are float32 on the CPU. "cpp" and "rust" give the same bits; "python" is flashkit.online,
    which adds up in another order. Raises ValueError for other shapes, dtypes and devices, for
    tile < 1 and where no score is above -inf, and BuildError where there is no compiler.

    >>> q, k = torch.tensor([1.0]), torch.tensor([[0.0], [1], [2], [-1]])
    >>> o, trace = online_attention(q, k, torch.tensor([[2.0], [4], [1], [3]]), tile=2)
    >>> o, trace.m
    (tensor([1.8619]), tensor([1., 2.]))
    """
    require(language in LANGUAGES, f"language must be one of {LANGUAGES}, got {language!r}")
    _check(q, k, v, tile)
    q, k, v = (x.detach().contiguous() for x in (q, k, v))
    tile = min(tile, len(k))
    return _python(q, k, v, tile) if language == "python" else _compiled(q, k, v, tile, language)


def ulps(x: Tensor, y: Tensor) -> int:
    """How far apart two float32 tensors are, at most, counted in float32 numbers: 0 if equal."""
    return int((_ordinal(x) - _ordinal(y)).abs().max())


def _ordinal(x: Tensor) -> Tensor:
    """The place of each number among all float32, counted from 0."""
    bits = x.contiguous().view(torch.int32).long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _check(q: Tensor, k: Tensor, v: Tensor, tile: int) -> None:
    check_positive("tile", tile)
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(isinstance(x, Tensor), f"{name} must be a torch.Tensor, got {type(x).__name__}")
        on_cpu = x.dtype == torch.float32 and x.device.type == "cpu"
        require(on_cpu, f"{name} must be float32 on the CPU, got {x.dtype} on {x.device}")
    require(q.ndim == 1 and len(q) > 0, f"q must have shape (D,), got {tuple(q.shape)}")
    require(
        k.ndim == 2 and k.shape[1] == len(q),
        f"k must have shape (S, D) = (S, {len(q)}), got {tuple(k.shape)}",
    )
    require(len(k) > 0, NO_KEY)
    require(
        v.ndim == 2 and len(v) == len(k) and v.shape[1] > 0,
        f"v must have shape (S, Dv) = ({len(k)}, Dv), got {tuple(v.shape)}",
    )


def _compiled(q: Tensor, k: Tensor, v: Tensor, tile: int, language: str) -> tuple[Tensor, State]:
    twin = load(language).online_attention
    twin.argtypes, twin.restype = POINTERS[:3] + SIZES + POINTERS, None
    (s, d), dv, tiles = k.shape, v.shape[1], -(-len(k) // tile)
    o, *trace = (q.new_empty(shape) for shape in (dv, tiles, tiles, (tiles, dv)))
    twin(*map(Tensor.data_ptr, (q, k, v)), s, d, dv, tile, *map(Tensor.data_ptr, (o, *trace)))
    require(bool(trace[1][-1] != 0), NO_KEY)
    return o, State(*trace)


def _python(q: Tensor, k: Tensor, v: Tensor, tile: int) -> tuple[Tensor, State]:
    states, scale = [EMPTY], 1 / math.sqrt(len(q))
    for keys, values in zip(k.split(tile), v.split(tile), strict=True):
        states.append(update(states[-1], keys @ q * scale, values))
    return finish(states[-1]), State(*map(torch.stack, zip(*states[1:], strict=True)))
