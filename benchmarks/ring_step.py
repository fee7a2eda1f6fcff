"""What one rank of n computes, on one GPU: the time in which its next keys must arrive.

    python benchmarks/ring_step.py --csv ring-step.csv

Nothing is sent: the rank's own K and V stand for those of the others, so that the calls, shapes
and masks are those of a ring of n and the numbers are its compute alone. A row is a length, n, a
direction and a rank, the first and the last; hop is the time of a step and needed the GB/s with
which the transfers of a step (forward K and V; backward also dK and dV, in float32) are hidden
in it. efficiency is the time of one GPU with the whole sequence over n times that of the rank.
"""

import argparse
import csv
import datetime
import statistics
from pathlib import Path
from unittest import mock

import torch

import flashkit
from flashkit.ring import attention
from flashkit.ring.neighbours import Ring, Transfer

FIELDS = ("T", "ranks", "rank", "direction", "q_heads", "kv_heads", "D", "ms", "hop_ms")
FIELDS += ("hop_mb", "needed_gbs", "efficiency")


class Alone(Ring):
    """A rank of a ring in which nobody else is: what it sends comes back to it."""

    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world

    def agree(self, describe):
        return describe()

    def send(self, *tensors):
        return Transfer([], [], list(tensors), tensors[0].device)


def median_ms(call, rounds: int) -> float:
    """Of a call on the GPU, after one that is not counted."""
    times = []
    for _ in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[1:])


def both_ways(call, options, t: int) -> dict[str, float]:
    """Milliseconds of call(q, k, v) and of its backward, on normal inputs of t tokens."""
    heads = (options.heads, options.kv_heads, options.kv_heads)
    q, k, v = (
        torch.randn(1, h, t, options.dim, dtype=torch.bfloat16, device="cuda").requires_grad_()
        for h in heads
    )
    o = call(q, k, v)
    do = torch.randn_like(o)

    def forward():
        with torch.no_grad():
            call(q, k, v)

    def backward():
        torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

    return {
        name: median_ms(way, options.rounds)
        for name, way in (("forward", forward), ("backward", backward))
    }


def rows(options):
    """One row for each length, number of ranks, rank and direction."""
    for t in options.lengths:
        whole = both_ways(flashkit.flash_attention, options, t)
        for world in options.ranks:
            for rank in sorted({0, world - 1}):
                with mock.patch.object(
                    attention, "Ring", lambda group, at=(rank, world): Alone(*at)
                ):
                    took = both_ways(attention.ring_attention, options, t // world)
                for direction, ms in took.items():
                    numbers = 2 * options.kv_heads * (t // world) * options.dim  # of K and V
                    mb = numbers * (2 + 4 * (direction == "backward")) / 1e6
                    values = ms, ms / world, mb, mb * world / ms, whole[direction] / ms / world
                    yield (
                        t,
                        world,
                        rank,
                        direction,
                        options.heads,
                        options.kv_heads,
                        options.dim,
                        *(f"{x:.4g}" for x in values),
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[65536, 131072])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    table = list(rows(options))
    where = f"# {datetime.date.today()}, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(where, *(" ".join(map(str, line)) for line in [FIELDS, *table]), sep="\n")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            file.write(f"{where}: python benchmarks/ring_step.py\n")
            csv.writer(file).writerows([FIELDS, *table])


if __name__ == "__main__":
    main()
