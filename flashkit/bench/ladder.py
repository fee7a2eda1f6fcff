"""From the chapter's kernel to the fastest, one technique at a time.

A rung is the one below it with one thing more. The page docs/ladder.md holds the table that
`table` makes of the rows.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashkit.bench.implementations import (
    CHAPTER,
    CUDNN,
    DECODE,
    DECODE_TEACHING,
    HOPPER,
    TEACHING,
    TRITON,
    Call,
    Implementation,
    Inputs,
    decode_call,
)
from flashkit.bench.rows import SEPARATE, Row
from flashkit.bench.shapes import Shape, decode, prefill, short
from flashkit.contracts import check_kernel_inputs


def _launched(shape: Shape, *, module: str, launcher: str, config: Callable) -> Call:
    """A launcher with settings that the public call does not offer: `config(shape)`."""
    fwd = getattr(importlib.import_module(f"flashkit.kernels.{module}"), launcher)
    problem = {"offset": shape.s - shape.t, "causal": shape.causal, "window": shape.window}
    problem |= {"scale": shape.d**-0.5, "config": config(shape)}

    def call(x: Inputs):
        return fwd(x.q, x.k, x.v, check_kernel_inputs(x.q, x.k, x.v), **problem)[0]

    return call


def _pointers(shape: Shape):
    from flashkit.kernels.forward_config import Config

    return Config(block_m=128, block_n=64, warps=8, stages=2, descriptors=False)


def _serial(shape: Shape):
    from flashkit.kernels.hopper import CONFIGS

    return CONFIGS[shape.d]._replace(overlap=False)


@dataclass(frozen=True)
class Rung:
    """An implementation, and what it has that the one before has not."""

    implementation: Implementation
    new: str


def _rung(name: str, module: str, launcher: str, config: Callable) -> Implementation:
    options = {"module": module, "launcher": launcher, "config": config}
    return Implementation(name, _launched, options, ours=True)


POINTERS = _rung("triton, pointers", "forward_tuned", "tuned_fwd", _pointers)
SERIAL = _rung("Gluon, no overlap", "hopper", "hopper_fwd", _serial)
ONE_SPLIT = Implementation(
    "teaching, 1 split", decode_call, {"backend": "teaching", "num_splits": 1}, ours=True
)

RUNGS = (
    Rung(CHAPTER, "the chapter's kernel, 32 queries by 32 keys"),
    Rung(TEACHING, "the same kernel, 128 queries by 64 keys, 8 warps"),
    Rung(POINTERS, "base 2, masks only at the edges, longest rows first"),
    Rung(TRITON, "tensor descriptors, and the measured configuration"),
    Rung(SERIAL, "Gluon: a producer warp, two consumer warpgroups"),
    Rung(HOPPER, "the softmax runs beside the next matmul"),
)
DECODE_RUNGS = (
    Rung(ONE_SPLIT, "lesson 4's kernel, one program a KV head"),
    Rung(DECODE_TEACHING, "split over the whole GPU, then merged"),
    Rung(DECODE, "loads run ahead, measured splits, an early merge"),
)
PREFILLS = tuple(prefill(128, 16 * 1024, causal=causal) for causal in (True, False))
DECODES = tuple(decode(batch, s * 1024) for batch, s in ((1, 8), (1, 64), (16, 8)))
LADDERS = ((RUNGS, PREFILLS), (DECODE_RUNGS, DECODES))


def contestants(rungs: Sequence[Rung]) -> tuple[Implementation, ...]:
    """The rungs from below, and cuDNN to hold them against."""
    return (*(rung.implementation for rung in rungs), CUDNN)


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
    own = [_row(name, shape, rows) for shape in shapes]
    peers = [_row(CUDNN.name, shape, rows) for shape in shapes]
    speeds = [_speed(row) for row in own]
    return speeds + [
        f"{peer.ms / row.ms:.2f}" if row.status == peer.status == "ok" else "—"
        for row, peer in zip(own, peers, strict=True)
    ]


def _speed(row: Row) -> str:
    if row.status != "ok":
        return "—"
    return f"{row.gbs if row.shape.decodes else row.tflops:.0f}"


def _row(name: str, shape: Shape, rows: Sequence[Row]) -> Row:
    for row in rows:
        if (row.implementation, row.shape, row.measure) == (name, shape, SEPARATE):
            return row
    raise ValueError(f"no row of {name} on {shape.label}: run flashkit bench --ladder again")
