"""Talking to the other ranks: what all must agree on, and passing tensors round the ring."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flashkit.contracts import require


class Transfer(NamedTuple):
    """Tensors on their way: `leaving` must be neither freed nor written before `wait`."""

    works: list
    leaving: list[Tensor]
    coming: list[Tensor]
    device: torch.device

    def wait(self) -> tuple[Tensor, ...]:
        """What came, once all has come and gone; RuntimeError when the group's timeout is over.

        On a GPU it is the stream that waits, not the host.
        """
        for work in self.works:
            work.wait()
        return tuple(x.to(self.device) for x in self.coming)


class Ring:
    """This process's place in a group: it receives from the rank before, sends to the next."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        require(
            dist.is_available() and dist.is_initialized(),
            "ring attention needs a process group: start the processes with torchrun and call "
            "torch.distributed.init_process_group in each",
        )
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        require(self.rank >= 0, "this process is not in the given group")

    def agree(self, describe: Callable[[], dict]) -> dict:
        """describe() of this rank, if it is that of all; else the same ValueError on all of them.

        A rank that raised alone would leave the others waiting for it, so its ValueError travels
        too. With one rank nothing is sent.
        """
        try:
            mine = describe()
        except ValueError as error:
            mine = error
        everyone = [mine] * self.world
        if self.world > 1:
            dist.all_gather_object(everyone, mine, self.group)
        for rank, other in enumerate(everyone):
            if isinstance(other, ValueError):
                raise ValueError(f"rank {rank}: {other}")
        for name in mine:
            values = [other[name] for other in everyone]
            if len(set(values)) > 1:
                found = ", ".join(str(value) for value in values)
                raise ValueError(f"{name} must be the same on all {self.world} ranks, got {found}")
        return mine

    def send(self, *tensors: Tensor) -> Transfer:
        """Start sending these to the next rank, and receiving as many from the one before.

        Both are posted as one batch: a rank that only sent first could wait for ever for one that
        does the same. What comes is written to new memory, never over what is still leaving.
        """
        device = tensors[0].device
        if self.world == 1:
            return Transfer([], [], list(tensors), device)
        # gloo carries the host's memory only
        home = torch.device("cpu") if dist.get_backend(self.group) == "gloo" else device
        leaving = [x.to(home).contiguous() for x in tensors]
        coming = [torch.empty_like(x) for x in leaving]
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        posts = [dist.P2POp(dist.isend, x, group=self.group, group_peer=after) for x in leaving]
        posts += [dist.P2POp(dist.irecv, x, group=self.group, group_peer=before) for x in coming]
        return Transfer(dist.batch_isend_irecv(posts), leaving, coming, device)

    def travel(self, *tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Each rank's tensors with its number, one's own first, then those of the ranks before.

        While the caller computes with the one, the next is on its way.
        """
        for step in range(self.world):
            arriving = self.send(*tensors) if step + 1 < self.world else None
            yield (self.rank - step) % self.world, tensors
            if arriving:
                tensors = arriving.wait()
