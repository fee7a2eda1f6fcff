"""Call a student's function once and bring back what came of it, as plain data."""

import contextlib

import torch

from flashkit.exercises.errors import explain, is_own
from flashkit.exercises.fence import broken, can_be_fenced, fence
from flashkit.exercises.model import Answer, Inputs, StudentError
from flashkit.exercises.own_work import Watch, watching
from flashkit.exercises.values import leaves, mapped, plain

OUTSIDE = "A store went outside of {}. The mask of tl.store must hide what lies past the end."
NO_LAUNCH = "It launched no @triton.jit function of yours, which is what this exercise asks for."


def call(
    function, inputs: Inputs, device: str = "cpu", cells: dict[str, str] | None = None, own_work=""
) -> Answer:
    """The Answer of function(*inputs), on copies of the inputs that keep their strides.

    own_work says what must be the student's own (see `own_work`); cells maps the files of the
    student's cells to their names.
    """
    watch = Watch(own_work, lambda path: is_own(path, cells))
    given = {name: mapped(_placing(watch, name, device), x) for name, x in inputs.items()}
    gpu = torch.cuda if device == "cuda" else None
    before = _start_peak(gpu)
    try:
        with watching(watch) if own_work else contextlib.nullcontext():
            reply = function(*given.values())
        reply = plain(reply)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit too: it ends the call, not the notebook
        return Answer(error=explain(watch.refused or error, cells))
    memory = (watch.allocated, gpu.max_memory_allocated() - before if gpu else 0)
    if problem := _problem(watch, cells):
        return Answer(error=problem, memory=memory)
    changed = tuple(name for name in inputs if not _same(inputs[name], given[name]))
    return Answer(value=reply, changed=changed, memory=memory)


def _placing(watch: Watch, name: str, device: str):
    """Copies a tensor of the input to the device, with its strides, inside a fence."""

    def placed(x: torch.Tensor) -> torch.Tensor:
        if not can_be_fenced(x):
            return x.to(device)
        copy, around = fence(x, f"the input {name}", len(watch.fences), device=device)
        watch.fences.append(around)
        return copy

    return placed


def _start_peak(gpu) -> int:
    """Bytes in use on the GPU before the call, from where its peak is measured."""
    if not gpu:
        return 0
    gpu.reset_peak_memory_stats()
    return gpu.memory_allocated()


def _problem(watch: Watch, cells: dict[str, str] | None) -> StudentError | None:
    """What is wrong with how the reply was made."""
    if watch.refused:
        return explain(watch.refused, cells)
    if places := broken(watch.fences):
        return StudentError("OutOfBounds", OUTSIDE.format(places[0]))
    if watch.own_work == "kernel" and not watch.launches:
        return StudentError("NotAllowed", NO_LAUNCH)
    return None


def _same(before, after) -> bool:
    pairs = zip(leaves(before), leaves(after), strict=True)
    return all(
        not isinstance(x, torch.Tensor) or (x.shape == y.shape and torch.equal(x, y.cpu()))
        for (_, x), (_, y) in pairs
    )
