"""Numbers as short text, the same in every figure and explorer."""

import math


def number(value: float, digits: int = 4) -> str:
    """A number as the lessons print it, with a real minus and a real infinity."""
    text = "∞" if math.isinf(value) else f"{abs(value):.{digits}f}"
    return f"−{text}" if value < 0 else text


def size(n_bytes: float) -> str:
    """Bytes as text with a binary unit: 268435456 is "256 MiB"."""
    power = min(max(int(math.log2(n_bytes)) // 10, 0), 5) if n_bytes >= 1 else 0
    return f"{n_bytes / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


def duration(seconds: float) -> str:
    """Seconds as text with a unit: 0.00022 is "220 µs"."""
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
