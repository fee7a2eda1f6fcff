"""The right answers, in float64, and how far a fair computation of the same dtype is from them."""

import itertools
import math

import torch
from torch import Tensor

from flashkit.masks import positions, visible
from flashkit.reference import causal_attention

CPU = torch.device("cpu")


def offset_of(inputs: dict) -> int:
    """The position of query row 0: query_offset, by default S - T."""
    given = inputs.get("query_offset")
    return inputs["k"].shape[2] - inputs["q"].shape[2] if given is None else given


def query_positions(inputs: dict) -> Tensor:
    """(B, T) absolute positions: as given, or from the offset."""
    batch, _, t, _ = inputs["q"].shape
    return positions(inputs.get("query_positions"), batch, t, offset_of(inputs), CPU)


def key_positions(inputs: dict) -> Tensor:
    """(B, S) absolute positions: as given, or 0, 1, ..."""
    batch, _, s, _ = inputs["k"].shape
    return positions(inputs.get("key_positions"), batch, s, 0, CPU)


def attention(inputs: dict) -> Tensor:
    """Exact attention of the inputs in float64, (B, Hq, T, D)."""
    return causal_attention(
        *(inputs[name].double() for name in "qkv"),
        query_positions(inputs),
        key_positions(inputs),
        window=inputs.get("window"),
    )


def unguarded(inputs: dict, tile: int, parts: bool = False) -> Tensor:
    """Attention with NaN in the rows that see no key of the first tile, or of any tile if parts.

    That is what exp(-inf - -inf) makes of them, in one state or in one state for each part.
    """
    seen = visible(query_positions(inputs), key_positions(inputs))
    tiles = [x.any(-1) for x in seen.split(tile, dim=-1)]
    fine = torch.stack(tiles).all(0) if parts else tiles[0]
    return attention(inputs).masked_fill(~fine[..., None], math.nan)


def attention_error(inputs: dict, want: Tensor) -> float:
    """The error that cannot be avoided: the worst of eight eager computations in that dtype.

    They differ in what is scaled (q or the scores), in the base (e or 2) and in the order of the
    columns of q and k: all are right, none is better founded than the others.
    """
    ways = itertools.product((False, True), repeat=3)
    errors = [(eager(inputs, *way).double() - want).abs().max() for way in ways]
    return max((float(error) for error in errors if torch.isfinite(error)), default=0.0)


def eager(inputs: dict, base2: bool, scale_q: bool, flip: bool) -> Tensor:
    """Attention with the whole score matrix, every step rounded to the dtype of the inputs."""
    q, k, v = (inputs[name] for name in "qkv")
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    q, k = (x.flip(-1) if flip else x for x in (q, k))
    scale = (math.log2(math.e) if base2 else 1.0) / math.sqrt(q.shape[3])
    scores = (q * scale) @ k.mT if scale_q else (q @ k.mT) * scale
    seen = visible(query_positions(inputs), key_positions(inputs), inputs.get("window"))
    scores = scores.masked_fill(~seen, -math.inf)
    p = (torch.exp2 if base2 else torch.exp)(scores - scores.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)
