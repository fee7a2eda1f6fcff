"""The Triton kernels, each with its launcher directly below it; the only users of `triton`."""

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from flashkit import runtime

__all__ = ["OutOfResources"]

if runtime.interpreting() and isinstance(tl.cdiv, triton.JITFunction):
    raise RuntimeError(
        "triton was imported before TRITON_INTERPRET was set, so its own functions are compiled "
        "and cannot run here: restart, and import flashkit (or set the variable) before triton"
    )
