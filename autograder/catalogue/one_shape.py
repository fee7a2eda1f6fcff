"""What a test of one shape makes of an answer: the usual public test, to compare ours with.

128 queries, 128 keys, head dim 64, N(0, 1), causal and not, atol = rtol = 1e-2. It runs the
catalogue's own file in this process; a student's code never comes here.
"""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from flashkit.reference import causal_attention

SEQUENCES, LENGTH, WIDTH, TILE, TOLERANCE = 2, 128, 64, 64, 1e-2
_FAR = LENGTH  # an offset from which every key is visible


def _kernel(function, q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    return function(q, k, v, offset, TILE, TILE)


def _windowed(function, q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    return function(q, k, v, 2 * LENGTH, offset, TILE, TILE)


def _torch(function, q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    return function(q, k, v, offset + torch.arange(LENGTH, device=q.device), tile=TILE)


CALLS = {
    "flash_attention": _kernel,
    "flash_attention_window": _windowed,
    "online_attention": _torch,
}
"""How the exercises that compute attention are called."""


def accepts(path: Path, exercise: str, device: str) -> bool | None:
    """Whether such a test lets the answer in the file pass; None where it has no such test."""
    if exercise not in CALLS:
        return None
    function = getattr(_module(path), exercise)
    generator = torch.Generator().manual_seed(0)
    shape = (SEQUENCES, 1, LENGTH, WIDTH)
    q, k, v = (torch.randn(shape, generator=generator).to(device) for _ in range(3))
    try:
        return all(_close(CALLS[exercise](function, q, k, v, n), q, k, v, n) for n in (0, _FAR))
    except Exception:  # whatever the answer raises, the test does not pass
        return False


def _close(got: Tensor, q: Tensor, k: Tensor, v: Tensor, offset: int) -> bool:
    positions = offset + torch.arange(LENGTH, device=q.device)
    want = causal_attention(q.double(), k.double(), v.double(), positions)
    return torch.allclose(got.double(), want, atol=TOLERANCE, rtol=TOLERANCE)


def _module(path: Path):
    spec = importlib.util.spec_from_file_location(f"catalogue_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
