"""What the kernels of the exercises give with one bug."""

import math

import torch

from flashkit.diagnosis import attention_with
from flashkit.exercises import oracle
from flashkit.exercises.model import Case, Inputs
from flashkit.exercises.parts import as_parts, combined, cut
from flashkit.faults import RECIPES, faulty_merge
from flashkit.faults.states import MERGES
from flashkit.online import State

KERNEL_FAULTS = tuple(fault for fault in RECIPES if fault != "positions_ignored")
OTHER_BLOCKS = ((16, 16), (32, 32), (64, 64))
DECODE_FAULTS = (
    "divided_early",
    "scale_missing",
    "scale_by_d",
    "gqa_modulo",
    "gqa_ignored",
    "gqa_first_head",
    "group_power_of_two",
    "batch_ignored",
    "scale_inverted",
    "scale_of_one_width",
    "last_tile_skipped",
    "padded_keys_counted",
    "lse_in_base_2",
    "empty_part_not_written",
    "acc_not_rescaled",
    "l_not_rescaled",
    "nothing_rescaled",
    "max_frozen",
    "max_starts_at_zero",
    "no_max",
    "softmax_per_tile",
    "strides_assumed",
)
"""The bugs of a split kernel that show in the merged output, however the keys were cut."""


def faulty_kernel(fault: str, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    """The bug in tiles of the sizes that were asked for."""
    return [x.to(inputs["q"].dtype) for x in attention_with(fault, **inputs)]


def faulty_elsewhere(fault: str, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    """The bug in tiles of sizes that a kernel may fix, whatever was asked for."""
    found = []
    for block_m, block_n in OTHER_BLOCKS:
        sizes = {**inputs, "block_m": block_m, "block_n": block_n}
        found += [x.to(inputs["q"].dtype) for x in attention_with(fault, **sizes)]
    return found


def faulty_decode(fault: str, case: Case, inputs: Inputs) -> list:
    """The parts that a split kernel with this bug gives, for the likely cuts."""
    n = inputs["num_splits"]
    even = -(-inputs["k"].shape[2] // n)
    sizes = {-(-even // block) * block for block in (1, 16, 32, 64)}
    if fault in PARTS_SPOILT:
        return [PARTS_SPOILT[fault](cut(inputs, size, n)) for size in sizes]
    if fault in KEYS_SPOILT:
        wholes = [KEYS_SPOILT[fault](inputs, even, block) for block in (16, 32, 64)]
        return [_as_parts(inputs, x) for x in wholes]
    q, k, v = (inputs[name] for name in "qkv")
    offset = k.shape[2] + 64  # past the padding, so that nothing else hides it
    tiles = [attention_with(fault, q, k, v, offset, block_n=block) for block in (16, 32, 64)]
    found = [_as_parts(inputs, x) for outputs in tiles for x in outputs]
    return found + (_heads_lost(inputs) if fault == "group_power_of_two" else [])


def _as_parts(inputs: Inputs, o: torch.Tensor) -> State:
    """o as one full part, whose m is the right log-sum-exp, and empty ones."""
    parts = as_parts(o, inputs["num_splits"])
    parts.m[..., :1] = oracle.lse(inputs, torch.float64)
    return parts


def _heads_lost(inputs: Inputs) -> list:
    """Groups of which only a power of two of heads is stored."""
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    number = torch.arange(inputs["q"].shape[1]) % group
    whole = oracle.attention(inputs).float()
    kept = {group & -group, 1 << (group.bit_length() - 1)}
    lost = [number >= size for size in kept]
    return [_as_parts(inputs, whole.masked_fill(x[:, None, None], math.nan)) for x in lost]


def _keys_lost(inputs: Inputs, even: int, block: int) -> torch.Tensor:
    """Splits of as many keys as fit, the remainder left out."""
    n = inputs["num_splits"]
    kept = inputs["k"].shape[2] // n * n
    if not kept:
        return torch.full_like(inputs["q"], math.nan)
    fewer = {name: inputs[name][:, :, :kept] for name in "kv"}
    return oracle.attention({**inputs, **fewer}).float()


def _padding_counted(inputs: Inputs, even: int, block: int) -> torch.Tensor:
    """Every split reads whole tiles, and its padding counts with score 0 and value 0."""
    s, n = inputs["k"].shape[2], inputs["num_splits"]
    lengths = [max(0, min(even, s - i * even)) for i in range(n)]
    extra = sum(-length % block for length in lengths)
    pad = {name: torch.nn.functional.pad(inputs[name], (0, 0, 0, extra)) for name in "kv"}
    return oracle.attention({**inputs, **pad}).float()


def _divided_parts(part: State) -> State:
    m, l, acc = part
    return State(m, l, torch.where(l > 0, 1 / l, 0.0)[..., None] * acc)


def _unwritten_if_empty(part: State) -> State:
    return State(*(torch.where(_like(part.l == 0, x), math.nan, x) for x in part))


def _like(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return mask[..., None] if x.ndim > mask.ndim else mask


KEYS_SPOILT = {"last_tile_skipped": _keys_lost, "padded_keys_counted": _padding_counted}
"""Bugs that lose or invent keys: (inputs, keys of a split, tile) -> the merged output."""
PARTS_SPOILT = {
    "divided_early": _divided_parts,
    "lse_in_base_2": lambda part: State(part.m / math.log(2.0), part.l, part.a),
    "empty_part_not_written": _unwritten_if_empty,
}


def faulty_decode_merge(fault: str, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    """One split after another joined to nothing, with the bug; the chapter's rule and a fold."""
    m, l, acc = inputs.values()
    if fault == "not_divided":
        return [combined(m, l, acc) * _total(m, l)[..., None, None]]
    ways = range(len(MERGES.get(fault, (0,))))
    return [_folded(fault, m, l, acc, variant) for variant in ways] + _padded(fault, m, l, acc)


def _folded(fault: str, m, l, acc, variant: int) -> torch.Tensor:
    start = 0.0 if fault in ("no_max", "max_starts_at_zero") else -math.inf
    state = (torch.full_like(m[..., 0], start), torch.zeros_like(l[..., 0]), 0 * acc[..., 0, :])
    for i in range(m.shape[2]):
        state = faulty_merge(fault, state, (m[..., i], l[..., i], acc[..., i, :]), variant)
    return (state[2] / state[1][..., None])[:, :, None]


def _padded(fault: str, m, l, acc) -> list[torch.Tensor]:
    """Splits that are padded with m = 0 to a power of two start at 0 only where there are any."""
    whole = m.shape[2] & (m.shape[2] - 1) == 0
    return [combined(m, l, acc)] if fault == "max_starts_at_zero" and whole else []


def _total(m: torch.Tensor, l: torch.Tensor) -> torch.Tensor:
    """The merged l, (B, Hq)."""
    return (torch.exp(m - m.amax(-1, keepdim=True)) * l).sum(-1)
