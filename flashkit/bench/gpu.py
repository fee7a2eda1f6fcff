"""The device under the clock: events, graphs, and the flush of its second-level cache."""

from collections.abc import Callable, Sequence

import torch

from flashkit.bench.implementations import Result
from flashkit.bench.timing import Run

FLUSH_FACTOR = 4  # times the second-level cache: more than it can hold in any order


class Gpu:
    """One CUDA device, as a Clock that can also capture calls and flush its cache."""

    device = "cuda"

    def __init__(self):
        # Autograd runs a backward on the stream of its forward, and a graph takes in nothing of
        # the default stream: so all that is measured goes to one stream of its own.
        torch.cuda.set_stream(torch.cuda.Stream())
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

    def capture(self, calls: Sequence[Callable[[], Result]]) -> Run:
        """These calls, once each, as one CUDA graph: no launch waits for the host.

        What cannot be captured runs call by call: the host's time counts then, and `how` says so.
        """
        for call in calls:
            call()  # what is done once, as a library's setup or a forward, is not captured
        self.settle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                results = [call() for call in calls]
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # a sync or a copy inside the call: time it as its users run it
            self.settle()
            return _eager(calls)
        return Run(graph.replay, len(calls), results, held=calls)

    def release(self) -> None:
        """Give back what the last shape held."""
        torch.cuda.empty_cache()


def _eager(calls: Sequence[Callable[[], Result]]) -> Run:
    results = [call() for call in calls]

    def replay():
        results[:] = [call() for call in calls]

    return Run(replay, len(calls), results, "eager")
