"""Partial results of a softmax, as inputs of the merges, and how they are put together."""

import functools
import math

import torch

from flashkit.exercises.inputs import place
from flashkit.exercises.model import Case, Inputs
from flashkit.exercises.relations import with_relation
from flashkit.online import EMPTY, State, merge, update


def partial(shape, d, level, empty, generator) -> State:
    """Partial results m, l (shape) and acc (*shape, d) over 7 keys each, with scores around level.

    Where `empty` (shape, bool) holds, nothing was seen.
    """
    scores = torch.randn(*shape, 1, 7, generator=generator) + level
    scores = scores.masked_fill(empty[..., None, None], -math.inf)
    values = torch.randn(*shape, 7, d, generator=generator)
    start = State(EMPTY.m.expand(*shape, 1), EMPTY.l.expand(*shape, 1), torch.zeros(*shape, 1, d))
    m, l, acc = update(start, scores, values)
    return State(m[..., 0], l[..., 0], acc[..., 0, :])


def merge_calls(case: Case, seed: int) -> list[Inputs]:
    """Two partial results of T rows each; a_empty and b_empty name rows of EMPTY_ROWS."""
    p = {"T": 6, "D": 4, **case.params}
    generator, sides = torch.Generator().manual_seed(seed), {}
    for side in ("a", "b"):
        empty = EMPTY_ROWS[p.get(f"{side}_empty", "none")](torch.arange(p["T"]))
        level = p.get(f"{side}_level", 0.0)
        sides[side] = tuple(partial((p["T"],), p["D"], level, empty, generator))
    return with_relation(case, [sides])


EMPTY_ROWS = {
    "none": lambda rows: rows < 0,
    "all": lambda rows: rows >= 0,
    "every second": lambda rows: rows % 2 == 0,
    "every third": lambda rows: rows % 3 == 0,
}


def decode_merge_calls(case: Case, seed: int) -> list[Inputs]:
    """m, l (B, Hq, num_splits) and acc (B, Hq, num_splits, D); every `empty`-th split is empty."""
    p = {"B": 1, "Hq": 2, "num_splits": 4, "D": 16, "level": 0.0, "step": 0.0, **case.params}
    generator, n = torch.Generator().manual_seed(seed), p["num_splits"]
    shape = (p["B"], p["Hq"], n)
    level = (p["level"] + p["step"] * torch.arange(n)).view(n, 1, 1)
    empty = torch.arange(n) % p["empty"] == 0 if "empty" in p else torch.zeros(n, dtype=bool)
    part = partial(shape, p["D"], level, empty.expand(shape), generator)
    parts = {name: place(x.contiguous()) for name, x in zip(("m", "l", "acc"), part, strict=True)}
    return with_relation(case, [parts])


def cut(inputs: Inputs, size: int, num_splits: int) -> State:
    """m, l (B, Hq, n) and acc (B, Hq, n, D) of a decode call: n = num_splits parts of `size` keys.

    Parts without keys are m = -inf, l = 0, acc = 0.
    """
    q, k, v = (inputs[name].float() for name in "qkv")
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    empty = State(EMPTY.m.expand(q.shape[:3]), EMPTY.l.expand(q.shape[:3]), torch.zeros_like(q))
    scores = q @ k.mT / math.sqrt(q.shape[3])
    pieces = zip(scores.split(size, dim=3), v.split(size, dim=2), strict=True)
    parts = [update(empty, *piece) for piece in pieces]
    parts += [empty] * (num_splits - len(parts))
    return State(*(torch.cat(x, dim=2) for x in zip(*parts, strict=True)))


def as_parts(o: torch.Tensor, num_splits: int) -> State:
    """o (B, Hq, 1, D) as partial results of which only the first is not empty."""
    m = torch.full((*o.shape[:2], num_splits), -math.inf)
    l, acc = torch.zeros_like(m), torch.zeros(*m.shape, o.shape[3])
    m[..., 0], l[..., 0], acc[:, :, :1] = 0.0, 1.0, o
    return State(m, l, acc)


def combined(m: torch.Tensor, l: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
    """o (B, Hq, 1, D) from the partial m, l (B, Hq, n) and acc (B, Hq, n, D), in their dtype."""
    parts = [State(m[:, :, i], l[:, :, i], acc[:, :, i]) for i in range(m.shape[2])]
    whole = functools.reduce(merge, parts)
    return (whole.a / whole.l[..., None])[:, :, None]
