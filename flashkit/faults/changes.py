"""The single steps that bugs do otherwise: what `recipes` puts in the place of the right ones."""

import torch
from torch import Tensor

from flashkit.faults.recipe import INF, Call, end_of_keys, first_key


def zero(old: Tensor, new: Tensor) -> Tensor:
    return torch.zeros_like(old)


def frozen(old: Tensor, top: Tensor) -> Tensor:
    return torch.where(old == -INF, top, old)


def over_rows(scores: Tensor, raw: Tensor) -> Tensor:
    return scores.amax((-2, -1), keepdim=True)[..., 0].expand(scores.shape[:-1])


def inverted(old: Tensor, new: Tensor) -> Tensor:
    # Nothing has been seen where m is -inf: 0 there keeps the bug from hiding behind NaN.
    return torch.where(old == -INF, 0.0, torch.exp(new - old))


def unscaled(old: Tensor, new: Tensor) -> Tensor:
    """alpha where no maximum is subtracted."""
    return torch.where(old == -INF, 0.0, torch.ones_like(old))


def base(factor: float, function):
    """alpha or p in another base."""
    return lambda x, new: torch.exp(factor * torch.log(function(x, new)))


def divided(l: Tensor, acc: Tensor) -> Tensor:
    return torch.where(l[..., None] > 0, acc / l[..., None], acc)


def overwritten(old_alpha: Tensor) -> Tensor:
    return torch.zeros_like(old_alpha)


def half_p(p: Tensor, values: Tensor) -> Tensor:
    return p.half().float() @ values.half().float()


def halves(group: int) -> int:
    """The largest power of two that is not above the group."""
    return 1 << (group.bit_length() - 1)


def raw_end(call: Call, first: int) -> int:
    """The end of a loop that knows no causality."""
    return call.s


def below(call: Call, first: int) -> int:
    """Only tiles of keys that end before the diagonal."""
    return end_of_keys(call, first) // call.block_n * call.block_n


def before_diagonal(call: Call, first: int) -> int:
    return (call.offset + first) // call.block_n * call.block_n


def start_of_last_row(call: Call, first: int) -> int:
    last = first + call.block_m - 1
    return first_key(call, last)


def no_start(call: Call, first: int) -> int:
    return 0


def start_rounded_up(call: Call, first: int) -> int:
    return -(-first_key(call, first) // call.block_n) * call.block_n


def twice(which: int):
    return lambda tiles: sorted([*tiles, *tiles[which : which + 1 or None]])


def own_positions(names: str):
    """Positions that take no notice of what was given, for the queries or the keys."""

    def positions(qp, kp, call):
        own_q = call.offset + torch.arange(call.t)[None]
        own_k = torch.arange(kp.shape[1])[None]
        return (own_q if "q" in names else qp), (own_k if "k" in names else kp)

    return positions
