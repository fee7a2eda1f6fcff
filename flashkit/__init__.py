"""FlashAttention, in full and in the open: reference, online softmax, Triton kernels, lessons.

Importing flashkit chooses where kernels run (see `runtime`), so import it before you define one.
"""

from flashkit import runtime

runtime.select_interpreter()

from flashkit.attention import flash_attention  # noqa: E402
from flashkit.decoding import flash_decode, paged_decode  # noqa: E402
from flashkit.fp8 import fp8_attention  # noqa: E402
from flashkit.online import (  # noqa: E402
    EMPTY,
    State,
    finish,
    lse,
    merge,
    online_attention,
    split_attention,
    step,
    update,
)
from flashkit.reference import causal_attention  # noqa: E402

__all__ = [
    "EMPTY",
    "State",
    "causal_attention",
    "finish",
    "flash_attention",
    "flash_decode",
    "fp8_attention",
    "lse",
    "merge",
    "online_attention",
    "paged_decode",
    "split_attention",
    "step",
    "update",
]
