"""FlashAttention's forward for one head, in CUDA C++, built by nvcc for the GPU that is here."""

import ctypes
import math

import torch
from torch import Tensor

from flashkit.contracts import (
    MAX_HEAD_DIM,
    check_offset,
    check_positive,
    check_scale,
    require,
)
from flashkit.native.build import load
from flashkit.online import State

MOST_KEYS = 32  # of a tile: a lane of a warp each


class _Problem(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse")),
        *((name, ctypes.c_int64) for name in ("T", "S", "offset")),
        *((name, ctypes.c_int) for name in ("causal", "tile")),
        ("scale", ctypes.c_float),
    ]


class _Trace(ctypes.Structure):
    _fields_ = [("row", ctypes.c_int64), *((name, ctypes.c_void_p) for name in "mla")]


def cuda_attention(
    q: Tensor, k: Tensor, v: Tensor, query_offset: int | None = None, *,
    causal: bool = True, scale: float | None = None, tile: int = MOST_KEYS,
    trace_row: int | None = None,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, State]:  # fmt: skip
    """Attention of one head, q (T, D) and k, v (S, D) in float32 on a GPU: o (T, D) and lse (T,).

    Row i stands at query_offset + i, by default S - T + i, and sees the keys up to there, or all
    if not causal. A row that sees no key gives 0 and -inf. Tiles have 1 to 32 keys, D is at most
    256. With trace_row, the state of that row after each tile it sees comes third: m and l
    (tiles,), a (tiles, D). Raises ValueError for anything else, BuildError without nvcc.
    """
    _check(q, k, v, tile, trace_row)
    check_scale(scale)
    (t, d), s = q.shape, len(k)
    offset = s - t if query_offset is None else query_offset
    check_offset(offset)
    offset = min(max(offset, -t), s)  # none is seen from below, all from above
    q, k, v = (x.detach().contiguous() for x in (q, k, v))
    o, lse = torch.empty_like(q), torch.empty(t, device=q.device)
    trace = _no_trace_yet(q, offset, s, causal, tile, trace_row)
    problem = _Problem(
        *map(Tensor.data_ptr, (q, k, v, o, lse)),
        t, s, offset, causal, tile, 1 / math.sqrt(d) if scale is None else scale,
    )  # fmt: skip
    if t > 0:
        row = -1 if trace_row is None else trace_row
        _launch(problem, _Trace(row, *map(Tensor.data_ptr, trace)), d, q.device)
    return (o, lse) if trace_row is None else (o, lse, State(*trace))


def _no_trace_yet(q: Tensor, offset: int, s: int, causal: bool, tile: int, row: int | None):
    """Room for m, l and a after each tile that the row sees; none where no row is asked for."""
    if row is None:
        return ()
    keys = min(max(offset + row + 1, 0), s) if causal else s
    tiles = -(-keys // tile)
    shapes = (tiles,), (tiles,), (tiles, q.shape[1])
    return tuple(torch.empty(shape, device=q.device) for shape in shapes)


def _launch(problem: _Problem, trace: _Trace, d: int, device: torch.device) -> None:
    major, minor = torch.cuda.get_device_capability(device)
    forward = load("cuda", f"-DHEAD_DIM={d}", f"-arch=sm_{major}{minor}").flash_forward
    with torch.cuda.device(device):
        start(forward, problem, trace, device.index, torch.cuda.current_stream().cuda_stream)


def start(forward, problem: _Problem, trace: _Trace, device: int, stream: int) -> None:
    """Call flash_forward of flash.cu. Raises RuntimeError with what CUDA has against it."""
    forward.argtypes = [_Problem, _Trace, ctypes.c_int, ctypes.c_void_p]
    forward.restype = ctypes.c_char_p
    if fault := forward(problem, trace, device, stream):
        raise RuntimeError(f"the CUDA kernel cannot be started: {fault.decode()}")


def _check(q: Tensor, k: Tensor, v: Tensor, tile: int, trace_row: int | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(isinstance(x, Tensor), f"{name} must be a torch.Tensor, got {type(x).__name__}")
        ready = x.dtype == torch.float32 and x.is_cuda and x.device == q.device
        require(ready, f"{name} must be float32 on one GPU, got {x.dtype} on {x.device}")
    require(
        q.ndim == 2 and 1 <= q.shape[1] <= MAX_HEAD_DIM,
        f"q must have shape (T, D), D from 1 to {MAX_HEAD_DIM}, got {tuple(q.shape)}",
    )
    for name, x in (("k", k), ("v", v)):
        wanted = f"(S, {q.shape[1]})" if x is k else f"({len(k)}, {q.shape[1]})"
        require(
            x.ndim == 2 and x.shape[1] == q.shape[1] and len(x) == len(k),
            f"{name} must have shape {wanted}, got {tuple(x.shape)}",
        )
    check_positive("tile", tile)
    require(tile <= MOST_KEYS, f"tile must be at most {MOST_KEYS}, got {tile}")
    inside = trace_row is None or 0 <= trace_row < len(q)
    require(inside, f"trace_row must be from 0 to T - 1 = {len(q) - 1}, got {trace_row!r}")
