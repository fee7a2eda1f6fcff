"""Build a twin with this machine's compiler, once, and load it.

A library lies in the user's cache, under a name made from all that went into it: whoever changes
a source or a flag gets a new one. It appears there in one step, so that two processes may build
at once.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent


class BuildError(RuntimeError):
    """A twin cannot be built here; the message says what is missing and how to get it."""


class Compiler(NamedTuple):
    """How one language is compiled; `variable` of the environment names another command."""

    language: str
    source: str
    variable: str
    command: str
    flags: tuple[str, ...]
    remedy: str

    def found(self) -> list[str]:
        """The command as a list, or an empty list where it is not on the path."""
        command = shlex.split(os.environ.get(self.variable) or self.command)
        return command if shutil.which(command[0]) else []


# No fast mathematics anywhere. In C++ no fused multiply-add either, which Rust does not use: the
# two have to agree in every bit.
COMPILERS = {
    "cpp": Compiler(
        "C++", "online.cpp", "CXX", "c++",
        ("-std=c++20", "-O2", "-ffp-contract=off", "-fPIC", "-shared"),
        "apt-get install g++, or conda install -c conda-forge cxx-compiler",
    ),
    "rust": Compiler(
        "Rust", "online.rs", "RUSTC", "rustc",
        ("--edition=2021", "--crate-type=cdylib", "-O", "-Cpanic=abort"),
        "apt-get install rustc, or conda install -c conda-forge rust",
    ),
    "cuda": Compiler(
        "CUDA", "flash.cu", "CUDACXX", "nvcc",
        ("-std=c++17", "-O3", "-Xcompiler=-fPIC", "-shared"),
        "install NVIDIA's CUDA toolkit, or conda install -c conda-forge cuda-nvcc cuda-cudart-dev",
    ),
}  # fmt: skip


def languages() -> tuple[str, ...]:
    """The languages whose compilers are on this machine: some of "cpp", "rust" and "cuda"."""
    return tuple(name for name, compiler in COMPILERS.items() if compiler.found())


def source(language: str) -> str:
    """The twin's source, to be read."""
    return (SOURCES / COMPILERS[language].source).read_text(encoding="utf-8")


@functools.cache
def load(language: str, *flags: str) -> ctypes.CDLL:
    """The twin in one language, built if it was not yet. Raises BuildError."""
    compiler = COMPILERS[language]
    if not compiler.found():
        raise BuildError(
            f"no {compiler.language} compiler here ({compiler.command} is not on the path): "
            f"{compiler.remedy}"
        )
    command = [*compiler.found(), *compiler.flags, *flags, str(SOURCES / compiler.source)]
    made_from = repr((command[:-1], source(language), platform.platform()))
    digest = hashlib.sha256(made_from.encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashkit"
    target = folder / f"{Path(compiler.source).stem}-{language}-{digest}.so"
    try:
        if not target.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _build(compiler, command, target)
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise BuildError(
            f"no {compiler.language} twin can be built in {folder} or loaded from it ({error}): "
            "set XDG_CACHE_HOME to another folder"
        ) from None


def _build(compiler: Compiler, command: list[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise BuildError(
                f"{command[0]} cannot build {compiler.source}:\n{done.stderr.strip()}\n"
                f"If the compiler is incomplete: {compiler.remedy}"
            )
        made.replace(target)
