"""From the chapter's kernel to the fastest, one technique at a time.

A rung is the one below it with one thing more. The page docs/ladder.md holds the table that
`table` makes of the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flashkit.bench.implementations import (
    CHAPTER,
    CUDNN,
    DECODE,
    DECODE_TEACHING,
    HOPPER,
    TEACHING,
    TRITON,
    Implementation,
    decode_call,
)
from flashkit.bench.launchers import (
    BACKWARD_CUDNN,
    BACKWARD_HOPPER,
    BACKWARD_TEACHING,
    BACKWARD_TRITON,
    backward_launcher,
    forward_launcher,
)
from flashkit.bench.rows import SEPARATE, Row
from flashkit.bench.shapes import Shape, backward, decode, prefill, short


def _pointers(shape: Shape) -> dict:
    from flashkit.kernels.forward_config import Config

    return {"config": Config(block_m=128, block_n=64, warps=8, stages=2, descriptors=False)}


def _no_descriptors(shape: Shape) -> dict:
    from flashkit.kernels.forward_config import HOPPER as MEASURED

    return {"config": MEASURED[2, shape.d]._replace(descriptors=False)}


def _serial(shape: Shape) -> dict:
    from flashkit.kernels.hopper import CONFIGS

    return {"config": CONFIGS[shape.d]._replace(overlap=False)}


def _one_program(shape: Shape) -> dict:
    return {"programs": 1}


def _without(shape: Shape, **switches: bool) -> dict:
    """The split backward's configuration for Hopper with switches off."""
    from flashkit.kernels.backward_config import Configs, choose

    configs = choose(torch.bfloat16, shape.d, shape.causal, 9)
    return {"config": Configs(*(config._replace(**switches) for config in configs))}


def _addressed(shape: Shape) -> dict:
    return _without(shape, tma=False, split_masks=False)


def _masked(shape: Shape) -> dict:
    return _without(shape, split_masks=False)


@dataclass(frozen=True)
class Rung:
    """An implementation, and what it has that the one before has not."""

    implementation: Implementation
    new: str


class Ladder(NamedTuple):
    """Rungs from below, the shapes they are timed on, and whose speed theirs is held against."""

    rungs: tuple[Rung, ...]
    shapes: tuple[Shape, ...]
    peer: Implementation = CUDNN


POINTERS = forward_launcher("triton, pointers", "forward_tuned", "tuned_fwd", _pointers)
SERIAL = forward_launcher("Gluon, no overlap", "hopper", "hopper_fwd", _serial)
KEYS_OUTSIDE = forward_launcher("keys outside", "loop_order", "keys_outside_fwd")
ONE_PROGRAM = forward_launcher(
    "queries outside", "loop_order", "queries_outside_fwd", _one_program
)
A_PROGRAM_A_BLOCK = forward_launcher("a program a block", "loop_order", "queries_outside_fwd")
NO_DESCRIPTORS = forward_launcher("triton, no TMA", "forward_tuned", "tuned_fwd", _no_descriptors)
ONE_SPLIT = Implementation(
    "teaching, 1 split", decode_call, {"backend": "teaching", "num_splits": 1}, ours=True
)
ADDRESSED = backward_launcher("triton, pointers", "backward_tuned", "tuned_bwd", _addressed)
MASKED = backward_launcher("masks everywhere", "backward_tuned", "tuned_bwd", _masked)

RUNGS = (
    Rung(CHAPTER, "the chapter's kernel, 32 queries by 32 keys"),
    Rung(TEACHING, "the same kernel, 128 queries by 64 keys, 8 warps"),
    Rung(POINTERS, "base 2, masks only at the edges, longest rows first"),
    Rung(TRITON, "tensor descriptors, and the measured configuration"),
    Rung(SERIAL, "Gluon: a producer warp, two consumer warpgroups"),
    Rung(HOPPER, "the softmax runs beside the next matmul"),
)
IDEA_RUNGS = (
    Rung(KEYS_OUTSIDE, "FlashAttention: o, m and l go to memory and back for every tile of keys"),
    Rung(ONE_PROGRAM, "FlashAttention-2: the loops exchanged, o is written once"),
    Rung(A_PROGRAM_A_BLOCK, "FlashAttention-2: parallel over the sequence, not only over heads"),
    Rung(NO_DESCRIPTORS, "FlashAttention-2: less work outside the matmuls"),
    Rung(TRITON, "FlashAttention-3: tiles fetched by the copy engine (TMA)"),
    Rung(SERIAL, "FlashAttention-3: warps that load, warps that compute"),
    Rung(HOPPER, "FlashAttention-3: the softmax runs beside the next matmul"),
)
BACKWARD_RUNGS = (
    Rung(BACKWARD_TEACHING, "two kernels, seven products, small tiles, the forward's words"),
    Rung(ADDRESSED, "base 2, larger tiles, p and ds stay in registers"),
    Rung(MASKED, "tensor descriptors instead of addresses"),
    Rung(BACKWARD_TRITON, "masks only in tiles that an edge crosses"),
    Rung(BACKWARD_HOPPER, "Gluon: one kernel, five products, dq added in memory"),
)
DECODE_RUNGS = (
    Rung(ONE_SPLIT, "lesson 4's kernel, one program a KV head"),
    Rung(DECODE_TEACHING, "split over the whole GPU, then merged"),
    Rung(DECODE, "loads run ahead, measured splits, an early merge"),
)
PREFILLS = tuple(prefill(128, 16 * 1024, causal=causal) for causal in (True, False))
BACKWARDS = tuple(backward(prefill(128, 8 * 1024, causal=causal)) for causal in (True, False))
DECODES = tuple(decode(batch, s * 1024) for batch, s in ((1, 8), (1, 64), (16, 8)))
LADDERS = {
    "forward": Ladder(RUNGS, PREFILLS),
    "ideas": Ladder(IDEA_RUNGS, PREFILLS),
    "backward": Ladder(BACKWARD_RUNGS, BACKWARDS, BACKWARD_CUDNN),
    "decode": Ladder(DECODE_RUNGS, DECODES),
}


def contestants(*ladders: Ladder) -> tuple[Implementation, ...]:
    """The rungs from below, each once, and the peer to hold them against."""
    everyone = [one.implementation for ladder in ladders for one in ladder.rungs]
    everyone += [ladder.peer for ladder in ladders]
    return tuple({one.name: one for one in everyone}.values())


def climbs() -> Iterator[tuple[tuple[Shape, ...], tuple[Implementation, ...]]]:
    """Shapes and all that is timed on them: ladders on the same shapes share their rungs."""
    for shapes in dict.fromkeys(ladder.shapes for ladder in LADDERS.values()):
        yield shapes, contestants(*(one for one in LADDERS.values() if one.shapes == shapes))


def table(rungs: Sequence[Rung], shapes: Sequence[Shape], rows: Sequence[Row]) -> str:
    """The rungs as a Markdown table: speed on each shape, and the share of cuDNN's on the last.

    Raises ValueError where a rung has no row.
    """
    unit = "GB/s" if shapes[0].decodes else "TFLOP/s"
    heads = ["rung", "what is new", *(f"{_title(shape)}, {unit}" for shape in shapes)]
    heads += [f"of cuDNN's, {_title(shape)}" for shape in shapes]
    lines = [heads, ["---", "---", *["---:"] * (2 * len(shapes))]]
    for rung in rungs:
        lines.append([rung.implementation.name, rung.new, *_cells(rung, shapes, rows)])
    lines.append(["cuDNN", "PyTorch's fastest, for comparison", *_cells(None, shapes, rows)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title(shape: Shape) -> str:
    if shape.decodes:
        return f"B{shape.batch} S{short(shape.s)}"
    return "causal" if shape.causal else "no mask"


def _cells(rung: Rung | None, shapes: Sequence[Shape], rows: Sequence[Row]) -> list[str]:
    """Speeds, then shares of cuDNN's speed; an em dash where the row was skipped."""
    name = rung.implementation.name if rung else CUDNN.name
    own = [row_of(name, shape, rows) for shape in shapes]
    peers = [row_of(CUDNN.name, shape, rows) for shape in shapes]
    speeds = [speed(row) for row in own]
    return speeds + [
        f"{peer.ms / row.ms:.2f}" if row.status == peer.status == "ok" else "—"
        for row, peer in zip(own, peers, strict=True)
    ]


def speed(row: Row) -> str:
    """GB/s of decode, TFLOP/s of the others; an em dash where the row was skipped."""
    if row.status != "ok":
        return "—"
    return f"{row.gbs if row.shape.decodes else row.tflops:.0f}"


def row_of(name: str, shape: Shape, rows: Sequence[Row]) -> Row:
    """The row of one implementation on one shape. Raises ValueError if there is none."""
    for row in rows:
        if (row.implementation, row.shape, row.measure) == (name, shape, SEPARATE):
            return row
    raise ValueError(f"no row of {name} on {shape.label}: run flashkit bench --ladder again")
