"""The classic bugs of a FlashAttention kernel, one at a time: what each gives, and a sentence.

`FAULTS` holds the sentence that a student reads. `faulty_attention`, `faulty_update`,
`faulty_merge` and `faulty_backward` compute with exactly one thing wrong. They are float64 for
float64 inputs and float32 for all others, because several bugs (no maximum subtracted, a maximum
that starts at 0) only show where float32 overflows or underflows.
"""

from flashkit.faults.attention import faulty_attention
from flashkit.faults.backward import GRADIENTS, faulty_backward
from flashkit.faults.recipes import CLASSIC, RECIPES, variants
from flashkit.faults.sentences import FAULTS
from flashkit.faults.states import faulty_merge, faulty_update

__all__ = [
    "CLASSIC",
    "FAULTS",
    "GRADIENTS",
    "RECIPES",
    "faulty_attention",
    "faulty_backward",
    "faulty_merge",
    "faulty_update",
    "variants",
]
