"""Inputs of a case, made from its params and a seed: what is hard about them is data.

params: B, Hq, Hkv, T, S, D; dtype "float32" or "float16"; gain multiplies q and v_gain v, v_offset
is added to v; pattern is a name of PATTERNS; layout gives tensors other strides, {"k": "rows"};
launches is the number of calls, each with fresh data; relation adds a call (see `relations`); lse
has the log-sum-exp of partial results judged too.
"""

import math
import zlib

import torch
from torch import Tensor

from flashkit.exercises.model import Case, Inputs
from flashkit.exercises.relations import with_relation

GUARD = 4096
"""Elements of NaN before and after every tensor: a load past the end shows up in the result."""


def case_seed(seed: int, exercise: str, case: str) -> int:
    """The seed of one case: the same on every machine, unlike those of other cases."""
    return zlib.crc32(f"{seed}/{exercise}/{case}".encode())


def qkv(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, Hq, T, D), k and v (B, Hkv, S, D) on the CPU, inside guard zones of NaN."""
    p = {"B": 1, "Hq": 1, "Hkv": 1, "D": 16, "dtype": "float32", "gain": 1.0, **case.params}
    generator = torch.Generator().manual_seed(seed)
    shapes = ((p["Hq"], p["T"]), (p["Hkv"], p["S"]), (p["Hkv"], p["S"]))
    q, k, v = (torch.randn(p["B"], h, n, p["D"], generator=generator) for h, n in shapes)
    q, k = PATTERNS[p.get("pattern", "normal")](q, k)
    dtype, layout = getattr(torch, p["dtype"]), p.get("layout", {})
    v = v * p.get("v_gain", 1.0) + p.get("v_offset", 0.0)
    tensors = {"q": q * p["gain"], "k": k, "v": v}
    return tuple(
        place(x.to(dtype), LAYOUTS[layout.get(name, "plain")](x.shape))
        for name, x in tensors.items()
    )


def attention_calls(case: Case, seed: int) -> list[Inputs]:
    """The calls (q, k, v, then the case's args): one, or as many as launches says."""
    calls = []
    for n in range(case.params.get("launches", 1)):
        q, k, v = qkv(case, seed + n)
        calls.append({"q": q, "k": k, "v": v, **case.args})
    return with_relation(case, calls)


def place(x: Tensor, strides: tuple[int, ...] | None = None) -> Tensor:
    """A copy of x with these strides (its own by default) in the middle of a buffer of NaN.

    Integers lie in a buffer of zeros. Along an axis of stride 0 the first entry stands for all.
    """
    strides = x.stride() if strides is None else strides
    span = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
    fill = math.nan if x.is_floating_point() else 0
    buffer = torch.full((max(span, 1) + 2 * GUARD,), fill, dtype=x.dtype, device=x.device)
    placed = buffer.as_strided(x.shape, strides, GUARD)
    once = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
    placed[once].copy_(x[once])
    return placed


def _plain(shape):
    b, h, n, d = shape
    return (h * n * d, n * d, d, 1)


def _rows(shape):
    """Every second row of a longer tensor."""
    b, h, n, d = shape
    return (h * n * 2 * d, n * 2 * d, 2 * d, 1)


def _heads(shape):
    """A (B, S, H, D) tensor with S and H exchanged: what a projection of all heads gives."""
    b, h, n, d = shape
    return (n * h * d, d, h * d, 1)


def _expanded(shape):
    """One sequence that stands for the whole batch."""
    return (0, *_plain(shape)[1:])


def _constant(shape):
    """One number that stands for all: the gradient that o.sum() hands back."""
    return (0, 0, 0, 0)


LAYOUTS = {
    "plain": _plain,
    "rows": _rows,
    "heads": _heads,
    "expanded": _expanded,
    "constant": _constant,
}


def _normal(q, k):
    return q, k


def _negative(q, k):
    """Every score is about -200."""
    c = math.sqrt(200.0 / math.sqrt(q.shape[-1]))
    return c + 0.05 * q, -c + 0.05 * k


def _trend(per_key):
    """Scores that change by per_key from one key to the next, and little else."""

    def pattern(q, k):
        d = q.shape[-1]
        q, k = 0.3 * q, 0.3 * k
        q[..., 0] = math.sqrt(d)
        k[..., 0] = per_key * torch.arange(k.shape[2])
        return q, k

    return pattern


def _spike(q, k):
    """The last key scores 100, all others nearly 0."""
    q, k = 0.3 * q, 0.3 * k
    q[..., 0] = math.sqrt(q.shape[-1])
    k[..., 0] = 0.0
    k[..., -1, 0] = 100.0
    return q, k


PATTERNS = {
    "normal": _normal,
    "negative": _negative,
    "spike": _spike,
    "rising": _trend(0.2),
    "steep": _trend(4.0),
    "falling": _trend(-4.0),
}
