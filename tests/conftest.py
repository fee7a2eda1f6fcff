"""Shared by all tests: flashkit chooses the interpreter, GPU tests are skipped by name."""

import pytest
import torch

import flashkit  # noqa: F401  sets TRITON_INTERPRET before any test defines a kernel

# Notebooks under tests/ are data: only those of solutions/ are for nbval.
collect_ignore_glob = ["*.ipynb"]


def pytest_runtest_setup(item):
    """Skip a test marked `gpu` where there is no CUDA device."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device (make gpu)")
