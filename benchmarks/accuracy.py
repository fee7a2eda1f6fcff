"""Errors of the kernels against float64, beside what eager attention errs in the same dtype.

    python benchmarks/accuracy.py benchmarks/results/2026-11-29-h200-accuracy.csv

Needs a CUDA device. The first line of the file is a comment with date, GPU, versions and command.
"""

import csv
import datetime
import math
import sys
from pathlib import Path

import torch
import triton

import flashkit
from flashkit.masks import visible

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIMS = (16, 32, 40, 64, 80, 96, 128, 192, 256)
# name: (query heads, KV heads, T, S, window)
SHAPES = {
    "prefill": (3, 1, 200, 200, None),
    "chunked prefill": (8, 1, 70, 333, None),
    "chunked prefill, window 50": (8, 8, 70, 333, 50),
    "decode": (8, 1, 1, 1031, None),
}
FIELDS = ("call", "shape", "dtype", "D", "error", "eager error", "allowed", "lse error")


def eager(q, k, v, window):
    """Attention with P stored in the dtype of the inputs and everything else in float32."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).float() for x in (k, v))
    t, s = q.shape[2], k.shape[2]
    keys = torch.arange(s, device=q.device)[None]
    seen = visible(keys[:, s - t :], keys, window)
    scores = (q.float() @ k.mT / math.sqrt(q.shape[3])).masked_fill(~seen, -math.inf)
    return (torch.softmax(scores, -1).to(q.dtype).float() @ v).to(q.dtype)


def rows():
    """One row for each call, shape, dtype and head dim."""
    for name, (heads, kv_heads, t, s, window) in SHAPES.items():
        for dtype in DTYPES:
            for d in HEAD_DIMS:
                sizes = ((heads, t), (kv_heads, s), (kv_heads, s))
                q, k, v = (torch.randn(2, h, n, d, dtype=dtype, device="cuda") for h, n in sizes)
                exact = (x.double() for x in (q, k, v))
                want = flashkit.causal_attention(*exact, window=window, return_lse=True)
                fair = _error(eager(q, k, v, window), want[0])
                # float32 is held to 1e-5; the others to twice the unavoidable and one rounding
                rounding = torch.finfo(dtype).eps * want[0].abs().max().item()
                allowed = 1e-5 if dtype == torch.float32 else 2 * (fair + rounding)
                for call in ("flash_attention", "flash_decode")[: 2 if t == 1 else 1]:
                    got = getattr(flashkit, call)(q, k, v, window=window, return_lse=True)
                    errors = [_error(x, y) for x, y in zip(got, want, strict=True)]
                    numbers = (errors[0], fair, allowed, errors[1])
                    yield call, name, str(dtype)[6:], d, *(f"{x:.3g}" for x in numbers)


def _error(got, want) -> float:
    return (got.double() - want).abs().max().item()


def main(path: str) -> int:
    """Write the rows to path; 1 if any error is more than allowed."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    table = list(rows())
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    where = f"{datetime.date.today()}, {torch.cuda.get_device_name()}, {versions}"
    with Path(path).open("w", newline="") as file:
        file.write(f"# {where}: python benchmarks/accuracy.py {path}\n")
        csv.writer(file).writerows([FIELDS, *table])
    worse = [row for row in table if not float(row[4]) <= float(row[6])]
    print(f"{where}: {len(table)} rows, {len(worse)} worse than allowed", *worse, sep="\n")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
