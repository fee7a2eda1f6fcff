"""flashkit chooses the interpreter where there is no GPU, and leaves a user's choice alone."""

import os
import subprocess
import sys

import pytest
import torch

from flashkit import runtime


def fresh(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a new Python where TRITON_INTERPRET is unset but for `environment`."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("chosen", [None, "0", "1"])
def test_the_choice(monkeypatch, seen, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if chosen is not None:
        monkeypatch.setenv("TRITON_INTERPRET", chosen)
    runtime.select_interpreter()
    want = chosen == "1" if chosen is not None else not seen
    assert runtime.interpreting() == want
    assert runtime.device() == ("cuda" if seen and not want else "cpu")


@pytest.mark.parametrize(("value", "means"), [("1", True), ("true", True), ("0", False)])
def test_interpreting_reads_the_variable_as_triton_does(monkeypatch, value, means):
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert runtime.interpreting() == means


def test_import_needs_neither_triton_nor_the_widgets():
    code = """
import sys
for name in ("triton", "plotly", "ipywidgets", "anywidget", "nbgrader"):
    sys.modules[name] = None
import flashkit
assert flashkit.online_attention and flashkit.flash_attention
"""
    done = fresh(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is chosen where there is one")
def test_import_picks_the_interpreter_before_triton_is_loaded():
    code = """
import os, sys, flashkit
assert os.environ["TRITON_INTERPRET"] == "1" and "triton" not in sys.modules
import torch
q = torch.ones(1, 1, 1, 16)
print(flashkit.flash_attention(q, q, q).sum().item())
"""
    done = fresh(code)
    assert done.stdout.strip() == "16.0", done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu_and_no_interpreter_says_what_to_set():
    code = """
import flashkit, torch
q = torch.ones(1, 1, 1, 16)
flashkit.flash_attention(q, q, q)
"""
    done = fresh(code, TRITON_INTERPRET="0")
    assert done.returncode != 0
    assert "ValueError: a compiled kernel needs tensors on a GPU" in done.stderr
    assert "TRITON_INTERPRET=1 before flashkit is imported" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_triton_imported_too_early_is_named():
    code = """
import triton.language, flashkit, torch
q = torch.ones(1, 1, 1, 16)
flashkit.flash_attention(q, q, q)
"""
    done = fresh(code)
    assert "triton was imported before TRITON_INTERPRET was set" in done.stderr
