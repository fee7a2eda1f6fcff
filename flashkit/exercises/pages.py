"""A KV cache in pages as an exercise: pages in no order, what is right, and what goes wrong.

params: lengths, keys of each sequence; page, rows of a page; shared, pages that all sequences have
in common at their start; Hq, Hkv, D, dtype, pattern, gain and v_offset as in `inputs`; stale, what
the rows that hold no key are full of; unused, the table's entries that name no page; layout, a
name of LAYOUTS; which, the sequence that is gathered.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from flashkit.diagnosis import attention_with
from flashkit.exercises import inputs as make
from flashkit.exercises import oracle
from flashkit.exercises.judge import attention_limit
from flashkit.exercises.model import Case, Inputs

ONE_WIDTH = 16  # of a page, for those who think that there is no other


def _plain(pages, size, heads, d):
    return size * heads * d, heads * d, d, 1


def _together(pages, size, heads, d):
    """One allocation for K and V: every second block of a page's size."""
    return 2 * size * heads * d, heads * d, d, 1


def _heads_first(pages, size, heads, d):
    """Pages that keep a head's rows together."""
    return size * heads * d, d, size * d, 1


LAYOUTS = {"plain": _plain, "together": _together, "heads first": _heads_first}


def decode_calls(case: Case, seed: int) -> list[Inputs]:
    """q (B, Hq, 1, D), k_pages and v_pages (P, page, Hkv, D), block_table (B, n), lengths (B,)."""
    return [_call(case, seed + n) for n in range(case.params.get("launches", 1))]


def gather_calls(case: Case, seed: int) -> list[Inputs]:
    """The pages of K, the table's row of one sequence and its length."""
    which, calls = case.params.get("which", 0), []
    for call in decode_calls(case, seed):
        row, length = call["block_table"][which].clone(), int(call["lengths"][which])
        calls.append({"pages": call["k_pages"], "block_table": row, "length": length})
    return calls


def _call(case: Case, seed: int) -> Inputs:
    p = {"page": 4, "shared": 0, "stale": 3.0, "unused": -1, "layout": "plain", **case.params}
    lengths, size = p["lengths"], p["page"]
    params = {**p, "B": len(lengths), "T": 1, "S": max(lengths), "layout": {}}
    q, k, v = make.qkv(Case(case.name, "", params), seed)
    table = _table(lengths, size, p["shared"], seed)
    shape = (int(table.max()) + 3, size, k.shape[1], k.shape[3])
    caches = {}
    for name, x in (("k_pages", k), ("v_pages", v)):
        cache = torch.full(shape, p["stale"], dtype=q.dtype)
        for b, length in enumerate(lengths):
            for start in range(0, length, size):
                rows = x[b, :, start : min(start + size, length)].transpose(0, 1)
                cache[table[b, start // size], : len(rows)] = rows
        caches[name] = make.place(cache, LAYOUTS[p["layout"]](*shape))
    table = make.place(table.masked_fill(table < 0, p["unused"]).int())
    return {"q": q, **caches, "block_table": table, "lengths": torch.tensor(lengths).int()}


def _table(lengths: list[int], size: int, shared: int, seed: int) -> Tensor:
    """A page for each piece of a sequence, -1 behind the last; the order is drawn."""
    counts = [-(-length // size) for length in lengths]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(seed))
    if order[: counts[0]].tolist() == list(
        range(counts[0])
    ):  # the order must not be the plain one
        order = order.flip(0)
    table, taken = torch.full((len(lengths), max(counts) + 1), -1), 0
    for b, count in enumerate(counts):
        table[b, :count] = order[taken : taken + count]
        if b > 0:
            table[b, : min(shared, count)] = table[0, : min(shared, count)]
        taken += count
    return table


def gathered(pages: Tensor, row: Tensor, length: int) -> Tensor:
    """Keys 0 to length - 1 of a sequence, (Hkv, length, D)."""
    i = torch.arange(length)
    return pages[row.long()[i // pages.shape[1]], i % pages.shape[1]].transpose(0, 1)


def _in_order(pages: Tensor, row: Tensor, length: int) -> Tensor:
    return gathered(pages, torch.arange(len(row)), length)


def _of_one_size(pages: Tensor, row: Tensor, length: int) -> Tensor:
    i = torch.arange(length)
    return pages[row.long()[i // ONE_WIDTH], i % ONE_WIDTH].transpose(0, 1)


def _reshaped(pages: Tensor, row: Tensor, length: int) -> Tensor:
    rows = gathered(pages, row, length).transpose(0, 1)
    return rows.reshape(rows.shape[1], length, rows.shape[2])


GATHERS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "table_ignored": _in_order,
    "page_size_fixed": _of_one_size,
    "heads_not_transposed": _reshaped,
}
"""What a gather gives with one bug; an IndexError where it would read past an end."""


def faulty_gather(fault: str, case: Case, inputs: Inputs) -> list[Tensor]:
    """The gathered keys with one bug, if it gives any."""
    try:
        return [GATHERS[fault](*inputs.values())]
    except IndexError:
        return []


def sequences(inputs: Inputs, gather=gathered) -> list[Inputs]:
    """Each sequence on its own: q (1, Hq, 1, D), k and v (1, Hkv, length, D)."""
    q, k_pages, v_pages, table, lengths = inputs.values()
    return [
        {"q": q[b : b + 1], "k": gather(k_pages, table[b], n)[None]}
        | {"v": gather(v_pages, table[b], n)[None]}
        for b, n in enumerate(lengths.tolist())
    ]


def right(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """o (B, Hq, 1, D) in float64, 0 for a sequence without keys, and the error allowed, alike."""
    wants, limits = [], []
    for one in sequences(inputs):
        empty = not one["k"].shape[2]
        want = torch.zeros(one["q"].shape).double() if empty else oracle.attention(one)
        wants.append(want)
        limit = torch.zeros_like(want[..., :1]) if empty else attention_limit(one, want)
        limits.append(limit)
    return torch.cat(wants), torch.cat(limits)


def _recurrence(fault: str, inputs: Inputs) -> list[Tensor]:
    """A bug of the walk over the keys, a page a tile; in each way that it is written."""
    size = inputs["k_pages"].shape[1]
    ways = [_with(fault, one, size) for one in sequences(inputs)]
    return [torch.cat(x) for x in zip(*ways, strict=False)]


def _with(fault: str, one: Inputs, size: int) -> list[Tensor]:
    if not one["k"].shape[2]:
        empty = torch.full(one["q"].shape, math.nan if fault == "no_guard" else 0.0)
        return [empty] * 8
    if fault == "no_guard":
        return [oracle.attention(one).float()]
    return attention_with(fault, one["q"], one["k"], one["v"], block_n=size)


def _all_rows(inputs: Inputs) -> list[Tensor]:
    """Whole pages count, with what is in them."""
    size = inputs["k_pages"].shape[1]
    return _of_lengths(inputs, lambda n: -(-n // size) * size)


def _whole_pages(inputs: Inputs) -> list[Tensor]:
    """Only whole pages count."""
    size = inputs["k_pages"].shape[1]
    return _of_lengths(inputs, lambda n: n // size * size)


def _of_lengths(inputs: Inputs, length: Callable[[int], int]) -> list[Tensor]:
    lengths = torch.tensor([length(n) for n in inputs["lengths"].tolist()])
    return [_attended({**inputs, "lengths": lengths})]


def _of_first(inputs: Inputs) -> list[Tensor]:
    """Every sequence reads the pages of the first."""
    table = inputs["block_table"]
    return [_attended({**inputs, "block_table": table[:1].expand_as(table)})]


def _attended(inputs: Inputs, gather=gathered) -> Tensor:
    """What is right for other tables or lengths; NaN where no key is left."""
    found = sequences(inputs, gather)
    none = [torch.full(one["q"].shape, math.nan) for one in found]
    pairs = zip(found, inputs["lengths"].tolist(), none, strict=True)
    return torch.cat([oracle.attention(one).float() if n else nan for one, n, nan in pairs])


TABLES: dict[str, Callable[[Inputs], list[Tensor]]] = {
    "past_length_counted": _all_rows,
    "last_tile_skipped": _whole_pages,
    "batch_ignored": _of_first,
    **{
        fault: lambda inputs, gather=gather: [_attended(inputs, gather)]
        for fault, gather in GATHERS.items()
    },
}
"""Bugs in finding the keys: inputs -> outputs."""
RECURRENCE = (
    *("no_max", "max_starts_at_zero", "max_frozen", "l_not_rescaled", "acc_not_rescaled"),
    *("nothing_rescaled", "alpha_inverted", "softmax_per_tile", "not_divided", "divided_early"),
    *("no_guard", "scale_missing", "scale_by_d", "scale_of_one_width", "gqa_modulo"),
    *("gqa_ignored", "gqa_first_head", "only_first_tile", "last_tile_only"),
)


def faulty_decode(fault: str, case: Case, inputs: Inputs) -> list[Tensor]:
    """The output with one bug, in q's dtype, if it gives any."""
    try:
        found = TABLES[fault](inputs) if fault in TABLES else _recurrence(fault, inputs)
    except IndexError:
        return []
    return [x.to(inputs["q"].dtype) for x in found]
