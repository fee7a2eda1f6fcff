"""A device whose clock a test moves, and contestants that take the time they are told to."""

import torch.nn.functional as F

from flashkit.bench.implementations import Implementation, outputs
from flashkit.bench.timing import Run


class FakeGpu:
    """What the bench asks of a GPU, on the CPU: `now` is the clock, `log` what was done."""

    device = "cpu"

    def __init__(self, cache_bytes: int = 4096):
        self.cache_bytes, self.now, self.log = cache_bytes, 0.0, []

    def mark(self):
        return self.now

    def settle(self):
        self.log.append("settle")

    def between(self, start, stop):
        return stop - start

    def flush(self):
        self.log.append("flush")
        self.now += 1000.0  # between the marks it would spoil every time

    def capture(self, calls):
        results = [call() for call in calls]

        def replay():
            for result, call in zip(results, calls, strict=True):
                for o, new in zip(outputs(result), outputs(call()), strict=True):
                    o.copy_(new)

        return Run(replay, len(calls), results)

    def release(self):
        self.log.append("release")


def contestant(gpu: FakeGpu, name: str, ms: float, ours: bool = False, spoil=None):
    """Exact attention that takes `ms` a call; `spoil(o)` may damage what it returns."""

    def make(shape):
        def call(x):
            gpu.now += ms
            gpu.log.append(name)
            causal = {"is_causal": shape.causal and shape.t > 1}
            o = F.scaled_dot_product_attention(x.q, x.k, x.v, enable_gqa=True, **causal)
            return spoil(o) if spoil else o

        return call

    return Implementation(name, make, ours=ours)
