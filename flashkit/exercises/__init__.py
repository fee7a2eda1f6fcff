"""What students are asked to write: the registry of exercises and the check they run."""

from flashkit.exercises.check import CheckFailed, check
from flashkit.exercises.registry import EXERCISES

__all__ = ["EXERCISES", "CheckFailed", "check"]
