"""How much memory a call needs beyond what it is given: the chapter's first stretch exercise."""

import gc
import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashkit import runtime


def peak_bytes(fn: Callable, *args, **kwargs) -> int:
    """The most bytes of new tensors alive at once while fn(*args, **kwargs) runs.

    On a GPU this is the rise of torch.cuda.max_memory_allocated(); on the CPU every storage that
    an operation returns is counted from its birth to its death. Scratch space inside a single
    operation is seen on the GPU only. Arguments do not count, results do.
    """
    return (_peak_on_cpu if runtime.device() == "cpu" else _peak_on_gpu)(fn, *args, **kwargs)


def training_bytes(attend: Callable, q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> int:
    """The most bytes of new tensors alive at once in attend(q, k, v) and its backward from do.

    They hold what the forward leaves to the backward, and the gradients of q, k and v.
    """

    def step() -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attend(*leaves), leaves, do)

    return peak_bytes(step)


def _peak_on_gpu(fn: Callable, *args, **kwargs) -> int:
    fn(*args, **kwargs)  # a library's first call allocates a workspace, which then stays
    gc.collect()  # what a compiler left in cycles would else be freed while the second call runs
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fn(*args, **kwargs)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_on_cpu(fn: Callable, *args, **kwargs) -> int:
    known = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)}
    with _Allocations(known) as allocations:
        fn(*args, **kwargs)
    return allocations.peak


class _Allocations(TorchDispatchMode):
    """Counts the storages that operations return, until they are freed."""

    def __init__(self, known: set[int]):
        super().__init__()
        self.known, self.alive, self.peak = known, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if torch.is_tensor(x):
                self._add(x.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size
