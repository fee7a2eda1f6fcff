"""A student's kernel, step by step: record it, find m, l and acc in it, compare with right."""

from flashkit.kernel_trace.comparison import Comparison, Problem, compare
from flashkit.kernel_trace.names import MEANING, ROLES, parse_names
from flashkit.kernel_trace.recorder import Iteration, Recording, numbers, record

__all__ = [
    "MEANING",
    "ROLES",
    "Comparison",
    "Iteration",
    "Problem",
    "Recording",
    "compare",
    "numbers",
    "parse_names",
    "record",
]
