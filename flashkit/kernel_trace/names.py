"""Which variable of a kernel is m, which l, which acc: by name, by shape, by what it holds."""

import math

import numpy as np
import torch
from torch import Tensor

from flashkit.contracts import require
from flashkit.kernel_trace.recorder import Iteration
from flashkit.online import State

ROLES = ("m", "l", "acc")
MEANING = {
    "m": "the running maximum",
    "l": "the running sum of p",
    "acc": "the running sum of p v",
}
TOLERANCE = 2e-4  # float32 in the kernel, float64 here; a bug that changes less does not show
NOTHING_YET = -1e4  # an m below this says that no key was seen, in whatever way it was started
LOG2E = math.log2(math.e)
_USUAL = {
    "m": ("m", "m_i", "m_run", "row_max", "running_max", "maximum"),
    "l": ("l", "l_i", "l_run", "row_sum", "running_sum", "denominator", "denom"),
    "acc": ("acc", "a", "o", "out", "accumulator", "numerator"),
}


def parse_names(text: str) -> dict[str, str]:
    """The mapping in "m = top, l = total"; ValueError for what is not of this form."""
    found = {}
    for entry in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        role, equals, name = (part.strip() for part in entry.partition("="))
        require(
            role in ROLES and bool(equals) and name.isidentifier(),
            f"write names as in 'm = top, l = total, acc = result', got {entry!r}",
        )
        found[role] = name
    return found


def agrees(role: str, x: Tensor, state: State) -> Tensor:
    """Whether a kernel's m (R,), l (R,) or acc (R, D) is the state's, row by row."""
    right = dict(zip(ROLES, state, strict=True))[role]
    if role == "m":
        close = (x - right).abs() <= TOLERANCE * right.abs().clamp(min=1)
        return torch.where(right == -math.inf, x < NOTHING_YET, close)
    size = TOLERANCE * state.l.clamp(min=1e-6)
    if role == "acc":
        x, right, size = x.flatten(1), right.flatten(1), size[:, None]
    same, finite = (x - right).abs() <= size, torch.isfinite(x)
    if role == "acc":
        same, finite = same.all(-1), finite.all(-1)
    # A row that has seen nothing may hold anything finite: the first real key wipes it out.
    return same | ((state.m == -math.inf) & finite)


class Finder:
    """Looks for the roles among the variables of some steps, right being the reference's states.

    Only what the loop carries from step to step can be one of them.
    """

    def __init__(self, steps: list[Iteration], carried: tuple[str, ...], right: list[State]):
        self.steps, self.right = steps, right
        self.rows, self.width = right[0].a.shape if right else (0, 0)
        self.candidates = {
            role: [name for name in carried if all(self._fits(role, s, name) for s in steps)]
            for role in ROLES
        }

    def taken(self, role: str, step: Iteration, name: str) -> Tensor:
        """A variable's numbers in float64 for the real rows: (R,), or (R, D) for acc."""
        x = torch.from_numpy(step.values[name].astype(np.float64))
        return (x if role == "acc" else x.reshape(-1))[: self.rows]

    def find(self, given: dict[str, str]) -> tuple[dict[str, str], list[str]]:
        """The variable of each role, and a sentence for each that had to be searched for."""
        found, notes = {}, []
        for role, name in given.items():
            require(bool(self.steps) and self._fits(role, self.steps[0], name), self._unfit(role,
                    name))  # fmt: skip
            found[role] = name
        for role in ROLES:
            usual = [name for name in _USUAL[role] if name in self._free(role, found)]
            if role not in found and usual:
                found[role] = usual[0]
        for search, how in (
            (self._by_value, "it equals"),
            (self._only_one, "nothing else can be"),
        ):
            for role in ROLES:
                name = None if role in found else search(role, found)
                if name:
                    found[role] = name
                    notes.append(f"{name} is taken for {role}: {how} {MEANING[role]}.")
        notes += [self._lost(role, found) for role in ROLES if role not in found]
        return {role: found[role] for role in ROLES if role in found}, notes

    def _fits(self, role: str, step: Iteration, name: str) -> bool:
        x = step.values.get(name)
        if x is None or x.dtype.kind != "f" or x.ndim == 0:
            return False
        if role == "acc":
            return x.ndim == 2 and x.shape[0] >= self.rows and x.shape[1] == self.width
        return x.size == x.shape[0] >= self.rows and x.size > 1

    def _free(self, role: str, found: dict[str, str]) -> list[str]:
        return [name for name in self.candidates[role] if name not in found.values()]

    def _by_value(self, role: str, found: dict[str, str]) -> str | None:
        """The variable that is right for the most steps from the first on."""
        counts = {name: self._right_steps(role, name) for name in self._free(role, found)}
        best = max(counts, key=counts.get, default=None)
        return best if best and counts[best] else None

    def _right_steps(self, role: str, name: str) -> int:
        for i, (step, state) in enumerate(zip(self.steps, self.right, strict=True)):
            x = self.taken(role, step, name)
            log2 = role == "m" and agrees(role, x / LOG2E, state).all()
            if not (agrees(role, x, state).all() or log2):
                return i
        return len(self.steps)

    def _only_one(self, role: str, found: dict[str, str]) -> str | None:
        free = self._free(role, found)
        return free[0] if len(free) == 1 else None

    def _lost(self, role: str, found: dict[str, str]) -> str:
        looked = ", ".join(self._free(role, found)) or "none of that shape"
        return (
            f"{role}, {MEANING[role]}, was not found. Looked at what the loop carries from step "
            f"to step: {looked}. If you know it, write '{role} = its name' under names."
        )

    def _unfit(self, role: str, name: str) -> str:
        shape = f"(BLOCK_M, {self.width})" if role == "acc" else "(BLOCK_M,)"
        known = sorted(self.steps[0].values) if self.steps else []
        if name not in known:
            return f"the kernel has no variable {name} with numbers in it, so it cannot be {role}"
        return f"{name} cannot be {role}: {role} has shape {shape} and is a float"


def normal_form(mine: list[dict[str, Tensor]], right: list[State]) -> list[str]:
    """Turn what is right in another form into the usual one, in place; a sentence for each.

    Base 2: m counts in units of log 2 throughout. Divided: acc is kept divided by l throughout,
    as in FlashAttention 1.
    """
    notes = []
    forms = {
        "m": (lambda x, state: x / LOG2E, "m is scaled by log2 e (your kernel uses exp2): "
              "shown here in natural units."),
        "acc": (lambda x, state: x * state.l[:, None], "acc is kept divided by l in every step, "
                "as FlashAttention 1 did: shown here multiplied by l."),
    }  # fmt: skip
    for role, (change, note) in forms.items():
        pairs = [(each[role], state) for each, state in zip(mine, right, strict=True)
                 if role in each]  # fmt: skip
        usual = all(bool(agrees(role, x, state).all()) for x, state in pairs)
        changed = [change(x, state) for x, state in pairs]
        if pairs and not usual and all(
            bool(agrees(role, x, state).all())
            for x, (_, state) in zip(changed, pairs, strict=True)
        ):  # fmt: skip
            for each, x in zip(mine, changed, strict=True):
                each[role] = x
            notes.append(note)
    return notes
