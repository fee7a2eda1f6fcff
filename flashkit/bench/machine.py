"""Where it was measured: versions, and the rates that nothing on this machine passes by much."""

import datetime
import importlib.metadata
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashkit.bench.timing import Run, sample, times

MATMUL = {"bfloat16": 8192, "float32": 4096}
"""Side of the square product that stands for the arithmetic of a dtype."""
COPY_BYTES = 4 * 2**30
ROUNDS = 20


@dataclass(frozen=True)
class Machine:
    """One line of provenance."""

    date: str
    gpu: str
    driver: str
    versions: str
    command: str

    def line(self) -> str:
        """The first comment of the file."""
        return f"{self.date}, {self.gpu}, driver {self.driver}, {self.versions}: {self.command}"


def here(command: str) -> Machine:
    """This machine, today."""
    versions = [f"{name} {_version(name)}" for name in ("torch", "triton")]
    versions.append(f"cudnn {torch.backends.cudnn.version()}")
    date = str(datetime.date.today())
    return Machine(date, torch.cuda.get_device_name(), _driver(), ", ".join(versions), command)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _driver() -> str:
    question = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.split("\n")[0].strip() or "unknown"


@dataclass(frozen=True)
class Ceilings:
    """Measured rates: TFLOP/s of a matmul a dtype, GB/s of a copy, read and written bytes."""

    matmul: float
    matmul_float32: float
    copy_gbs: float

    def tflops(self, dtype: str) -> float:
        """What arithmetic in this dtype reaches at most."""
        return self.matmul_float32 if dtype == "float32" else self.matmul

    def line(self) -> str:
        """The second comment of the file; `parse` reads it."""
        return (
            f"ceilings of the same run: matmul bf16 {self.matmul:.1f} TFLOP/s, "
            f"matmul fp32 {self.matmul_float32:.1f} TFLOP/s, copy {self.copy_gbs:.0f} GB/s"
        )

    @classmethod
    def parse(cls, line: str) -> "Ceilings":
        """The ceilings that a line holds; ValueError if it is not such a line."""
        found = re.findall(r"([\d.]+) (?:TFLOP|GB)/s", line)
        if len(found) != 3:
            raise ValueError(f"a line of ceilings has three rates, got {line!r}")
        return cls(*(float(number) for number in found))


def ceilings(gpu) -> Ceilings:
    """Measure them on normal random numbers: zeros would run a tenth faster."""
    rates = [_matmul_rate(gpu, dtype, n) for dtype, n in MATMUL.items()]
    source = torch.empty(COPY_BYTES // 2, dtype=torch.bfloat16, device=gpu.device).normal_()
    target = torch.empty_like(source)
    milliseconds = _median(gpu, lambda: target.copy_(source))
    return Ceilings(*rates, 2 * source.nbytes / milliseconds / 1e6)


def _matmul_rate(gpu, dtype: str, n: int) -> float:
    kind = {"dtype": getattr(torch, dtype), "device": gpu.device}
    a, b = (torch.randn(n, n, **kind) for _ in range(2))
    out = torch.empty(n, n, **kind)
    return 2 * n**3 / _median(gpu, lambda: torch.matmul(a, b, out=out)) / 1e9


def _median(gpu, call: Callable[[], object]) -> float:
    """Milliseconds of a call that is long enough to need no graph."""
    runs = {"": [Run(call, 1, [])]}
    sample(runs, 3, gpu, gpu.flush)  # warm-up: libraries load, the clock rises
    return times(sample(runs, ROUNDS, gpu, gpu.flush)[""]).median
