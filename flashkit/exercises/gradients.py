"""The gradient of attention as an exercise: inputs with a saved o and lse, and what is right.

What is right comes from autograd in float64, through a plain softmax. What error is fair comes
from the formulas of the lesson, in float32 and in several ways that are as good as one another.
"""

import itertools
import math

import torch
from torch import Tensor

from flashkit.exercises import inputs as make
from flashkit.exercises.judge import budget
from flashkit.exercises.model import Case, Inputs
from flashkit.exercises.oracle import offset_of
from flashkit.masks import positions, visible

PARTS = ("p", "dv", "delta", "ds", "dq", "dk")
"""In the order in which they follow from one another."""
TINY = 1e-30
"""What is smaller counts as this large: float32 has no digits to spare for it."""
LOG2E = math.log2(math.e)


def calls(case: Case, seed: int) -> list[Inputs]:
    """q, k, v, the o and lse of their forward, do, then the case's args; see `inputs`.

    do_gain multiplies do; with layout {"do": "constant"} it is one number for all.
    """
    return [_call(case, seed + n) for n in range(case.params.get("launches", 1))]


def _call(case: Case, seed: int) -> Inputs:
    q, k, v = make.qkv(case, seed)
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(seed + 1))
    do = (do * case.params.get("do_gain", 1.0)).to(q.dtype)
    strides = make.LAYOUTS[case.params.get("layout", {}).get("do", "plain")](do.shape)
    inputs = {"q": q, "k": k, "v": v, "o": None, "lse": None}
    inputs |= {"do": make.place(do, strides), **case.args}
    o, lse = forward(inputs)
    return inputs | {"o": make.place(o.to(q.dtype)), "lse": make.place(lse.float())}


def calls_of_one_head(case: Case, seed: int) -> list[Inputs]:
    """The same with q, do (T, D), k, v (S, D) and lse (T,)."""
    return [{name: x[0, 0] for name, x in call.items()} for call in calls(case, seed)]


def with_heads(inputs: Inputs) -> Inputs:
    """The inputs of one head as those of a batch of one with one head; others as they are."""
    if inputs["q"].ndim == 4:
        return inputs
    return {name: x[None, None] for name, x in inputs.items()}


def _visible(inputs: Inputs) -> Tensor:
    """(1, 1, T, S)."""
    t, s = inputs["q"].shape[2], inputs["k"].shape[2]
    places = (
        positions(None, 1, *x, torch.device("cpu")) for x in ((t, offset_of(inputs)), (s, 0))
    )
    return visible(*places, inputs.get("window"))


def _spread(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _weights(inputs: Inputs, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (the hidden ones too), p and lse in float64; p is 0 in a row without a key."""
    seen = _visible(inputs)
    scores = q @ _spread(k, q).mT / math.sqrt(q.shape[3])
    lent = torch.where(seen | ~seen.any(-1, keepdim=True), 0.0, -math.inf)
    p = torch.softmax(scores + lent, -1) * seen.any(-1, keepdim=True)
    return scores, p, torch.logsumexp(scores.masked_fill(~seen, -math.inf), -1)


def forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """o (B, Hq, T, D) and lse (B, Hq, T) in float64."""
    q, k, v = (inputs[name].double() for name in "qkv")
    _, p, lse = _weights(inputs, q, k)
    return p @ _spread(v, q), lse


def right(inputs: Inputs) -> dict[str, Tensor]:
    """All PARTS in float64, by autograd; inputs with heads."""
    q, k, v = (inputs[name].detach().double().requires_grad_() for name in "qkv")
    do = inputs["do"].double()
    scores, p, _ = _weights(inputs, q, k)
    o = p @ _spread(v, q)
    ds, dq, dk, dv = torch.autograd.grad((o * do).sum(), (scores, q, k, v))
    delta = (do * o.detach()).sum(-1)
    return {"p": p.detach(), "dv": dv, "delta": delta, "ds": ds, "dq": dq, "dk": dk}


def by_formulas(
    inputs: Inputs, base2=False, scale_q=False, flip=False, dtype=torch.float32
) -> dict[str, Tensor]:
    """All PARTS as the lesson computes them, in one of the ways that are right."""
    q, k, v, o, do, lse = (inputs[x].to(dtype) for x in ("q", "k", "v", "o", "do", "lse"))
    q, k = (x.flip(-1) if flip else x for x in (q, k))
    scale, unit = 1.0 / math.sqrt(q.shape[3]), LOG2E if base2 else 1.0
    heads, k, v = k.shape[1], _spread(k, q), _spread(v, q)
    scores = (q * (scale * unit)) @ k.mT if scale_q else q @ k.mT * (scale * unit)
    exp = torch.exp2 if base2 else torch.exp
    seen = _visible(inputs) & (lse > -math.inf)[..., None]
    p = torch.where(seen, exp(scores - unit * lse[..., None]), 0.0)
    dp, delta = do @ v.mT, (do * o).sum(-1)
    ds = p * (dp - ((p * dp).sum(-1) if flip and base2 else delta)[..., None])
    dq, dk, dv = scale * ds @ k, scale * ds.mT @ q, p.mT @ do
    dq, dk = (x.flip(-1) if flip else x for x in (dq, dk))
    dk, dv = (x.unflatten(1, (heads, -1)).sum(2) for x in (dk, dv))
    return {"p": p, "dv": dv, "delta": delta, "ds": ds, "dq": dq, "dk": dk}


def sizes(inputs: Inputs, p: Tensor) -> dict[str, Tensor]:
    """What errors are measured by: sums of the sizes of all terms; for rows, the largest.

    p is the right one. Each spreads to its part.
    """
    q, k, v, o, do = (inputs[x].double().abs() for x in ("q", "k", "v", "o", "do"))
    heads, scale = k.shape[1], 1.0 / math.sqrt(q.shape[3])
    delta = (do * o).sum(-1)
    ds = p * (do @ _spread(v, q).mT + delta[..., None])
    dq, dk, dv = scale * ds @ _spread(k, q), scale * ds.mT @ q, p.mT @ do
    dk, dv = (x.unflatten(1, (heads, -1)).sum(2) for x in (dk, dv))
    rows = {name: x.amax(-1, keepdim=True) for name, x in (("dq", dq), ("dk", dk), ("dv", dv))}
    found = {"p": p, "delta": delta, "ds": ds, **rows}
    return {name: torch.where(x > 0, x.clamp(min=TINY), 0.0) for name, x in found.items()}


def limits(inputs: Inputs, want: dict[str, Tensor]) -> dict[str, Tensor]:
    """The error allowed in each part, given the right parts; inputs with heads."""
    ways = [by_formulas(inputs, *way) for way in itertools.product((False, True), repeat=3)]
    size, dtype, found = sizes(inputs, want["p"]), inputs["q"].dtype, {}
    for name in PARTS:
        error = torch.stack([(x[name].to(dtype).double() - want[name]).abs() for x in ways])
        found[name] = budget(error.amax(0), size[name], dtype)
    return found
