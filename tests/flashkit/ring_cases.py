"""What the processes of test_ring.py and test_ring_gpu.py do: they are started once for all cases.

Each rank runs every case in order and keeps, by name, what it got: tensors of the whole sequence,
or the text of the error. `run` gives the results of all ranks to the tests.
"""

import contextlib
import datetime
import functools
import os
import time

import oracle
import torch
import torch.distributed as dist

from flashkit import ring
from flashkit.ring import attention, neighbours, parts

TIMEOUT = datetime.timedelta(seconds=30)
# name: heads, T, D, dtype, options of the call; T divides by 2 x 1, 2, 3 and 4
EXACT = {
    "causal": ((2, 2), 24, 16, torch.float64, {}),
    "contiguous": ((2, 2), 24, 16, torch.float64, {"placement": "contiguous"}),
    "not causal": ((3, 1), 48, 16, torch.float64, {"causal": False}),
    "not causal, contiguous": (
        (2, 1), 48, 16, torch.float64, {"causal": False, "placement": "contiguous"},
    ),
    "grouped heads": ((8, 2), 24, 16, torch.float64, {"scale": 0.3}),
    "window of one": ((2, 1), 24, 16, torch.float64, {"window": 1}),
    "window across ranks": ((2, 1), 48, 16, torch.float64, {"window": 19}),
    "window, contiguous": (
        (2, 1), 48, 16, torch.float64, {"window": 7, "placement": "contiguous"},
    ),
    "window, not causal": ((2, 1), 24, 16, torch.float64, {"window": 5, "causal": False}),
    "float32": ((4, 2), 48, 32, torch.float32, {}),
    "small": ((2, 1), 24, 16, torch.float32, {}),
    "float16": ((4, 2), 48, 32, torch.float16, {}),
    "bfloat16": ((4, 2), 48, 32, torch.bfloat16, {}),
    "no tokens": ((2, 1), 0, 16, torch.float64, {}),
}  # fmt: skip
# for GPUs: what their fastest kernels serve, with more than one tile in a chunk
LARGE = {
    "large": ((8, 2), 1536, 128, torch.bfloat16, {}),
    "large, not causal": ((4, 4), 768, 64, torch.float16, {"causal": False}),
    "large, window": ((4, 2), 1536, 128, torch.bfloat16, {"window": 500}),
    "large, contiguous": ((2, 1), 1536, 128, torch.bfloat16, {"placement": "contiguous"}),
}
ALL = EXACT | LARGE
GPU = ["causal", "float32", "float16", "bfloat16", *LARGE]


def inputs(name: str, device: str) -> list[torch.Tensor]:
    """q, k, v, do and dlse of the whole sequence."""
    heads, t, d, dtype, _ = ALL[name]
    q, k, v = oracle.draw(len(name), 2, heads, t, t, d, dtype)
    do, *_ = oracle.draw(len(name) + 50, 2, heads, t, t, d, dtype)
    return [x.to(device) for x in (q, k, v, do, do[..., 0].to(lse_dtype(dtype)))]


def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def exact(name: str, device: str, group=None) -> dict[str, torch.Tensor]:
    """o, lse, dq, dk, dv of the whole sequence, of which each rank computed its shard."""
    options = ALL[name][-1]
    where = {"group": group, "placement": options.get("placement", "zigzag")}
    q, k, v, do, dlse = (ring.shard(x, **where) for x in inputs(name, device))
    before = [x.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.requires_grad_()
    o, lse = ring.ring_attention(q, k, v, group=group, return_lse=True, **options)
    torch.autograd.backward((o, lse), (do, dlse))
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))
    got = {"o": o, "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    return {key: ring.unshard(x, **where).cpu() for key, x in got.items()}


def strided(device: str) -> dict[str, torch.Tensor]:
    """The causal case with q and k in memory as (B, T, H, D), and each v seen by two heads."""
    q, k, v, *_ = (ring.shard(x) for x in inputs("grouped heads", device))
    q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
    v = v[:, :1].expand(-1, 2, -1, -1)
    o = ring.ring_attention(q, k, v, scale=0.3)
    return {"o": ring.unshard(o).cpu()}


def hidden(device: str) -> dict[str, torch.Tensor]:
    """The causal case, of which no row up to 16 sees the NaN in key and value 17."""
    q, k, v, do, _ = inputs("causal", device)
    k[:, :, 17], v[:, :, 17] = float("nan"), float("nan")
    q, k, v, do = (ring.shard(x) for x in (q, k, v, do))
    o = ring.ring_attention(q.requires_grad_(), k, v)
    o.backward(do)
    return {"o": ring.unshard(o).cpu()[:, :, :17], "dq": ring.unshard(q.grad).cpu()[:, :, :17]}


def autocast(device: str) -> dict[str, torch.Tensor]:
    """The float32 case where autocast wants bfloat16, forward and backward."""
    q, k, v, do, _ = (ring.shard(x) for x in inputs("float32", device))
    with torch.autocast(device, dtype=torch.bfloat16):
        o = ring.ring_attention(q.requires_grad_(), k, v)
        o.backward(do.to(o.dtype))
    return {"o": ring.unshard(o).cpu(), "dq": ring.unshard(q.grad).cpu()}


def only_the_lse(device: str) -> dict[str, torch.Tensor]:
    """The gradient when o is not used at all."""
    q, k, v, *_ = (ring.shard(x) for x in inputs("causal", device))
    q.requires_grad_()
    ring.ring_attention(q, k, v, return_lse=True)[1].sum().backward()
    return {"dq": ring.unshard(q.grad).cpu()}


@contextlib.contextmanager
def replaced(module, name: str, new):
    old = getattr(module, name)
    setattr(module, name, new)
    try:
        yield old
    finally:
        setattr(module, name, old)


def poisoned(device: str) -> dict[str, torch.Tensor]:
    """The float32 case with buffers that begin as NaN, and ranks of unequal speed."""
    empty_like, forward_part = torch.empty_like, attention.forward_part

    def spoilt(x, **options):
        return empty_like(x, **options).fill_(float("nan"))

    def slow(*args):
        time.sleep(0.02 * dist.get_rank())
        return forward_part(*args)

    with replaced(torch, "empty_like", spoilt), replaced(attention, "forward_part", slow):
        exact("causal", device)  # other data first: nothing of it may stay
        return exact("float32", device)


def kernels(device: str) -> dict[str, torch.Tensor]:
    """The small case by the kernels in the interpreter."""
    with replaced(parts, "uses_kernels", lambda q: True):
        return exact("small", device)


def events(device: str) -> dict[str, list]:
    """In order: what is posted, computed and waited for, in forward and backward."""
    log = {"forward": [], "backward": []}
    here = log["forward"]
    batch, wait = dist.batch_isend_irecv, neighbours.Transfer.wait
    forward_part, backward_part = attention.forward_part, attention.backward_part

    def posted(posts):
        sent = [x for x in posts if x.op is dist.isend]
        received = [x for x in posts if x.op is dist.irecv]
        bytes_sent = sum(x.tensor.numel() * x.tensor.element_size() for x in sent)
        here.append(("post", len(sent), len(received), bytes_sent))
        return batch(posts)

    def waited(transfer):
        here.append(("wait",))
        return wait(transfer)

    def computed(part):
        def compute(*args):
            here.append(("compute",))
            return part(*args)

        return compute

    with contextlib.ExitStack() as stack:
        for module, name, new in (
            (dist, "batch_isend_irecv", posted),
            (neighbours.Transfer, "wait", waited),
            (attention, "forward_part", computed(forward_part)),
            (attention, "backward_part", computed(backward_part)),
        ):
            stack.enter_context(replaced(module, name, new))
        q, k, v, do, _ = (ring.shard(x) for x in inputs("float16", device))
        for x in (q, k, v):
            x.requires_grad_()
        o = ring.ring_attention(q, k, v)
        here = log["backward"]
        o.backward(do)
    return log


def message(call, *args, **options) -> str:
    """What the ValueError of a call says."""
    try:
        call(*args, **options)
    except ValueError as error:
        return str(error)
    return "no error"


def refused(device: str) -> dict[str, str]:
    """The same sentence on every rank, whoever is at fault."""
    rank, world = dist.get_rank(), dist.get_world_size()
    q, k, v, *_ = inputs("causal", device)
    mine = [ring.shard(x) for x in (q, k, v)]
    first = rank == 0
    last = rank == world - 1
    wide = torch.randn(1, 2, 66, 16, device=device)
    # shared by two, 66 would be equal but odd
    uneven = [torch.tensor_split(wide[:, :, : 66 if world > 2 else 64], world, dim=2)[rank]] * 3
    odd = [wide[:, :, :33]] * 3
    call = ring.ring_attention
    return {
        "66 tokens": message(ring.shard, wide),
        "unequal shards": message(call, *uneven),
        "odd shards": message(call, *odd),
        "a bad v": message(call, *mine[:2], mine[2][:, :, :-1] if last else mine[2]),
        "unknown placement": message(call, *mine, placement="diagonal"),
        "two placements": message(call, *mine, placement="contiguous" if first else "zigzag"),
        "two masks": message(call, *mine, causal=first),
        "a window of 0": message(call, *mine, window=0 if last else 3),
        "no finite scale": message(call, *mine, scale=float("nan")),
        "k too long": message(call, *mine[:1], *(torch.cat([x, x], 2) for x in mine[1:])),
        "a gradient for one": message(call, mine[0].requires_grad_(first), *mine[1:]),
        "no tensor": message(call, None if last else mine[0], *mine[1:]),
        "integers": message(call, *(x.long() for x in mine)),
        "float8": message(call, *(x.detach().to(torch.float8_e5m2) for x in mine)),
    }


def subgroup(device: str) -> dict[str, torch.Tensor]:
    """A ring of ranks 1 and 3 of four, whose places in the group are 0 and 1."""
    group = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        return exact("causal", device, group)
    return {"error": message(ring.ring_attention, *inputs("causal", device)[:3], group=group)}


def silent_rank(device: str) -> dict[str, str]:
    """The last rank agrees, then sends nothing; the group's timeout is over after a second."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    q, k, v, *_ = (ring.shard(x) for x in inputs("causal", device))
    error = "no error"
    if dist.get_rank() == dist.get_world_size() - 1:
        with replaced(attention._RingAttention, "apply", lambda *args: (None, None)):
            ring.ring_attention(q, k, v, group=group)
    else:
        try:
            ring.ring_attention(q, k, v, group=group)
        except RuntimeError as raised:
            error = str(raised)
    dist.barrier()
    return {"error": error}


def worker(rank: int, world: int, device: str, folder: str, transport: str) -> None:
    """One process: all cases; on CPUs the last rank then dies and the others must notice."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = f"file://{folder}/store"
    dist.init_process_group(
        transport, init_method=store, rank=rank, world_size=world, timeout=TIMEOUT
    )
    cases = cases_of(world, device, transport)
    results = {name: case() for name, case in cases.items()}
    if world > 1 and device == "cpu" and rank < world - 1:
        results["dead_rank"] = dead_rank(device)
    torch.save(results, f"{folder}/{rank}.pt")
    os._exit(0)  # without a word to the others


def cases_of(world: int, device: str, transport: str) -> dict:
    """What there is to try with so many ranks, by name."""
    names = GPU if device == "cuda" else EXACT
    cases = {name: functools.partial(exact, name, device) for name in names}
    others = [strided, hidden, autocast, only_the_lse, poisoned, events, refused]
    if device == "cpu":
        others += [kernels] * (world == 2) + [silent_rank] * (world > 1)
    if transport == "gloo":
        others += [subgroup] * (world == 4)
    return cases | {case.__name__: functools.partial(case, device) for case in others}


def dead_rank(device: str) -> dict[str, str]:
    """What the others see of a rank that is gone."""
    try:
        ring.ring_attention(*(ring.shard(x) for x in inputs("causal", device)[:3]))
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": "no error"}


def run(world: int, device: str, folder, transport: str = "gloo") -> list[dict]:
    """The results of all ranks by name of the case; a process that hangs is ended.

    A server that has imported all forks the processes of the CPU; CUDA does not survive a fork.
    """
    context = torch.multiprocessing.get_context("forkserver" if device == "cpu" else "spawn")
    if device == "cpu":
        context.set_forkserver_preload(["flashkit.ring", "numpy"])
    processes = [
        context.Process(
            target=worker, args=(rank, world, device, str(folder), transport), daemon=True
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]
