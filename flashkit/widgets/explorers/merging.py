"""Partial softmaxes of neighbouring keys, merged in one of three groupings and drawn as a tree."""

import math
from dataclasses import dataclass

import torch

from flashkit.contracts import require
from flashkit.online import EMPTY, State, finish, merge, update
from flashkit.widgets.panel import Choice, Explorer, Number, Text, numbers
from flashkit.widgets.scene import Lines, Step, Tree
from flashkit.widgets.wording import number

GROUPINGS = ("pairwise", "left to right", "right to left")
MOST_PARTS = 8


@dataclass(frozen=True)
class Node:
    """The state of keys start to stop: a part, or the merge of two earlier nodes."""

    state: State
    start: int
    stop: int
    x: float  # where it is drawn, 0 to 1 from the left
    height: int = 0  # how many merges it is away from its furthest part
    children: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        last = self.stop - 1
        return f"key {last}" if self.start == last else f"keys {self.start}–{last}"

    @property
    def numbers(self) -> tuple[float, float, float]:
        return self.state.m.item(), self.state.l.item(), self.state.a.item()


def cut(scores: list[float], values: list[float], parts: int) -> list[Node]:
    """The keys in `parts` runs as equal as they can be, each with its state in float64."""
    require(len(scores) == len(values), f"{len(scores)} scores, but {len(values)} values")
    most = min(MOST_PARTS, len(scores))
    require(1 <= parts <= most, f"parts must be from 1 to {most}, got {parts}")
    s, v = torch.tensor(scores).double(), torch.tensor(values).double()[:, None]
    nodes, start = [], 0
    for i, keys in enumerate(torch.arange(len(scores)).tensor_split(parts)):
        state = update(EMPTY, s[keys], v[keys])
        x = i / (parts - 1) if parts > 1 else 0.5
        nodes.append(Node(state, start, start + len(keys), x))
        start += len(keys)
    return nodes


def merged(parts: list[Node], grouping: str) -> list[Node]:
    """The parts, then every merge in the order it happens; the last node is the whole."""
    require(grouping in GROUPINGS, f"grouping must be one of {GROUPINGS}, got {grouping!r}")
    nodes, level = list(parts), list(range(len(parts)))
    while len(level) > 1:
        if grouping == "pairwise":
            pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        elif grouping == "left to right":
            pairs = [level[:2], *([i] for i in level[2:])]
        else:
            pairs = [*([i] for i in level[:-2]), level[-2:]]
        level = [pair[0] if len(pair) == 1 else _join(nodes, *pair) for pair in pairs]
    return nodes


def _join(nodes: list[Node], i: int, j: int) -> int:
    """Append the merge of nodes i and j; its place in the list."""
    x, y = nodes[i], nodes[j]
    state, height = merge(x.state, y.state), 1 + max(x.height, y.height)
    nodes.append(Node(state, x.start, y.stop, (x.x + y.x) / 2, height, (i, j)))
    return len(nodes) - 1


def output(node: Node) -> float:
    """O = a / l of the node's keys."""
    return finish(node.state).item()


def tree(title: str, nodes: list[Node], shown: int | None = None, digits: int = 4) -> Tree:
    """Parts at the top, the whole at the bottom: the first `shown` nodes, the last of them lit."""
    height = max(1, nodes[-1].height)
    seen = nodes[:shown]
    drawn = []
    for i, node in enumerate(seen):
        m, l, a = node.numbers
        lines = [node.name, f"m = {m:.4g}".replace("-", "−")]
        lines += [f"l = {number(l, digits)}", f"a = {number(a, digits)}"]
        if node is nodes[-1]:
            lines.append(f"a / l = {number(output(node))}")
        kind = "lit" if i == len(seen) - 1 else "half" if node.children else "plain"
        drawn.append((node.x, node.height / height, "\n".join(lines), kind))
    edges = [(child, i) for i, node in enumerate(seen) for child in node.children]
    return Tree(title, tuple(drawn), tuple(edges))


def merge_steps(
    scores: list[float], values: list[float], parts: int, grouping: str = "pairwise"
) -> list[Step]:
    """The parts, then one step per merge, with the merge rule in numbers."""
    leaves = cut(scores, values, parts)
    nodes = merged(leaves, grouping)
    pieces = "1 part" if parts == 1 else f"{parts} parts"
    sentence = f"{len(scores)} keys in {pieces}: each part has its own m, l and a."
    digits = 4 if parts <= 4 else 2  # eight parts must fit side by side
    rule = ("m = max(m1, m2)", *(f"{x} = e^(m1 − m) {x}1 + e^(m2 − m) {x}2" for x in "la"))
    picture = tree("Parts, then merges", nodes, parts, digits)
    steps = [Step(sentence, (), (Lines("The merge rule", rule), picture))]
    for i in range(parts, len(nodes)):
        steps.append(_merge_step(nodes, i, parts, digits))
    return steps


def _merge_step(nodes: list[Node], i: int, parts: int, digits: int) -> Step:
    node, count, total = nodes[i], i - parts + 1, parts - 1
    left, right = (nodes[child] for child in node.children)
    m, l, a = node.numbers
    (m1, l1, a1), (m2, l2, a2) = left.numbers, right.numbers
    one, two = number(math.exp(m1 - m)), number(math.exp(m2 - m))
    sentence = (
        f"Merge {count} of {total}: {left.name} with {right.name}; against the common maximum "
        f"{number(m)} their factors are {one} and {two}."
    )
    if count == total:
        sentence += f" That is the whole row: O = {number(output(node))}."
    rule = (
        f"m = max({number(m1)}, {number(m2)}) = {number(m)}",
        f"l = {one} × {number(l1)} + {two} × {number(l2)} = {number(l)}",
        f"a = {one} × {number(a1)} + {two} × {number(a2)} = {number(a)}",
        f"a / l = {number(output(node))}",
    )
    facts = tuple((name, number(value)) for name, value in zip("mla", node.numbers, strict=True))
    facts += (("a / l", number(output(node))),)
    picture = tree("Parts, then merges", nodes, i + 1, digits)
    return Step(sentence, facts, (Lines("The merge rule", rule), picture))


def merge_explorer(
    scores: str = "0, 1, 2, -1", values: str = "2, 4, 1, 3", parts: int = 4
) -> Explorer:
    """Parts of one row merged one by one; the reader sets the row, the parts and the grouping."""

    def compute(scores, values, parts, grouping):
        return merge_steps(numbers(scores), numbers(values), parts, grouping)

    controls = [
        Text("scores", "scores", scores),
        Text("values", "values", values),
        Number("parts", "parts", parts, 1, MOST_PARTS),
        Choice("grouping", "grouping", GROUPINGS, GROUPINGS[0]),
    ]
    return Explorer("merge", compute, controls, step_label="step")
