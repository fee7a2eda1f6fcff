"""`flashkit doctor`: is this machine ready for the lessons, and if not, what to do about it.

It runs what the lessons run, instead of only importing it: a wrong number counts as broken. What
the platform does not have (Triton off Linux) or this user may not need (nbgrader) is only noted.
"""

import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from flashkit import native, runtime
from flashkit.attention import flash_attention
from flashkit.kernel_trace import record
from flashkit.native.build import COMPILERS, Compiler
from flashkit.reference import causal_attention

PACKAGES = {
    "torch": "all lessons",
    "numpy": "all lessons",
    "triton": "lessons 3 and 4",
    "jupyterlab": "opening the lessons",
    "ipywidgets": "what moves on the page",
    "anywidget": "what moves on the page",
    "plotly": "the charts",
    "nbgrader": "instructors only",
}
REQUIRED = ("torch", "numpy", "triton")
TOLERANCE = 1e-5  # float32 kernels with input_precision="ieee" against float64
WORKED_EXAMPLE = 1.86191
RENEW = "make the environment anew with the pinned versions: rm -r .venv && make lab"


class Finding(NamedTuple):
    """One line of the report: level is "ok", "note" (may be as it should) or "broken"."""

    level: str
    text: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Everything that was looked at: versions first, then the kernels, then the twins."""
    findings = [Finding("ok", f"python {platform.python_version()} on {platform.platform()}")]
    findings += versions()
    findings.append(where_kernels_run())
    if runtime.has_triton() and findings[-1].level != "broken":
        findings += kernels()
    return findings + list(twins())


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing is broken."""
    return all(finding.level != "broken" for finding in findings)


def versions() -> Iterator[Finding]:
    """One finding a package: its version, or the pip line that brings it."""
    pins = _pins()
    for name, needed_for in PACKAGES.items():
        version, pin = _installed(name), pins.get(name, "")
        if version is None:
            yield _absent(name, needed_for, pin)
        elif pin and version.split("+")[0] != pin:
            yield Finding("note", f"{name} {version} (the course is tested with {pin})")
        else:
            yield Finding("ok", f"{name} {version}")


def where_kernels_run() -> Finding:
    """The GPU's name, or the interpreter and why."""
    if not torch.cuda.is_available():
        if runtime.interpreting():
            return Finding("ok", "no GPU: kernels run in Triton's interpreter, on the CPU")
        return Finding(
            "broken",
            "no GPU, and TRITON_INTERPRET is set to something else than 1: no kernel can run",
            "unset TRITON_INTERPRET; flashkit then chooses the interpreter by itself",
        )
    name = torch.cuda.get_device_name()
    if runtime.interpreting():
        return Finding(
            "note",
            f"{name} stands idle: TRITON_INTERPRET is set, so kernels run in the interpreter",
            "unset TRITON_INTERPRET to run them on the GPU",
        )
    return Finding("ok", f"kernels run on {name}")


def kernels() -> Iterator[Finding]:
    """Run the tiny kernels and one small attention; a wrong answer or an exception is broken."""
    checks = CHECKS | (INTERPRETER_CHECKS if runtime.interpreting() else {})
    for title, check in checks.items():
        try:
            fault = check(runtime.device())
        except Exception as error:  # whatever it is, the reader needs the line, not the traceback
            fault = f"{type(error).__name__}: {error}"
        if fault:
            yield Finding("broken", f"{title}: {fault} ({_pair()})", RENEW)
        else:
            yield Finding("ok", title)


def twins() -> Iterator[Finding]:
    """The worked example in other languages; without a compiler they are only read, not run."""
    for name, compiler in COMPILERS.items():
        if name != "cuda" or runtime.device() == "cuda":
            yield _twin(name, compiler)


def _twin(name: str, compiler: Compiler) -> Finding:
    q, k = torch.tensor([1.0]), torch.tensor([[0.0], [1.0], [2.0], [-1.0]])
    v, example = torch.tensor([[2.0], [4.0], [1.0], [3.0]]), "the worked example"
    try:
        if name == "cuda":
            o, _ = native.cuda_attention(*(x.cuda() for x in (q[None], k, v)), tile=2)
        else:
            o, _ = native.online_attention(q, k, v, tile=2, language=name)
    except RuntimeError as error:  # a BuildError, or what CUDA says
        return Finding("note", f"{example} in {compiler.language} can only be read", str(error))
    if abs(o.item() - WORKED_EXAMPLE) > TOLERANCE:
        fault = f"{example} in {compiler.language} is {o.item():.5f}, not {WORKED_EXAMPLE}"
        return Finding("broken", fault, f"name another compiler in {compiler.variable}")
    return Finding("ok", f"{example} in {compiler.language}")


def _check_output(device: str) -> str:
    from flashkit.kernels import selftest

    left = selftest.unwritten(device)
    return f"elements {left} of the output were left as they were" if left else ""


def _check_loops(device: str) -> str:
    from flashkit.kernels import selftest

    loops = selftest.miscounted(device)
    return f"wrong number of steps in {', '.join(loops)}" if loops else ""


def _check_attention(device: str) -> str:
    generator = torch.Generator().manual_seed(15)
    q, k, v = (
        torch.randn(1, heads, length, 16, generator=generator)
        for heads, length in ((4, 19), (2, 37), (2, 37))
    )
    want = causal_attention(q.double(), k.double(), v.double())
    got = flash_attention(*(x.to(device) for x in (q, k, v)), block_m=16, block_n=16)
    error = (got.cpu().double() - want).abs().max().item()
    return "" if error <= TOLERANCE else f"{error:.1e} away from float64 (at most {TOLERANCE})"


def _check_variables(device: str) -> str:
    x = torch.ones(1, 1, 16, 16, device=device)
    seen = record(lambda: flash_attention(x, x, x, block_m=16, block_n=16)).iterations
    m = seen[-1].values.get("m") if seen else None
    return "" if m is not None and (m == 4.0).all() else f"m should be 4.0 in all rows, got {m}"


CHECKS: dict[str, Callable[[str], str]] = {
    "a kernel writes all of its output": _check_output,
    "loops in a kernel keep their bounds": _check_loops,
    "flash_attention agrees with float64 (causal, ragged, 4 heads on 2)": _check_attention,
}
INTERPRETER_CHECKS = {"the variables of a running kernel can be read": _check_variables}


def _absent(name: str, needed_for: str, pin: str) -> Finding:
    if name == "triton" and sys.platform != "linux":
        return Finding(
            "note",
            f"no triton for {platform.system()}: lessons 1 and 2 run here, lessons 3 and 4 do not",
            "for those use Linux: WSL, a container, or a hosted notebook",
        )
    level = "broken" if name in REQUIRED else "note"
    line = f"pip install {name}=={pin}" if pin else f"pip install {name}"
    return Finding(level, f"{name} is not installed (needed for: {needed_for})", line)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pins() -> dict[str, str]:
    try:
        lines = importlib.metadata.requires("flashattention-workbook") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return {}
    return dict(re.match(r"([\w.-]+)==([^;\s]+)", line).groups() for line in lines)


def _pair() -> str:
    return f"triton {_installed('triton')} with numpy {_installed('numpy')}"


def render(findings: list[Finding]) -> str:
    """The report as text, one line a finding, the remedy under it, the verdict last."""
    lines = []
    for level, text, remedy in findings:
        lines.append(f"  {level:<8}{text}")
        if remedy:
            lines.append(f"  {'':<8}-> {remedy}")
    verdict = "ready" if healthy(findings) else "NOT ready: see the lines marked broken"
    return "\n".join(["flashkit doctor", *lines, verdict])
