"""Attention you computed: with V = identity a kernel's output is its attention matrix."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import flashkit
from flashkit import runtime
from flashkit.contracts import check_positive, require
from flashkit.diagnosis import diagnose
from flashkit.exercises.values import describe
from flashkit.faults import FAULTS
from flashkit.reference import causal_attention
from flashkit.widgets.explorers.learner import listed, trouble
from flashkit.widgets.panel import Choice, Explorer, Number
from flashkit.widgets.scene import Cells, Step

D = 64  # keys that fit: V is the first S rows of the identity of this size
MOST_ROWS = 64
LIMIT = 1e-4  # float32 stays far below, TF32 does not


class _Run(NamedTuple):
    """Two attention matrices (T, S) in float64, who computed the first, and what went wrong."""

    got: Tensor
    want: Tensor
    whose: str
    said: str
    bug: str

    @property
    def error(self) -> Tensor:
        """How far the two differ; what is not finite is infinitely wrong."""
        return (self.got - self.want).abs().nan_to_num(nan=math.inf)


class _Tile(NamedTuple):
    """One tile of the matrix: its place, whether it is wrong, which of the two hold only zeros."""

    i: int
    j: int
    wrong: bool
    no_got: bool
    no_want: bool

    @property
    def sign(self) -> str:
        """What became of it; a tile that was left out is wrong as well."""
        if self.wrong:
            return "−" if self.no_got else "✗"
        return "·" if self.no_got and self.no_want else "✓"


def attention_steps(
    kernel: Callable | None, t: int = 40, s: int = 48, block_m: int = 16, block_n: int = 16,
    query_offset: int | None = None,
) -> list[Step]:  # fmt: skip
    """One step per query tile: what the kernel computed, what is right, and the difference.

    kernel(q, k, v, query_offset=, block_m=, block_n=) is called once in float32 with one head,
    D = 64 and V = identity; None is flashkit's own, which also stands in for a kernel that raises.
    Raises ValueError for T or S beyond 64.
    """
    for name, size, most in (("T", t, MOST_ROWS), ("S", s, D)):
        check_positive(name, size)
        require(size <= most, f"{name} must be at most {most}, got {size}")
    check_positive("block_m", block_m)
    check_positive("block_n", block_n)
    run = _run(kernel, t, s, block_m, block_n, s - t if query_offset is None else query_offset)
    tiles = [
        [_tile(run, i, j, block_m, block_n) for j in range(math.ceil(s / block_n))]
        for i in range(math.ceil(t / block_m))
    ]
    return [_step(i, run, tiles, block_m, block_n) for i in range(len(tiles))]


def attention_explorer(
    kernel: Callable | None = None, t: int = 40, s: int = 48, block_m: int = 16, block_n: int = 16,
    *, name: str = "attention you computed",
) -> Explorer:  # fmt: skip
    """The attention matrix of the learner's kernel, or of flashkit's, beside the right one."""
    kernels = {"yours": kernel, "flashkit's": None}
    if kernel is None:
        del kernels["yours"]

    def compute(whose, t, s, offset):
        return attention_steps(kernels[whose], t, s, block_m, block_n, offset)

    controls = [
        Choice("whose", "kernel", list(kernels), next(iter(kernels))),
        Number("t", "T", t, 1, MOST_ROWS),
        Number("s", "S", s, 1, D),
        Number("offset", "offset", s - t, -MOST_ROWS, 2 * D),
    ]
    return Explorer(name, compute, controls, step_label="step")


def _run(kernel, t: int, s: int, block_m: int, block_n: int, offset: int) -> _Run:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, n, D, generator=generator) for n in (t, s))
    inputs = tuple(x.to(runtime.device()) for x in (q, k, torch.eye(s, D)[None, None]))
    blocks = {"query_offset": offset, "block_m": block_m, "block_n": block_n}
    o, said = None, ""
    if kernel is not None:
        o, said = _called(kernel, inputs, blocks)
    whose = "flashkit's kernel" if o is None else "your kernel"
    o = flashkit.flash_attention(*inputs, **blocks) if o is None else o
    want = _right(q, k, inputs[2].cpu(), offset)
    run = _Run(o.detach().cpu()[0, 0, :, :s].double(), want[:, :s], whose, said, "")
    if offset < 0 or not bool((run.error > LIMIT).any()):
        return run
    bug = diagnose(q, k, inputs[2].cpu(), offset, None, block_m, block_n, got=o.detach().cpu())
    return run._replace(bug="" if bug is None else bug)


def _called(kernel, inputs: tuple, blocks: dict) -> tuple[Tensor | None, str]:
    """The learner's output, or None and why there is none."""
    instead = "Below is flashkit's kernel instead: write yours and run this cell again."
    try:
        o = kernel(*(x.clone() for x in inputs), **blocks)
    except Exception as error:  # whatever it raises is the learner's to read
        return None, f"{trouble('kernel', error)} {instead}"
    shape = inputs[0].shape
    if not isinstance(o, Tensor) or o.shape != shape:
        wanted = f"a tensor of shape {tuple(shape)}"
        return None, f"Your kernel returned {describe(o)} instead of {wanted}. {instead}"
    return o, ""


def _right(q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    """Exact attention (T, D) in float64; 0 where a row sees no key."""
    positions = offset + torch.arange(q.shape[2])
    seeing = positions >= 0
    want = torch.zeros(q.shape[2], D, dtype=torch.float64)
    if bool(seeing.any()):
        q, k, v = q[:, :, seeing].double(), k.double(), v.double()
        want[seeing] = causal_attention(q, k, v, positions[seeing])[0, 0]
    return want


def _tile(run: _Run, i: int, j: int, block_m: int, block_n: int) -> _Tile:
    here = slice(i * block_m, (i + 1) * block_m), slice(j * block_n, (j + 1) * block_n)
    nothing = (not bool(matrix[here].any()) for matrix in (run.got, run.want))
    return _Tile(i, j, bool((run.error[here] > LIMIT).any()), *nothing)


def _step(i: int, run: _Run, tiles: list[list[_Tile]], block_m: int, block_n: int) -> Step:
    rows = range(i * block_m, min((i + 1) * block_m, len(run.got)))
    here = slice(rows.start, rows.stop)
    bad = next((tile for row in tiles for tile in row if tile.wrong), None)
    facts = [
        ("query tile", f"{i} (of 0 to {len(tiles) - 1})"),
        ("rows", f"{rows[0]} to {rows[-1]}"),
        ("row sums", _sums(run.got[here])),
        ("right row sums", _sums(run.want[here])),
        ("largest difference", _amount(float(run.error[here].max()))),
        ("first wrong tile", f"({bad.i}, {bad.j})" if bad else "none"),
    ]
    if run.bug:
        facts.append(("looks like", run.bug))
    got, want = run.got[here], run.want[here]
    error = torch.where(run.error[here] > LIMIT, run.error[here], 0.0)  # rounding is no news
    top = float(want.max()) or 1.0
    most = float(error.nan_to_num(posinf=0.0).max())
    panels = (
        _overview(i, tiles),
        _strip(f"computed by {run.whose}", got / top, rows, block_n),
        _strip("right", want / top, rows, block_n),
        _strip("difference, the largest outlined", error / (most or 1.0), rows, block_n, True),
    )
    sentence = _sentence(i, rows, run, tiles, bad)
    return Step(sentence, tuple(facts), panels)


def _sentence(i: int, rows: range, run: _Run, tiles: list[list[_Tile]], bad) -> str:
    said = f"{run.said} " if run.said else ""
    said += f"Query tile {i}, rows {rows[0]} to {rows[-1]}: {run.whose} "
    wrong, left = ([x.j for x in tiles[i] if x.sign == sign] for sign in "✗−")
    if not wrong and not left:
        said += "is right in every key tile."
        return f"{said} The first wrong one is in query tile {bad.i}." if bad else said
    faults = [f"is wrong in key {listed(wrong)}"] if wrong else []
    faults += [f"leaves out key {listed(left)}"] if left else []
    error = run.error[rows.start : rows.stop]
    row, key = divmod(int(error.argmax()), error.shape[1])
    amount = _amount(float(error.max()))
    said += f"{' and '.join(faults)}; the largest difference is {amount}, "
    said += f"at query {rows.start + row}, key {key}. "
    said += f"The first wrong tile is query tile {bad.i}, key tile {bad.j}."
    told = bool(run.bug) and i == bad.i  # once is enough
    return f"{said} It looks like {run.bug}: {FAULTS[run.bug]}" if told else said


def _overview(i: int, tiles: list[list[_Tile]]) -> Cells:
    """One cell a tile; query tile i is marked."""
    shown = {"✗": "wrong", "−": "wrong", "·": "dim", "✓": "good"}
    signs = tuple(tuple(tile.sign for tile in row) for row in tiles)
    return Cells(
        "tiles: ✓ right, ✗ wrong, − left out, · skipped",
        rows=tuple(f"▶ {r}" if r == i else str(r) for r in range(len(tiles))),
        columns=tuple(str(j) for j in range(len(tiles[0]))),
        kinds=tuple(tuple(shown[sign] for sign in row) for row in signs),
        texts=signs,
    )


def _strip(title: str, shares: Tensor, rows: range, block_n: int, outlined: bool = False) -> Cells:
    """The rows of one query tile, shaded by their shares of the largest right entry.

    A shade is the root of a share, so that small weights show as well. What is not finite is as
    dark as can be.
    """
    columns = range(shares.shape[1])
    kinds = [["plain"] * len(columns) for _ in rows]
    worst = shares.nan_to_num(nan=math.inf)
    if outlined and bool(worst.any()):
        row, column = divmod(int(worst.argmax()), len(columns))
        kinds[row][column] = "wrong"
    shades = shares.nan_to_num(nan=1.0).clamp(0.0, 1.0).sqrt().tolist()
    return Cells(
        title,
        rows=tuple(str(row) if row == rows[0] else "" for row in rows),
        columns=tuple(str(key) if key % block_n == 0 else "" for key in columns),
        kinds=tuple(map(tuple, kinds)),
        texts=(("",) * len(columns),) * len(rows),
        shades=tuple(tuple(round(x, 3) for x in row) for row in shades),
        border=(0, block_n),
    )


def _sums(matrix: Tensor) -> str:
    """The sums of the rows: one number where all are the same, else the range."""
    sums = matrix.sum(-1)
    if not bool(torch.isfinite(sums).all()):
        return "not all finite"
    low, high = f"{float(sums.min()):.4f}", f"{float(sums.max()):.4f}"
    return low if low == high else f"{low} to {high}"


def _amount(error: float) -> str:
    """A difference in three digits; below the limit it is rounding, which differs by machine."""
    if error <= LIMIT:
        return f"below {LIMIT:g}"
    return f"{error:.3g}" if math.isfinite(error) else "not a finite number"
