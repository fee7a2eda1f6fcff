"""Two tiny kernels that tell a broken Triton installation from a wrong kernel.

Each known way in which a pair of Triton and NumPy versions fails has one check here; `flashkit
doctor` runs them, so that a beginner need not wonder whose fault it is.
"""

import numpy as np
import torch
import triton
import triton.language as tl

# Some Triton versions stumble over any NumPy array among a kernel's globals, used or not
# (triton-lang/triton#5484). It must stand here, unused.
A_NUMPY_GLOBAL = np.zeros(2)

LOOPS = ("range to a loaded bound", "tl.range", "tl.static_range", "range to a minimum", "while")


@triton.jit
def _copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """One program copies BLOCK elements of x (n,) to out (n,)."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def _count_kernel(bound_ptr, out_ptr, BLOCK: tl.constexpr):
    """One program writes how often each loop ran; out (5,) int32 in the order of LOOPS."""
    bound = tl.load(bound_ptr)
    a, b, c, d, e = 0, 0, 0, 0, 0
    for _ in range(0, bound):
        a += 1
    for _ in tl.range(0, bound):
        b += 1
    for _ in tl.static_range(0, BLOCK):
        c += 1
    for _ in range(tl.program_id(0) * BLOCK, tl.minimum(BLOCK, bound)):
        d += 1
    while e < bound:
        e += 1
    tl.store(out_ptr, a)
    tl.store(out_ptr + 1, b)
    tl.store(out_ptr + 2, c)
    tl.store(out_ptr + 3, d)
    tl.store(out_ptr + 4, e)


def unwritten(device: str) -> list[int]:
    """Elements of a poisoned output that a copy kernel of six elements did not write rightly."""
    x = torch.arange(1.0, 7.0, device=device)
    out = torch.full_like(x, float("nan"))
    _copy_kernel[(3,)](x, out, x.numel(), BLOCK=2)
    return (out != x).nonzero().flatten().tolist()


def miscounted(device: str) -> list[str]:
    """Kinds of loop, of LOOPS, that did not run as often as their bounds say."""
    bound = torch.tensor([3], dtype=torch.int32, device=device)
    out = torch.full((len(LOOPS),), -1, dtype=torch.int32, device=device)
    _count_kernel[(1,)](bound, out, BLOCK=4)
    wanted = [3, 3, 4, 3, 3]
    return [
        loop for loop, got, want in zip(LOOPS, out.tolist(), wanted, strict=True) if got != want
    ]
