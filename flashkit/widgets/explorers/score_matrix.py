"""What the score matrix costs: bytes held, bytes moved and time at best, T doubling each step.

All numbers are those of `flashkit.cost`: T queries and T keys, no mask, every head its own K, V.
"""

from dataclasses import dataclass

from flashkit import cost
from flashkit.contracts import require
from flashkit.widgets.panel import Choice, Explorer, Number
from flashkit.widgets.scene import Bars, Step
from flashkit.widgets.wording import duration, size

LENGTHS = tuple(1024 * 2**i for i in range(8))
ABOUT = ("memory", "traffic", "all")
OWN, DESCRIBED = "own numbers", "machine you described"
DTYPES = (("float32", 4), ("float16 or bfloat16", 2), ("float8", 1))
POWERS = tuple((str(n), n) for n in (16, 32, 64, 128, 256))  # offered for head dim and BLOCK_M


@dataclass(frozen=True)
class _Cost:
    """The costs of all heads of one attention layer at T tokens."""

    device: cost.Device
    t: int
    heads: int  # of all sequences of the batch
    one: int  # bytes of S for one head
    inputs: int  # bytes of q, k, v and o
    unfused: int  # bytes moved
    tiled: int
    flops: int

    @property
    def both(self) -> int:
        """Bytes of S and P."""
        return 2 * self.heads * self.one

    @property
    def fits(self) -> bool:
        return self.both + self.inputs <= self.device.memory

    def time(self, moved: int) -> float:
        return cost.roofline_time(self.flops, moved, self.device)

    def bound(self, moved: int) -> str:
        waits = moved / self.device.bandwidth > self.flops / self.device.flops
        return "memory-bound" if waits else "compute-bound"


def score_matrix_steps(
    heads: int, batch: int, itemsize: int, d: int, block_m: int, device: cost.Device,
    about: str = "all",
) -> list[Step]:  # fmt: skip
    """One step per T from 1,024 to 131,072, about the "memory", the "traffic" or "all"."""
    require(about in ABOUT, f"about must be one of {', '.join(ABOUT)}, got {about!r}")
    costs = [_cost(t, heads, batch, itemsize, d, block_m, device) for t in LENGTHS]
    top = max(costs[-1].both, device.memory)
    low = min(costs[0].inputs, costs[0].one)
    return [_step(each, (low, top), about) for each in costs]


def _cost(t, heads, batch, itemsize, d, block_m, device) -> _Cost:
    every = batch * heads
    return _Cost(
        device, t, every,
        one=cost.score_bytes(t, t, itemsize=itemsize),
        inputs=every * 4 * t * d * itemsize,
        unfused=every * cost.unfused_bytes(t, t, d, itemsize=itemsize),
        tiled=every * cost.flash_bytes(t, t, d, block_m, itemsize=itemsize),
        flops=cost.flops(t, t, d, batch=batch, heads=heads, causal=False),
    )  # fmt: skip


def _step(c: _Cost, axis: tuple[int, int], about: str) -> Step:
    sentence, facts, panels = f"T = {c.t:,}: ", (("T", f"{c.t:,}"),), ()
    if about != "traffic":
        sentence += _memory_sentence(c)
        facts += (
            ("S, one head", size(c.one)),
            ("S and P, all heads", size(c.both)),
            ("q, k, v, o", size(c.inputs)),
            ("fits", "yes" if c.fits else "no"),
        )
        panels += (_memory(c, axis),)
    if about == "all":
        sentence += " "
    if about != "memory":
        sentence += _traffic_sentence(c)
        for name, moved in (("unfused", c.unfused), ("tiled", c.tiled)):
            facts += ((f"moved, {name}", size(moved)),)
            facts += ((f"time, {name}", f"{duration(c.time(moved))}, {c.bound(moved)}"),)
        panels += (_traffic(c), _times(c))
    return Step(sentence, facts, panels)


def _memory_sentence(c: _Cost) -> str:
    share = (c.both + c.inputs) / c.device.memory
    verdict = f"they fit, and with q, k, v and o fill {share:.1%} of it"
    if not c.fits:
        verdict = f"they do not fit, by a factor of {share:.3g}"
    return (
        f"S and P take {size(c.both)}, and the memory of the {c.device.name} is "
        f"{size(c.device.memory)}: {verdict}."
    )


def _traffic_sentence(c: _Cost) -> str:
    slow, fast = c.time(c.unfused), c.time(c.tiled)
    return (
        f"Unfused attention moves {size(c.unfused)}, the tiled kernel {size(c.tiled)}, "
        f"{c.unfused / c.tiled:.1f} times less; on the {c.device.name} that takes at least "
        f"{duration(slow)} ({c.bound(c.unfused)}) against {duration(fast)} ({c.bound(c.tiled)})."
    )


def _memory(c: _Cost, axis: tuple[int, int]) -> Bars:
    values = (c.both, c.one, c.inputs)
    return Bars(
        "Bytes held, log scale", ("S and P", "S, one head", "q, k, v, o"), values,
        ("plain" if c.fits else "wrong", "dim", "good"), tuple(size(value) for value in values),
        line=c.device.memory, line_text=f"all memory: {size(c.device.memory)}",
        log=True, low=axis[0] / 2, high=axis[1] * 2,
    )  # fmt: skip


# A scale is kept over all steps with the same title. These two have one for each T: on a common
# scale the short lengths would be flat, and what counts is the comparison at one T.
def _traffic(c: _Cost) -> Bars:
    one_pass = c.heads * c.one
    rest = c.unfused - len(cost.SCORE_PASSES) * one_pass
    labels = (*cost.SCORE_PASSES, "q, k, v, o", "unfused", "tiled")
    values = (*(one_pass for _ in cost.SCORE_PASSES), rest, c.unfused, c.tiled)
    kinds = ("dim",) * 5 + ("plain", "good")
    texts = tuple(size(value) for value in values)
    title = f"Bytes moved at T = {c.t:,}"
    return Bars(title, labels, values, kinds, texts, low=0)


def _times(c: _Cost) -> Bars:
    work = c.flops / c.device.flops
    values = (work, *(n_bytes / c.device.bandwidth for n_bytes in (c.unfused, c.tiled)))
    return Bars(
        f"Time of arithmetic and of bytes at T = {c.t:,}", ("arithmetic", "unfused", "tiled"),
        values, ("lit", "plain", "good"), tuple(duration(value) for value in values), low=0,
        line=work, line_text="memory-bound above",
    )  # fmt: skip


def score_matrix_explorer(
    *, heads: int = 32, batch: int = 8, itemsize: int = 4, d: int = 64, block_m: int = 128,
    device: str = "H200", about: str = "all", t: int = 8192,
) -> Explorer:  # fmt: skip
    """What the score matrix of a layer costs, T from 1,024 to 131,072 on the slider.

    about: "memory", "traffic" or "all"; t, a power of two, is the length shown first.
    """
    require(t in LENGTHS, f"t must be a power of two from 1,024 to 131,072, got {t}")

    def compute(device, tflops, gigabytes_per_s, gigabytes, **values):
        own = cost.Device(DESCRIBED, tflops * 1e12, gigabytes_per_s * 1e9, 1, int(gigabytes * 1e9))
        machine = own if device == OWN else cost.DEVICES[device]
        return score_matrix_steps(**values, device=machine, about=about)

    controls = [
        Number("heads", "heads", heads, 1, 256),
        Number("batch", "batch", batch, 1, 1024),
        Choice("itemsize", "dtype", DTYPES, itemsize),
        Choice("d", "head dim", POWERS, d),
        Choice("block_m", "BLOCK_M", POWERS, block_m),
        Choice("device", "device", (*cost.DEVICES, OWN), device),
        Number("tflops", "own TFLOP/s", 100.0, 0.001, 1e6, 10.0),
        Number("gigabytes_per_s", "own GB/s", 1000.0, 0.1, 1e6, 100.0),
        Number("gigabytes", "own GB of memory", 24.0, 0.1, 1e6, 8.0),
    ]
    explorer = Explorer(f"score matrix, {about}", compute, controls, step_label="length")
    explorer.index = LENGTHS.index(t)
    return explorer
