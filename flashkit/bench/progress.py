"""How far a long run is, on standard error: rate and time left."""

import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """One line a step; on a terminal the line is written over."""

    def __init__(
        self, total: int, stream: TextIO, unit: str, now: Callable[[], float] = time.monotonic
    ):
        self.total, self.done, self.unit = total, 0, unit
        self._stream, self._now, self._start = stream, now, now()
        self._width = 0

    def step(self, name: str, amount: int = 1) -> None:
        """`amount` more steps are done; `name` says which."""
        self.done += amount
        spent = self._now() - self._start
        rate = self.done / spent if spent > 0 else 0.0
        left = span((self.total - self.done) / rate) if rate else "?"
        self._say(f"{self.done}/{self.total}  {rate:.2f} {self.unit}/s  {left} left  {name}")

    def close(self) -> None:
        """Say how long it took."""
        self._say(f"{self.done}/{self.total} {self.unit} in {span(self._now() - self._start)}")
        if self._stream.isatty():
            self._stream.write("\n")

    def _say(self, text: str) -> None:
        if self._stream.isatty():
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def span(seconds: float) -> str:
    """75 as "1 min 15 s"."""
    whole = max(0, round(seconds))
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
