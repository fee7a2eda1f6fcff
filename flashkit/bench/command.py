"""The command `flashkit bench`: run a mode, keep the file, print the tables."""

import argparse
import json
import re
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from flashkit import runtime
from flashkit.bench import ahead
from flashkit.bench.gpu import Gpu
from flashkit.bench.machine import Ceilings, Machine, ceilings, here
from flashkit.bench.modes import MODES, PATHS, Mode
from flashkit.bench.progress import Progress
from flashkit.bench.report import rendered
from flashkit.bench.rows import Row, compared, written
from flashkit.bench.runner import run, steps
from flashkit.bench.targets import Verdict, judged

FOLDER = Path("benchmarks/results")
NEEDED = (
    "flashkit bench needs an NVIDIA GPU that PyTorch can use: {why}. Times on a CPU would say "
    "nothing about the kernels, so there is no such mode."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Time the kernels beside PyTorch's attention on this GPU, check every timed output, keep "
        "the rows in a CSV file and print them with the targets. Exit code: 0, or 1 if a timed "
        "output of ours was wrong, 2 if it cannot run here."
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--quick", dest="mode", action="store_const", const="quick", default="full",
        help="the shapes that the targets speak of, in under five minutes on an H200",
    )  # fmt: skip
    mode.add_argument(
        "--ladder", dest="mode", action="store_const", const="ladder",
        help="one shape, from the chapter's kernel to the fastest",
    )  # fmt: skip
    parser.add_argument("--only", choices=PATHS, help="only this table")
    parser.add_argument(
        "--to", type=Path, metavar="FILE",
        help=f"where the rows go (default: {FOLDER}/DATE-GPU-MODE.csv)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def main(options: argparse.Namespace) -> int:
    """Run the bench as the options say; returns the exit code."""
    fault = _missing()
    mode = MODES[options.mode].only(options.only)
    if not fault and not mode.groups:
        fault = f"the mode {options.mode} has no shapes of --only {options.only}"
    machine = None if fault else here(_command(options))
    target = None if fault else options.to or default_path(machine, options.mode, options.only)
    fault = fault or _unwritable(target)
    if fault:
        print(fault, file=sys.stderr)
        return 2
    gpu = Gpu()
    rates = ceilings(gpu)
    rows, end = _collect(mode, gpu)
    rows = compared(rows, rates)
    target.write_text(written(machine, rates, rows))
    verdicts = [] if options.mode == "ladder" else judged(rows, rates)
    print(_as_json(machine, rates, rows, verdicts) if options.json else
          rendered(machine, rates, rows, verdicts))  # fmt: skip
    print(f"{len(rows)} rows in {target}", file=sys.stderr)
    if end:
        print(end, file=sys.stderr)
        return 130 if end.startswith("interrupted") else 1
    return int(any(row.ours and row.status == "wrong" for row in rows))


def _missing() -> str:
    """Why this machine cannot run it, or ""."""
    if not torch.cuda.is_available():
        return NEEDED.format(why="it sees none here (flashkit doctor says more)")
    if runtime.interpreting():
        return NEEDED.format(why="TRITON_INTERPRET is set, so no kernel is compiled; unset it")
    return ""


def default_path(machine: Machine, mode: str, only: str | None) -> Path:
    """benchmarks/results/2026-11-29-h200-quick.csv, with the part if it is only a part."""
    gpu = re.sub(r"[^a-z0-9]+", "-", machine.gpu.lower().replace("nvidia", "")).strip("-")
    part = f"-{only}" if only else ""
    return FOLDER / f"{machine.date}-{gpu}-{mode}{part}.csv"


def _unwritable(target: Path) -> str:
    """Why the file cannot be written, or "": better known before the run than after."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a"):
            pass
    except OSError as error:
        return f"cannot write {target}: {error.strerror or error}"
    return ""


def _command(options: argparse.Namespace) -> str:
    words = ["flashkit", "bench"]
    words += [f"--{options.mode}"] if options.mode != "full" else []
    words += ["--only", options.only] if options.only else []
    return shlex.join(words)


def _collect(mode: Mode, gpu) -> tuple[list[Row], str]:
    """The rows, and why the run came to an early end, or ""."""
    rows: list[Row] = []
    end = ""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit, say
    try:
        _compile(mode, gpu.device)
        progress = Progress(steps(mode), sys.stderr, "rows")
        for batch in run(mode, gpu):
            rows += batch
            progress.step(f"{batch[0].shape.path} {batch[0].shape.label}", len(batch))
        progress.close()
    except KeyboardInterrupt:
        end = "interrupted: these are the rows so far"
    except torch.AcceleratorError as fault:  # after it the device does nothing any more
        end = f"the GPU stopped: {str(fault).splitlines()[0]}; these are the rows so far"
    finally:
        signal.signal(signal.SIGTERM, before)
    return rows, end


def _compile(mode: Mode, device: str) -> None:
    workers = ahead.pool()
    progress = Progress(len(ahead.tasks(mode)), sys.stderr, "compiled")
    try:
        for name in ahead.compiled(mode, workers, device):
            progress.step(name)
    except BaseException:
        workers.shutdown(wait=False, cancel_futures=True)
        raise
    workers.shutdown()  # nobody else may be on the GPU when the clock runs
    progress.close()


def _as_json(machine: Machine, rates: Ceilings, rows: list[Row], verdicts: list[Verdict]) -> str:
    report = {
        "machine": asdict(machine),
        "ceilings": asdict(rates),
        "rows": [asdict(row) | {"tflops": row.tflops, "gbs": row.gbs} for row in rows],
        "targets": [verdict._asdict() | {"bar": asdict(verdict.bar)} for verdict in verdicts],
    }
    return json.dumps(report, indent=2)
