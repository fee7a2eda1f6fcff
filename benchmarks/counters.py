"""Hardware counters of the forward rungs, read by Nsight Compute (ncu), as one table.

    python benchmarks/counters.py benchmarks/results/2026-11-29-h200-counters.csv

One launch of each rung on the ladder's causal shape; needs a CUDA device and ncu. The first line
of the file is a comment with date, GPU, versions and command.
"""

import csv
import datetime
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton

from flashkit.bench.implementations import reason
from flashkit.bench.ladder import LADDERS, PREFILLS, contestants
from flashkit.bench.runner import inputs

# ncu's name: (what the table calls it, factor, digits)
COUNTERS = {
    "gpu__time_duration.sum": ("time, ms (clocks as the profiler finds them)", 1e-6, 2),
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": (
        "tensor cores busy, % of cycles", 1, 0,
    ),
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": (
        "special functions (exp2) busy, % of cycles", 1, 0,
    ),
    "sm__inst_issued.avg.pct_of_peak_sustained_active": ("issue slots used, %", 1, 0),
    "sm__warps_active.avg.per_cycle_active": ("warps on an SM", 1, 1),
    "launch__registers_per_thread": ("registers a thread", 1, 0),
    "launch__shared_mem_per_block": ("shared memory a program, KB", 1e-3, 0),
    "smsp__inst_executed.sum": ("instructions, millions", 1e-6, 0),
    "lts__t_bytes.sum.per_second": ("L2 traffic, TB/s", 1e-12, 2),
    "dram__bytes.sum": ("memory traffic, GB", 1e-9, 2),
}  # fmt: skip


def launches() -> None:
    """Run each rung once between the profiler's marks, after a run that compiles it."""
    (x,) = inputs(PREFILLS[0], 1, "cuda")
    for implementation in contestants(LADDERS["forward"]):
        try:
            call = implementation.call(PREFILLS[0])
            call(x)
        except Exception as fault:
            print(f"{implementation.name}: {reason(fault)}", file=sys.stderr)
            continue
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        call(x)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        print(implementation.name, flush=True)


def profiled() -> tuple[list[str], list[dict[str, float]]]:
    """The names of the rungs that ran, and the counters of their kernels, in the same order."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("ncu, Nsight Compute, is not on the PATH")
    with tempfile.NamedTemporaryFile() as log:
        command = [
            ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv",
            "--print-units", "base", "--log-file", log.name, "--metrics", ",".join(COUNTERS),
            sys.executable, __file__, "--launches",
        ]  # fmt: skip
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        lines = [line for line in Path(log.name).read_text().splitlines() if line[:1] == '"']
    kernels: dict[str, dict[str, float]] = {}
    for record in csv.DictReader(lines):
        value = record["Metric Value"].replace(",", "")
        if value.replace(".", "", 1).isdigit():  # what ncu does not know is "n/a"
            kernels.setdefault(record["ID"], {})[record["Metric Name"]] = float(value)
    return out.split("\n")[:-1], list(kernels.values())


def main(path: str) -> None:
    """Write one line a counter, one column a rung."""
    names, kernels = profiled()
    if len(kernels) != len(names):
        raise SystemExit(f"{len(names)} rungs but {len(kernels)} kernels: each must launch one")
    where = f"{datetime.date.today()}, {torch.cuda.get_device_name()}"
    where += f", torch {torch.__version__}, triton {triton.__version__}"
    with Path(path).open("w", newline="") as file:
        file.write(f"# {where}: python benchmarks/counters.py\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["counter", *names])
        for name, (title, factor, digits) in COUNTERS.items():
            values = [kernel.get(name) for kernel in kernels]
            cells = ["—" if v is None else f"{v * factor:.{digits}f}" for v in values]
            table.writerow([title, *cells])
    print(Path(path).read_text())


if __name__ == "__main__":
    launches() if sys.argv[1:] == ["--launches"] else main(*sys.argv[1:])
