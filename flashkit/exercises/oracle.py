"""The right answers, in float64, and how far a fair computation of the same dtype is from them."""

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


def attention_error(inputs: dict, want: Tensor) -> float:
    """The error that cannot be avoided: the worst of two eager computations in the inputs' dtype.

    One scales the scores and uses e, the other scales q and uses 2, as many kernels do.
    """
    rounds = [eager(inputs, base2).double() - want for base2 in (False, True)]
    finite = [x.abs().max() for x in rounds if torch.isfinite(x).all()]
    return float(max(finite, default=torch.tensor(0.0)))


def eager(inputs: dict, base2: bool) -> Tensor:
    """Attention with the whole score matrix, every step rounded to the dtype of the inputs."""
    q, k, v = (inputs[name] for name in "qkv")
    group, scale = q.shape[1] // k.shape[1], 1.0 / math.sqrt(q.shape[3])
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    seen = visible(query_positions(inputs), key_positions(inputs), inputs.get("window"))
    if not base2:
        scores = ((q @ k.mT) * scale).masked_fill(~seen, -math.inf)
        return torch.softmax(scores, -1) @ v
    scores = ((q * (scale * math.log2(math.e))) @ k.mT).masked_fill(~seen, -math.inf)
    p = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)
