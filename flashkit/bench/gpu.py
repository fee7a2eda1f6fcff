"""The device under the clock: events, graphs, and the flush of its second-level cache."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flashkit.bench.timing import Run

FLUSH_FACTOR = 4  # times the second-level cache: more than it can hold in any order


class Gpu:
    """One CUDA device, as a Clock that can also capture calls and flush its cache."""

    device = "cuda"

    def __init__(self):
        properties = torch.cuda.get_device_properties()
        self.cache_bytes = properties.L2_cache_size
        elements = FLUSH_FACTOR * self.cache_bytes // 4
        self._buffer = torch.ones(elements, dtype=torch.int32, device=self.device)

    def mark(self) -> torch.cuda.Event:
        """An event behind all work so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def between(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Milliseconds between two events that have passed."""
        return start.elapsed_time(stop)

    def flush(self) -> None:
        """Fill the cache with lines nobody wants, by reading.

        Writing would leave dirty lines, whose way back to memory the next kernel pays for.
        """
        self._buffer.amax()

    def capture(self, calls: Sequence[Callable[[], Tensor]]) -> Run:
        """These calls, once each, as one CUDA graph: no launch waits for the host.

        What cannot be captured runs call by call: the host's time counts then, and `how` says so.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            calls[0]()
        torch.cuda.current_stream().wait_stream(side)
        self.settle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                outputs = [call() for call in calls]
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # a sync or a copy inside the call: time it as its users run it
            self.settle()
            return _eager(calls)
        return Run(graph.replay, len(calls), outputs, held=calls)

    def release(self) -> None:
        """Give back what the last shape held."""
        torch.cuda.empty_cache()


def _eager(calls: Sequence[Callable[[], Tensor]]) -> Run:
    outputs = [call() for call in calls]

    def replay():
        outputs[:] = [call() for call in calls]

    return Run(replay, len(calls), outputs, "eager")
