"""Ring attention on any number of GPUs: time, bandwidth, share of transfer hidden, errors.

    torchrun --nproc-per-node 2 benchmarks/ring.py --csv ring.csv               # strong scaling
    torchrun --nproc-per-node 2 benchmarks/ring.py --per-rank --lengths 65536   # weak scaling
    torchrun --nproc-per-node 4 benchmarks/ring.py --device cpu --lengths 512   # a dry run

Every rank draws its own shard. A row is a length and a direction; times are the slowest rank's,
median of alternating rounds:
    ring        ring_attention as it is
    compute     the same calls on the same shapes, nothing sent
    transfer    K and V (backward: and dK, dV) once round the ring, nothing computed
    one         one GPU with the whole sequence (flash_attention), up to --one-up-to
hidden = the part of transfer that ring does not pay for: 1 - (ring - compute) / transfer.
Errors are those of sampled rows and keys against float64, relative to the largest entry there.
"""

import argparse
import csv
import datetime
import functools
import os
import statistics
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

import flashkit
from flashkit.backward import attention_backward
from flashkit.masks import visible
from flashkit.online import EMPTY, State, finish, lse, merge, update
from flashkit.ring import ring_attention, shard
from flashkit.ring.neighbours import Ring, Transfer

FIELDS = ("ranks", "transport", "placement", "causal", "batch", "q_heads", "kv_heads", "T", "D")
FIELDS += ("dtype", "direction", "ring_ms", "compute_ms", "transfer_ms", "one_ms", "hidden")
FIELDS += ("speedup", "tflops", "sent_gbs", "error", "second_error")
SAMPLES = 4  # rows and keys of each rank that are compared


def stay(ring, *tensors):
    """`Ring.send` without sending: one's own tensors come back."""
    return Transfer([], [], list(tensors), tensors[0].device)


class Case:
    """One length on this rank: its shards, and the calls that are timed."""

    def __init__(self, options, t: int, device: torch.device):
        self.options, self.t, self.device = options, t, device
        self.mask = {"causal": not options.full, "placement": options.placement}
        self.positions = shard(torch.arange(t, device=device), dim=0, placement=options.placement)
        self.q, self.k, self.v = self.draw(t // dist.get_world_size())
        self.do = torch.randn_like(self.q)
        self.o, self.lse = ring_attention(self.q, self.k, self.v, return_lse=True, **self.mask)

    def draw(self, t: int) -> list[torch.Tensor]:
        o, heads = self.options, (self.options.heads, *[self.options.kv_heads] * 2)
        shapes = [(o.batch, h, t, o.dim) for h in heads]
        like = {"dtype": getattr(torch, o.dtype), "device": self.device}
        return [torch.randn(shape, **like).requires_grad_() for shape in shapes]

    def forward(self):
        with torch.no_grad():
            ring_attention(self.q, self.k, self.v, **self.mask)

    def backward(self):
        inputs = (self.q, self.k, self.v)
        return torch.autograd.grad(self.o, inputs, self.do, retain_graph=True)

    def transfer(self, backward: bool):
        """What goes round: n - 1 hops of K and V, n of their gradients in float32."""
        ring, kv = Ring(), (self.k.detach(), self.v.detach())
        for _ in ring.travel(*kv):
            if backward:
                ring.send(
                    torch.empty_like(self.k).float(), torch.empty_like(self.v).float()
                ).wait()

    def sent(self, backward: bool) -> int:
        """Bytes that a rank sends: see docs/ring.md."""
        world, numbers = dist.get_world_size(), self.k.numel() + self.v.numel()
        there = (world - 1) * numbers * self.k.element_size()
        return there + (world * numbers * 4 if backward and world > 1 else 0)

    def flops(self, backward: bool) -> float:
        """Of the visible pairs on all ranks: two products forward, five backward."""
        pairs = self.t * (self.t if self.options.full else (self.t + 1) / 2)
        products = 5 if backward else 2
        return products * 2 * pairs * self.options.dim * self.options.heads * self.options.batch


def timed(call, device) -> float:
    """Milliseconds of one call, the slowest rank's."""
    synchronize(device)
    dist.barrier()
    start = time.perf_counter()
    call()
    synchronize(device)
    took = torch.tensor(1e3 * (time.perf_counter() - start), device=device)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def synchronize(device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(case: Case, backward: bool, rounds: int) -> dict[str, float]:
    """Median milliseconds of each thing, all of them once in every round."""
    call = case.backward if backward else case.forward

    def quiet():
        with mock.patch.object(Ring, "send", stay):
            call()

    things = {"ring": call, "compute": quiet, "transfer": lambda: case.transfer(backward)}
    times = {name: [] for name in things}
    for i in range(rounds + 1):
        for name, thing in things.items():
            took = timed(thing, case.device)
            if i:  # the first round compiles and connects
                times[name].append(took)
    return {name: statistics.median(took) for name, took in times.items()}


def alone(case: Case, backward: bool, rounds: int) -> float | None:
    """Milliseconds of one GPU with the whole sequence, while the others wait; on rank 0."""
    took = []
    if case.t <= case.options.one_up_to and case.device.type == "cuda" and dist.get_rank() == 0:
        q, k, v = case.draw(case.t)
        o = flashkit.flash_attention(q, k, v, causal=case.mask["causal"])
        do = torch.randn_like(o)
        for _ in range(rounds + 1):
            synchronize(case.device)
            start = time.perf_counter()
            if backward:
                torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
            else:
                with torch.no_grad():
                    flashkit.flash_attention(q, k, v, causal=case.mask["causal"])
            synchronize(case.device)
            took.append(1e3 * (time.perf_counter() - start))
    dist.barrier()
    return statistics.median(took[1:]) if took else None


def gathered(x: torch.Tensor) -> torch.Tensor:
    """x of every rank, stacked."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world())]
    dist.all_gather(parts, x.contiguous())
    return torch.stack(parts)


def world() -> int:
    return dist.get_world_size()


def from_all(x: torch.Tensor, picked: torch.Tensor, dim: int = 2) -> torch.Tensor:
    """The picked tokens of every rank's shard in float64, one after the other along dim."""
    return torch.cat(list(gathered(x.detach().index_select(dim, picked).double())), dim)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max()).item()


def forward_errors(case: Case, picked: torch.Tensor) -> tuple[float, float]:
    """Of o and of lse: sampled rows, each rank's keys in float64, its parts merged."""
    q, o, got_lse = (from_all(x, picked) for x in (case.q, case.o, case.lse))
    rows = from_all(case.positions, picked, 0).long()
    state, group = EMPTY, case.options.heads // case.options.kv_heads
    for part in torch.arange(case.k.shape[2], device=case.device).split(4096):
        k, v = (
            x.detach()[:, :, part].double().repeat_interleave(group, 1) for x in (case.k, case.v)
        )
        seen = visible(rows[None], case.positions[part][None], None, case.mask["causal"])
        scores = (q @ k.mT / q.shape[3] ** 0.5).masked_fill(~seen, float("-inf"))
        state = update(state, scores, v)
    states = [State(*part) for part in zip(*map(gathered, state), strict=True)]
    whole = functools.reduce(merge, states)
    return relative(o, finish(whole)), (got_lse - lse(whole)).abs().max().item()


def backward_errors(case: Case, picked: torch.Tensor) -> tuple[float, float]:
    """Of dq at sampled rows, and of dk and dv at sampled keys, summed over the ranks."""
    here, given = case.positions, (case.q, case.k, case.v, case.o, case.lse, case.do)
    some = [from_all(x, picked) for x in given]
    tokens = from_all(here, picked, 0).long()
    q, k, v, o, row_lse, do = (x.detach().double() for x in given)
    mask = {"causal": case.mask["causal"], "tile": 4096}
    dq, *_ = attention_backward(some[0], k, v, *some[3:], tokens, here, **mask)
    _, dk, dv = attention_backward(q, *some[1:3], o, row_lse, do, here, tokens, **mask)
    got, want = [from_all(x, picked) for x in case.backward()], [dq, dk, dv]
    for x in want:
        dist.all_reduce(x)
    errors = [relative(x, y) for x, y in zip(got, want, strict=True)]
    return errors[0], max(errors[1:])


def hidden(ring: float, compute: float, transfer: float) -> float:
    """The share of the transfer that costs no time."""
    return min(1.0, max(0.0, 1 - (ring - compute) / transfer))


def row(case: Case, backward: bool, transport: str) -> list:
    """One line of the table."""
    o, ms = case.options, measure(case, backward, case.options.rounds)
    one = alone(case, backward, case.options.rounds)
    picked = torch.randperm(case.k.shape[2], device=case.device)[:SAMPLES].sort().values
    errors = (backward_errors if backward else forward_errors)(case, picked)
    shared = world() > 1
    numbers = [
        ms["ring"], ms["compute"], ms["transfer"] if shared else None, one,
        hidden(**ms) if shared else None,
        one / ms["ring"] if one else None,
        case.flops(backward) / ms["ring"] / 1e9,
        case.sent(backward) / ms["transfer"] / 1e6 if shared else None,
        *errors,
    ]  # fmt: skip
    what = [world(), transport, o.placement, not o.full, o.batch, o.heads, o.kv_heads, case.t]
    what += [o.dim, o.dtype, "backward" if backward else "forward"]
    return what + ["" if x is None else f"{x:.4g}" for x in numbers]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[65536, 131072, 262144])
    parser.add_argument("--per-rank", action="store_true", help="lengths are those of a shard")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--full", action="store_true", help="not causal")
    parser.add_argument("--placement", default="zigzag")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", choices=["nccl", "gloo"], help="default: nccl on GPUs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one-up-to", type=int, default=262144)
    parser.add_argument("--timeout", type=float, default=300, help="seconds")
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def place(options) -> torch.device:
    """This process's device, made the current one as NCCL wants it."""
    if options.device == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    number = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def main() -> None:
    options = arguments()
    device = place(options)
    transport = options.backend or ("gloo" if options.device == "cpu" else "nccl")
    limit = datetime.timedelta(seconds=options.timeout)
    own = {"device_id": device} if transport == "nccl" else {}
    dist.init_process_group(transport, timeout=limit, **own)
    torch.manual_seed(dist.get_rank())
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    lines = [f"# {datetime.date.today()}, {world()} x {name}, torch {torch.__version__}"]
    lines.append(FIELDS)
    for length in options.lengths:
        case = Case(options, length * world() if options.per_rank else length, device)
        lines += [row(case, backward, transport) for backward in (False, True)]
        del case
    if dist.get_rank() == 0:
        print(lines[0], *(" ".join(map(str, line)) for line in lines[1:]), sep="\n")
        if options.csv:
            write(options.csv, lines)
    dist.destroy_process_group()


def write(path: Path, lines: list) -> None:
    """Add the rows to path; a new file begins with where it was measured and the names."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        if new:
            file.write(f"{lines[0]}: torchrun benchmarks/ring.py\n")
        csv.writer(file).writerows(lines[1 if new else 2 :])


if __name__ == "__main__":
    main()
