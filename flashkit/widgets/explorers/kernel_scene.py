"""A step of a recorded kernel beside the reference as sentence, facts and panels."""

import math

import torch
from torch import Tensor

from flashkit.faults import FAULTS
from flashkit.kernel_trace import ROLES, Comparison
from flashkit.online import State
from flashkit.widgets.scene import Bars, Cells, Lines, Step
from flashkit.widgets.wording import number as plain

SHOWN = 4  # components of acc; a wrong one is always among them
LOOK_AT = {
    "m": "compare the line that updates m with m = max(m, max(s)), and the mask and scale of s",
    "l": "compare the line that updates l with l = alpha * l + sum(p)",
    "acc": "compare the line that updates acc with acc = alpha * acc + p @ v",
}


def number(value: float, digits: int = 4) -> str:
    """A number as the lessons print it; with a power of ten where that says nothing."""
    if math.isnan(value):
        return "NaN"
    if value == 0 or math.isinf(value) or 10.0**-digits <= abs(value) < 1e5:
        return plain(value, digits)
    return f"{value:.2e}".replace("-", "−")


def tile_step(found: Comparison, i: int, row: int) -> Step:
    """Tile i of one row of the query tile."""
    keys = _keys(found, i)
    wrong = [role for role, bad in found.wrong[i].items() if bool(bad[row])]
    said = f"Tile {i + 1}, {span(keys)}: "
    said += _differs(found, i, row, wrong) if wrong else _agrees(found, i, row)
    notes = (Lines("Names", found.notes),) if found.notes else ()
    facts = (
        ("tile", f"{i + 1} of {len(found.tiles)}"),
        ("keys", span(keys).removeprefix("keys ").removeprefix("key ")),
        ("verdict", f"{_listed(wrong)} {'differ' if len(wrong) > 1 else 'differs'}"
         if wrong else "agrees"),
        *_facts(found, i, row),
    )  # fmt: skip
    panels = (_scores(found, i, row), _table(found, i, row), _formula(found, i, row), *notes)
    return Step(said, facts, panels)


def span(keys) -> str:
    """Consecutive keys as words."""
    if len(keys) == 0:
        return "no key of k"
    return f"key {keys[0]}" if len(keys) == 1 else f"keys {keys[0]} to {keys[-1]}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _keys(found: Comparison, i: int) -> range:
    """The real keys of a tile."""
    keys = found.tiles[i]
    return range(max(keys.start, 0), min(keys.stop, len(found.problem.k)))


def _before(found: Comparison, i: int, row: int) -> State:
    """The right state of the row before tile i."""
    if i:
        return State(*(x[row] for x in found.right[i - 1]))
    a = torch.zeros_like(found.right[0].a[row])
    return State(torch.tensor(-math.inf).double(), torch.tensor(0.0).double(), a)


def _agrees(found: Comparison, i: int, row: int) -> str:
    old, new = _before(found, i, row).m.item(), found.right[i].m[row].item()
    names = [role for role in ROLES if role in found.mine[i]]
    if new == -math.inf:
        return "this row sees none of these keys, so nothing is added yet."
    moved = (
        f"m rises from {number(old)} to {number(new)}" if new > old else f"m stays {number(new)}"
    )
    if not names:
        return f"{moved} in the reference; none of your variables was found to compare with it."
    verb = "are" if len(names) > 1 else "is"
    return f"{moved}; your {_listed(names)} {verb} right."


def _differs(found: Comparison, i: int, row: int, wrong: list[str]) -> str:
    said = " ".join(_difference(role, *_pair(found, i, row, role)) for role in wrong)
    faults = [FAULTS[fault] for fault in found.faults(i)]
    if len(faults) > 2:  # the inputs cannot tell them apart
        faults = []
    reason = f"Either: {' Or: '.join(faults)}" if len(faults) > 1 else "".join(faults)
    reason = reason or _reach(found, i, row) or f"To mend it, {LOOK_AT[wrong[0]]}."
    others = [role for role in found.mine[i] if role not in wrong]
    right = f" {_listed(others)} {'are' if len(others) > 1 else 'is'} right." if others else ""
    return f"{said}{right} {reason} The run stops here."


def _reach(found: Comparison, i: int, row: int) -> str:
    """The mask or the bound as the cause, where the values are right for other keys; else ""."""
    n = found.reach(i, row)
    if n is None:
        return ""
    first, last = found.tiles[i].start, found.problem.offset + found.problem.rows[row]
    seen = range(first, min(last + 1, found.tiles[i].stop, len(found.problem.k)))
    mine, right = (span(keys) if len(keys) else "no key" for keys in (range(first, n), seen))
    return (
        f"Of this tile your values count {mine}, but the row sees {right}: look at the mask and "
        "at where the loop stops."
    )


def _pair(found: Comparison, i: int, row: int, role: str) -> tuple[Tensor, Tensor]:
    """A variable of the row as the kernel has it and as it should be."""
    return found.mine[i][role][row], getattr(found.right[i], role[0])[row]


def _difference(role: str, mine: Tensor, right: Tensor) -> str:
    """In words how far a wrong variable is off; of acc its worst component."""
    name = role
    if role == "acc":
        worst = int((mine - right).abs().nan_to_num(nan=math.inf).argmax())
        name, mine, right = f"acc[{worst}]", mine[worst], right[worst]
    x, y = mine.item(), right.item()
    said = f"{role} differs: your {name} is {number(x)}, right is {number(y)}"
    if role == "m" or not math.isfinite(x) or x == 0 or y == 0 or x / y < 0:
        return f"{said}."
    ratio = abs(x / y)
    size = "large" if ratio > 1 else "small"
    exponent = f"e^({number(math.log(ratio), 2)})"
    return f"{said}, too {size} by a factor of {number(ratio, 3)} = {exponent}."


def _facts(found: Comparison, i: int, row: int):
    """m, l and the first component of acc, as the kernel has them and as they should be."""
    for role in ROLES:
        right = getattr(found.right[i], role[0])[row].reshape(-1)[0].item()
        name = "acc[0]" if role == "acc" else role
        mine = "not found"
        if role in found.mine[i]:
            mine = number(found.mine[i][role][row].reshape(-1)[0].item())
        yield f"your {name}", mine
        yield f"right {name}", number(right)


def _scores(found: Comparison, i: int, row: int) -> Bars:
    """All scores of the row, this tile's lit, the right m as a line."""
    s = len(found.problem.k)
    scores = found.problem.scores(range(s))[row].tolist()
    here, past = set(_keys(found, i)), {j for keys in found.tiles[:i] for j in keys}
    seen = [score > -math.inf for score in scores]
    kinds = ["lit" if j in here else "plain" if j in past else "dim" for j in range(s)]
    drawn = [score if ok else 0.0 for score, ok in zip(scores, seen, strict=True)]
    m = found.right[i].m[row].item()
    return Bars(
        f"Scores of query row {found.problem.rows[row]}; the tile is lit, hidden keys have no bar",
        labels=tuple(str(j) for j in range(s)),
        values=tuple(drawn),
        kinds=tuple("dim" if not ok else kind for kind, ok in zip(kinds, seen, strict=True)),
        texts=("",) * s,
        line=m if math.isfinite(m) else None,
        line_text=f"m = {number(m)}" if math.isfinite(m) else "",
        low=min(*drawn, 0.0),
        high=max(*drawn, 0.0),
    )


def _table(found: Comparison, i: int, row: int) -> Cells:
    """m, l and some of acc: the kernel's, the reference's, and whether they agree."""
    lines = []
    for role in ROLES:
        right = getattr(found.right[i], role[0])[row].reshape(-1)
        mine = found.mine[i][role][row].reshape(-1) if role in found.mine[i] else None
        bad = mine is not None and bool(found.wrong[i][role][row])
        name = found.names.get(role, role)
        for j in _components(mine if bad else None, right):
            label = f"{name}[{j}]" if role == "acc" else name
            label += f" ({role})" if name != role else ""
            lines.append((label, None if mine is None else mine[j].item(), right[j].item(), bad))
    texts, kinds = [], []
    for _, mine, right, bad in lines:
        sign = "not found" if mine is None else "✗ differs" if bad else "✓"
        texts.append(("?" if mine is None else number(mine), number(right), sign))
        kind = "dim" if mine is None else "wrong" if bad else "good"
        kinds.append((kind, "plain", kind))
    return Cells(
        "Your variables beside the reference",
        rows=tuple(line[0] for line in lines),
        columns=("yours", "right", "agrees"),
        kinds=tuple(kinds),
        texts=tuple(texts),
    )


def _components(mine: Tensor | None, right: Tensor) -> list[int]:
    """The first components, and the worst one in the place of the last."""
    shown = list(range(min(SHOWN, len(right))))
    if mine is None or len(right) <= SHOWN:
        return shown
    worst = int((mine - right).abs().nan_to_num(nan=math.inf).argmax())
    return shown if worst in shown else [*shown[:-1], worst]


def _formula(found: Comparison, i: int, row: int) -> Lines:
    """The update with its right numbers, and the kernel's own l where that differs."""
    old, new = _before(found, i, row), State(*(x[row] for x in found.right[i]))
    m_old, m, l_old, l = old.m.item(), new.m.item(), old.l.item(), new.l.item()
    alpha = math.exp(m_old - m) if math.isfinite(m) else 0.0
    added = l - alpha * l_old
    lines = [
        f"alpha = exp(m_old - m)         = exp({number(m_old)} - {number(m)}) = {number(alpha)}",
        f"l     = alpha * l_old + sum(p) = {number(alpha)} * {number(l_old)} + {number(added)}"
        f" = {number(l)}",
    ]
    kinds = ["plain", "plain"]
    if "l" in found.mine[i] and bool(found.wrong[i]["l"][row]):
        before = found.mine[i - 1]["l"][row].item() if i else 0.0
        mine = found.mine[i]["l"][row].item()
        lines.append(f"yours: l went from {number(before)} to {number(mine)} ✗")
        kinds.append("wrong")
    return Lines("The update with its numbers", tuple(lines), tuple(kinds))


def end_step(said: str, found: Comparison | None = None, row: int = 0, wrong: bool = True) -> Step:
    """The step after the last tile, or instead of all tiles where nothing could be compared."""
    tiles = len(found.tiles) if found else 0
    facts = [("tile", f"after {tiles}"), ("verdict", "stopped" if wrong else "agrees")]
    if not tiles:
        return Step(said, tuple(facts), ())
    panels = (_scores(found, tiles - 1, row), _table(found, tiles - 1, row))
    notes = (Lines("Names", found.notes),) if found.notes else ()
    return Step(said, (*facts, *_facts(found, tiles - 1, row)), (*panels, *notes))
