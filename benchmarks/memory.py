"""How much memory a training step needs over T: attention through a stored P, and through lse.

    python benchmarks/memory.py benchmarks/results/2026-12-01-h200-memory.csv

One sequence, 16 heads, D 128, bfloat16, causal. Needs a CUDA device. The first line of the file is
a comment with date, GPU, versions and command.
"""

import csv
import datetime
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashkit import cost, flash_attention
from flashkit.memory import training_bytes

HEADS, D = 16, 128
LENGTHS = tuple(1024 * 2**i for i in range(7))
FIELDS = ("T", "stored P", "cuDNN", "triton", "hopper", "o, lse, dq, dk, dv alone")


def sdpa(q, k, v, *, backend):
    """PyTorch's attention; math is the one that stores P."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CALLS = (
    partial(sdpa, backend=SDPBackend.MATH),
    partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION),
    partial(flash_attention, backend="triton"),
    partial(flash_attention, backend="hopper"),
)


def measured(attend, t: int) -> str:
    """MiB of a step at T = t, or why there is none."""
    inputs = [torch.randn(1, HEADS, t, D, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    try:
        return f"{training_bytes(attend, *inputs) / 2**20:.0f}"
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    finally:
        torch.cuda.empty_cache()


def main(path: str) -> None:
    """Write one line a length, one column a call."""
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    where = f"{datetime.date.today()}, {torch.cuda.get_device_name()}, {versions}"
    with Path(path).open("w", newline="") as file:
        file.write(f"# {where}: python benchmarks/memory.py\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(FIELDS)
        for t in LENGTHS:
            # dq, dk and dv are as large as q, k and v, which with o and lse are what is kept
            least = cost.saved_bytes(t, t, D, q_heads=HEADS, kv_heads=HEADS)
            table.writerow([t, *(measured(call, t) for call in CALLS), f"{least / 2**20:.0f}"])
            file.flush()
    print(Path(path).read_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
