"""Tells a fault of the machine from a fault of the student: known work, in the same jail.

A fresh worker does it before it sees any cell, so also after a case that has cost a process. If
it fails, the check is tried once more and then not judged: the student pays nothing.
"""

import torch

from flashkit.exercises.calling import call


def trouble(device: str, kernels: bool) -> str:
    """What does not work here, or ""; kernels says whether Triton is needed."""
    try:
        x = torch.arange(12.0, device=device).reshape(3, 4)
        if (x @ x.mT).sum().item() != 1134.0:
            return "torch multiplies two small matrices wrongly"
        refused = call(lambda x: torch.softmax(x, 0), {"x": x.cpu()}, device, {}, "torch").error
        if refused is None or refused.type != "NotAllowed":
            return f"what is not allowed in an answer is not seen: {refused}"
        if kernels:
            return _kernels(device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _kernels(device: str) -> str:
    from flashkit.kernels import selftest  # loads Triton, which not every exercise needs

    if selftest.unwritten(device):
        return "a Triton kernel that copies six numbers does not"
    # Some pairs of Triton and NumPy cannot interpret a loop; compiling it costs a GPU too much.
    wrong = selftest.miscounted(device) if device == "cpu" else []
    return f"Triton counts wrongly in {', '.join(wrong)}" if wrong else ""
