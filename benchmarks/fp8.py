"""FP8 attention on one H200: what it errs beside bfloat16, and what it gains.

    python benchmarks/fp8.py benchmarks/results/2026-12-01-h200-fp8.csv

Needs a Hopper GPU. Two tables in one file: errors against float64, as root mean squares, of
normal inputs and of the paper's test of outliers; and times, medians of interleaved runs behind a
flushed cache, in CUDA graphs. The first line is a comment with date, GPU, versions and command.
Source: Shah et al., FlashAttention-3 (2024), section 4.3.
"""

import csv
import datetime
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashkit
from flashkit.bench.gpu import Gpu
from flashkit.bench.timing import sample, times
from flashkit.contracts import check_qkv
from flashkit.fp8 import BLOCK, fp8_attention, hadamard, quantize, random_signs, round_inputs
from flashkit.kernels import fp8
from flashkit.kernels.quantize import Quantized

FIELDS = ("table", "inputs", "D", "T", "causal", "method", "rmse", "relative error")
FIELDS += ("ms", "low", "high", "TFLOP/s", "to cudnn bf16")
ROUNDS = 9
TOKENS, WIDTH = 16384, 2048  # of a batch, and all its heads together
LENGTHS = (4096, 8192, 16384)
METHODS = {  # name: (rows that share a scale, rotated)
    "fp8, one scale a tensor": (None, False),
    "fp8, a scale a block": (BLOCK, False),
    "fp8, one scale a tensor, rotated": (None, True),
    "fp8, a scale a block, rotated": (BLOCK, True),
}


def draw(shape, outliers: bool) -> list[torch.Tensor]:
    """bfloat16 q, k, v of N(0, 1), with outliers plus N(0, 100) in 1 of 1000 entries."""
    result = []
    for _ in range(3):
        x = torch.randn(shape, device="cuda")
        if outliers:
            rare = torch.rand(shape, device="cuda") < 1e-3
            x += rare * torch.randn(shape, device="cuda") * 10
        result.append(x.bfloat16())
    return result


def exact(q, k, v) -> torch.Tensor:
    """Attention without a mask in float64, a head at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for i, j in ((i, j) for i in range(q.shape[0]) for j in range(q.shape[1])):
        scores = q[i, j].double() @ k[i, j].double().mT / math.sqrt(q.shape[-1])
        o[i, j] = torch.softmax(scores, -1) @ v[i, j].double()
    return o


def quantized(q, k, v, block: int | None, rotate: bool) -> Quantized:
    """What `round_inputs` makes, by PyTorch's `quantize`: with one scale, or one a block."""
    q, k, v = (x.float() for x in (q, k, v))
    if rotate:
        q, k = (hadamard(x, random_signs(x.shape[-1])) for x in (q, k))
    pairs = []
    for x in (q, k, v):
        y, scales = quantize(x, block)
        pairs.append((y, scales.expand(*x.shape[:2], -(-x.shape[2] // BLOCK)).contiguous()))
    places = torch.arange(v.shape[2], device=v.device)
    keys = places // 16 * 16 + places % 4 // 2 * 8 + places % 16 // 4 * 2 + places % 2
    turned = pairs[2][0].view(torch.uint8)[:, :, keys].mT.contiguous()
    return Quantized(*pairs[:2], (turned.view(torch.float8_e4m3fn), pairs[2][1]))


def attend(q, k, v, parts: Quantized, causal: bool) -> torch.Tensor:
    """The kernel alone, on what is quantized already."""
    options = {"offset": 0, "causal": causal, "window": None, "scale": q.shape[-1] ** -0.5}
    return fp8.fp8_fwd(q, k, v, parts, check_qkv(q, k, v), **options)[0]


def cudnn(q, k, v, causal: bool) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def error_rows():
    """B 2, 8 heads, T 4096, D 128, no mask."""
    for name in ("normal", "outliers"):
        inputs = draw((2, 8, 4096, 128), name == "outliers")
        want = exact(*inputs)
        outputs = {"bf16": flashkit.flash_attention(*inputs, causal=False)}
        for method, how in METHODS.items():
            outputs[method] = attend(*inputs, quantized(*inputs, *how), False)
        for method, o in outputs.items():
            rmse = (o.double() - want).pow(2).mean().sqrt()
            relative = rmse / want.pow(2).mean().sqrt()
            yield "error", name, 128, 4096, False, method, f"{rmse:.3g}", f"{relative:.3g}"


def contestants(q, k, v, causal: bool) -> dict:
    """Ours in 8 bits, with rounding and without; ours and cuDNN's in 16."""
    parts = round_inputs(q, k, v, True)
    return {
        "fp8, kernel": lambda: attend(q, k, v, parts, causal),
        "fp8, rounding and kernel": lambda: fp8_attention(q, k, v, causal=causal),
        "bf16": lambda: flashkit.flash_attention(q, k, v, causal=causal),
        "bf16, cudnn": lambda: cudnn(q, k, v, causal),
    }


def check(runs: dict) -> None:
    """Every captured launch writes, over NaN, what cuDNN writes up to the rounding to 8 bits."""
    for i in range(2):
        for pair in runs.values():
            pair[i].results[0].fill_(math.nan)
            pair[i].replay()
        outputs = {name: pair[i].results[0] for name, pair in runs.items()}
        want = outputs["bf16, cudnn"].float()
        for name, o in outputs.items():
            error = (o.float() - want).norm() / want.norm()
            assert error < 0.08, f"{name} is off by {error:.3f}"


def speed_rows(gpu: Gpu):
    """Each shape on two sets of inputs."""
    for d in (64, 128, 256):
        for t in LENGTHS:
            for causal in (True, False):
                shape = (TOKENS // t, WIDTH // d, t, d)
                sets = [contestants(*draw(shape, False), causal) for _ in range(2)]
                runs = {name: [gpu.capture([s[name]]) for s in sets] for name in sets[0]}
                check(runs)
                sample(runs, 2, gpu, gpu.flush)
                columns = sample(runs, ROUNDS, gpu, gpu.flush)
                flops = 4 * math.prod(shape) * t * (0.5 if causal else 1)
                rows = {name: times(column) for name, column in columns.items()}
                for name, ms in rows.items():
                    ratio = rows["bf16, cudnn"].median / ms.median
                    numbers = (*ms, flops / ms.median / 1e9, ratio)
                    cells = (f"{x:.4g}" for x in numbers)
                    yield "speed", "normal", d, t, causal, name, "", "", *cells
                gpu.release()


def main(path: str) -> None:
    """Write both tables to path, and print them."""
    torch.manual_seed(0)
    where = f"{datetime.date.today()}, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    where += f", triton {triton.__version__}: python benchmarks/fp8.py {path}"
    rows = [*error_rows(), *speed_rows(Gpu())]
    with Path(path).open("w", newline="") as file:
        file.write(f"# {where}\n")
        csv.writer(file, lineterminator="\n").writerows([FIELDS, *rows])
    print(where, *(" ".join(map(str, row)) for row in rows), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
