"""Relations between two calls of one function that hold whatever the right answer is.

No oracle stands behind them: keys in another order, every key twice, later keys changed, the keys
cut otherwise, the two sides exchanged. A case names its relation in params["relation"].
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashkit.exercises.model import Case, Inputs


class Relation(NamedTuple):
    """change makes the second call from the first; same(inputs, first, second) compares replies.

    same gives pairs of tensors that must agree; exact says that no rounding is forgiven.
    """

    change: Callable[[Inputs], Inputs]
    same: Callable[[Inputs, Any, Any], list[tuple[Tensor, Tensor]]]
    says: str
    exact: bool = False


def with_relation(case: Case, calls: list[Inputs]) -> list[Inputs]:
    """The calls, and the one that the case's relation adds."""
    name = case.params.get("relation")
    return [*calls, RELATIONS[name].change(calls[0])] if name else calls


def broken(case: Case, calls: list[Inputs], replies: list[Any]) -> str:
    """What is wrong between the replies to the calls, in a sentence, or "" if nothing is."""
    relation = RELATIONS.get(case.params.get("relation", ""))
    if relation is None:
        return ""
    for first, second in relation.same(calls[0], replies[0], replies[1]):
        first, second = first.double(), second.double()
        allowed = 0.0 if relation.exact else ROUNDING * float(first.abs().amax().clamp(min=1.0))
        apart = (first - second).abs()
        bad = ~((apart <= allowed) | (first == second))
        if bad.any():
            index = [int(i) for i in bad.nonzero()[0]]
            return (
                f"{relation.says}, but at {index} there is {float(first[tuple(index)]):.6g} "
                f"first and {float(second[tuple(index)]):.6g} then."
            )
    return ""


ROUNDING = 1e-5
"""What the order of additions may change, relative to the largest entry."""


def _shuffled(inputs: Inputs) -> Inputs:
    s = inputs["k"].shape[2]
    order = torch.randperm(s, generator=torch.Generator().manual_seed(s))
    changed = {name: inputs[name][:, :, order] for name in ("k", "v")}
    if inputs.get("key_positions") is not None:
        changed["key_positions"] = inputs["key_positions"][order]
    return inputs | changed


def _doubled(inputs: Inputs) -> Inputs:
    return inputs | {name: torch.cat([inputs[name]] * 2, dim=2) for name in ("k", "v")}


def _other_future(inputs: Inputs) -> Inputs:
    """Keys and values of the second half replaced by others."""
    k, v = inputs["k"].clone(), inputs["v"].clone()
    half = k.shape[2] // 2
    k[:, :, half:], v[:, :, half:] = 3.0 * k[:, :, half:] + 1.0, 5.0 - v[:, :, half:]
    return inputs | {"k": k, "v": v}


def _whole(inputs: Inputs) -> Inputs:
    return inputs | {"num_splits": 1}


def _exchanged(inputs: Inputs) -> Inputs:
    return {"a": inputs["b"], "b": inputs["a"]}


def _joined(inputs: Inputs) -> Inputs:
    """The first two parts joined beforehand; an empty part takes the second place."""
    m, l, acc = (x.clone() for x in inputs.values())
    o, lse = _finished((m[..., :2], l[..., :2], acc[..., :2, :]))
    m[..., 0], l[..., 0], acc[..., 0, :] = lse, 1.0, o
    m[..., 1], l[..., 1], acc[..., 1, :] = -math.inf, 0.0, 0.0
    return {"m": m, "l": l, "acc": acc}


def _finished(parts) -> tuple[Tensor, Tensor]:
    """o (B, Hq, D) and lse (B, Hq) of partial m, l (B, Hq, n) and acc (B, Hq, n, D)."""
    m, l, acc = (x.double() for x in parts)
    top = m.amax(-1, keepdim=True)
    weights = torch.exp(m - torch.where(top == -math.inf, 0.0, top))
    total = (weights * l).sum(-1)
    return (weights[..., None] * acc).sum(-2) / total[..., None], top[..., 0] + torch.log(total)


def _unchanged(inputs: Inputs, first: Any, second: Any) -> list[tuple[Tensor, Tensor]]:
    """The same output; of partial results, the same o and log-sum-exp."""
    if isinstance(first, Tensor):
        return [(first, second)]
    return list(zip(_finished(first), _finished(second), strict=True))


def _one_ln_2_more(inputs: Inputs, first: Any, second: Any) -> list[tuple[Tensor, Tensor]]:
    """The same output, and a log-sum-exp that is ln 2 larger where there is one."""
    if isinstance(first, Tensor):
        return [(first, second)]
    (o, lse), (again, more) = _finished(first), _finished(second)
    return [(o, again), (lse + math.log(2.0), more)]


def _past(inputs: Inputs, first: Tensor, second: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows that see nothing of what was changed."""
    t, s = inputs["q"].shape[2], inputs["k"].shape[2]
    given = inputs.get("query_offset")
    rows = max(0, s // 2 - (s - t if given is None else given))
    return [(first[:, :, :rows], second[:, :, :rows])]


def _side_by_side(inputs: Inputs, first: Any, second: Any) -> list[tuple[Tensor, Tensor]]:
    return list(zip(first, second, strict=True))


RELATIONS = {
    "shuffled": Relation(
        _shuffled, _unchanged, "With the keys in another order the result must stay the same"
    ),
    "doubled": Relation(
        _doubled,
        _one_ln_2_more,
        "With every key twice the output must stay, and the log-sum-exp grow by ln 2",
    ),
    "other future": Relation(
        _other_future,
        _past,
        "With other keys in the future the rows before them must stay the same, bit by bit",
        exact=True,
    ),
    "whole": Relation(
        _whole, _unchanged, "However the keys are cut, the merged result is the same"
    ),
    "exchanged": Relation(_exchanged, _side_by_side, "merge(a, b) and merge(b, a) must be equal"),
    "joined": Relation(
        _joined, _unchanged, "With two parts merged beforehand the result must stay the same"
    ),
}
