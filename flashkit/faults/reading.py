"""What a kernel loads that computes its addresses wrongly: real memory, read another way."""

import math

import torch
from torch import Tensor

from flashkit.faults.recipe import padded, spread


def peek(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """The memory at x's first entry, read with another shape and strides; NaN past its end."""
    memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    start = x.storage_offset()
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    missing = max(0, start + span - memory.numel())
    memory = torch.cat([memory, memory.new_full((missing,), math.nan)])
    return memory.as_strided(shape, strides, start)


def contiguous_strides(x: Tensor) -> tuple[int, ...]:
    """The strides that x's shape would have in row-major order."""
    _, h, n, d = x.shape
    return (h * n * d, n * d, d, 1)


def restrided(**strides):
    """A read in which the tensors named q, k or v are addressed with other strides.

    Each is a function of q, k, v that gives the strides.
    """

    def read(q, k, v, rows):
        given = {"q": q, "k": k, "v": v}
        found = [
            peek(x, x.shape, strides[name](q, k, v)) if name in strides else x
            for name, x in given.items()
        ]
        return found[0], *(padded(spread(x, q.shape[1]), rows) for x in found[1:])

    return read


def rows_of_width_d(x: Tensor) -> tuple[int, ...]:
    """x's strides, but for rows that are assumed to lie D entries apart."""
    return (*x.stride()[:2], x.shape[3], x.stride(3))


def batch_as_head(x: Tensor) -> tuple[int, ...]:
    """x's strides with those of batch and head exchanged."""
    return (x.stride(1), x.stride(0), *x.stride()[2:])


def written_with_strides_of_q(q: Tensor, o: Tensor) -> Tensor:
    """A contiguous o that was stored as if it lay in memory as q does; NaN where nothing was."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(q.shape, q.stride(), strict=True))
    memory = o.new_full((max(size, o.numel()),), math.nan)
    memory.as_strided(q.shape, q.stride()).copy_(o)
    return memory[: o.numel()].view(o.shape)


def unmasked(names: str):
    """A read without a mask: beyond the last key lies whatever comes next in memory."""

    def read(q, k, v, rows):
        longer = [
            peek(x, (*x.shape[:2], rows, x.shape[3]), x.stride()) if name in names else x
            for name, x in zip("kv", (k, v), strict=True)
        ]
        return q, *(padded(spread(x, q.shape[1]), rows) for x in longer)

    return read


def heads(choose):
    """A read in which query head h takes KV head choose(h, Hq, Hkv), which may not exist."""

    def read(q, k, v, rows):
        numbers = choose(torch.arange(q.shape[1]), q.shape[1], k.shape[1])
        most = max(int(numbers.max()) + 1, k.shape[1])
        found = []
        for x in (k, v):
            b, _, n, d = x.shape
            found.append(padded(peek(x, (b, most, n, d), x.stride())[:, numbers], rows))
        return q, *found

    return read


def batch_zero(names: str):
    """A read in which every batch entry finds entry 0 in the tensors of `names`."""

    def read(q, k, v, rows):
        found = [
            x[:1].expand_as(x) if name in names else x
            for name, x in zip("qkv", (q, k, v), strict=True)
        ]
        return found[0], *(padded(spread(x, q.shape[1]), rows) for x in found[1:])

    return read
