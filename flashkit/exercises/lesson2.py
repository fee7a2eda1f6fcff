"""Lesson 2, online softmax for all rows, and the memory that it saves."""

import functools

import torch

from flashkit import runtime
from flashkit.diagnosis import attention_with
from flashkit.exercises import inputs as make
from flashkit.exercises import oracle, probes
from flashkit.exercises.judge import failed, judge_attention, malformed, passed, whole
from flashkit.exercises.model import Case, CaseResult, Exercise, Inputs
from flashkit.exercises.questions import question
from flashkit.exercises.values import describe
from flashkit.faults import RECIPES
from flashkit.memory import peak_bytes
from flashkit.online import online_attention
from flashkit.reference import causal_attention

LESSON = "02_online_softmax"
TOLERANCE = 0.15
_DEFAULT = {"query_positions": None, "key_positions": None}
_KINDS = ("exact", "online")
_IN_KERNELS = (
    *(fault for fault in RECIPES if fault.startswith(("window", "bound", "query_offset"))),
    *("blocks_confused", "k_transposed", "strides_assumed", "batch_and_head_swapped"),
    *("load_without_mask", "rows_not_written", "head_width_fixed", "offset_reversed"),
    *("padded_keys_counted", "causal_top_left", "diagonal_tile_skipped", "max_over_rows"),
)
TORCH_FAULTS = tuple(fault for fault in RECIPES if fault not in _IN_KERNELS)
"""The bugs that a PyTorch function without a window can have."""


def tiled(tile: int) -> dict:
    """The args of a case with default positions."""
    return {**_DEFAULT, "tile": tile}


def _online_calls(case: Case, seed: int) -> list[Inputs]:
    q, k, v = make.qkv(case, seed)
    positions = POSITIONS[case.params.get("positions", "default")](q, k)
    call = {"q": q, "k": k, "v": v, **case.args, **positions}
    return make.with_relation(case, [call])


def _reversed_keys(q, k):
    """The newest key first: early tiles hold only keys that many rows may not see."""
    s = k.shape[2]
    return {"key_positions": torch.arange(s - 1, -1, -1)}


def _per_batch(q, k):
    """Another offset for each sequence of the batch, (B, T)."""
    batch, t, s = q.shape[0], q.shape[2], k.shape[2]
    starts = torch.linspace(0, s - t, batch).long()
    return {"query_positions": starts[:, None] + torch.arange(t)}


def _before_all(q, k):
    """Row 0 stands before every key."""
    return {"query_positions": torch.arange(q.shape[2]) - 1}


POSITIONS = {
    "default": lambda q, k: {},
    "reversed_keys": _reversed_keys,
    "per_batch": _per_batch,
    "before_all": _before_all,
}


def _faulty(fault: str, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    """The bug with tiles of keys as given."""
    q, k, v = (inputs[name] for name in "qkv")
    places = oracle.query_positions(inputs), oracle.key_positions(inputs)
    tiles = {"block_m": q.shape[2], "block_n": inputs["tile"]}
    outputs = attention_with(fault, q, k, v, **tiles, positions=places)
    return [x.to(q.dtype) for x in outputs]


@functools.cache
def measured(t: int) -> tuple[int, int]:
    """Peak bytes of exact and online attention at T = S = t, D = 64, float32, tile 64."""
    q = torch.zeros(1, 1, t, 64, device=runtime.device())
    return peak_bytes(causal_attention, q, q, q), peak_bytes(online_attention, q, q, q, tile=64)


def _judge_memory(exercise: Exercise, case: Case, inputs: Inputs, value) -> CaseResult:
    got = [whole(x) for x in value] if isinstance(value, (tuple, list)) else []
    if len(got) != 2 or None in got:
        return malformed(exercise, case, describe(value))
    for name, bytes_got, bytes_want in zip(_KINDS, got, measured(inputs["t"]), strict=True):
        if abs(bytes_got - bytes_want) > TOLERANCE * bytes_want:
            message = f"{name} attention at t = {inputs['t']} takes about {bytes_want} bytes"
            return failed(
                case, f"{message}, got {bytes_got}.", wanted=str(bytes_want), got=str(bytes_got)
            )
    return passed(case)


EXERCISES = (
    Exercise(
        id="online_attention",
        lesson=LESSON,
        title="Online attention for all rows",
        function="online_attention",
        own_work="torch",
        points=8,
        signature="online_attention(q, k, v, query_positions=None, key_positions=None, tile=16)",
        returns="o (B, Hq, T, D) in q's dtype",
        public=(
            Case(
                "T = S, several tiles",
                "l or a that is not rescaled from one tile to the next",
                {"B": 2, "Hq": 2, "Hkv": 2, "T": 24, "S": 24},
                tiled(8),
            ),
            Case(
                "T < S and a ragged last tile",
                "a mask that forgets the offset S - T, or a last tile that is not visited",
                {"Hq": 4, "Hkv": 2, "T": 5, "S": 21},
                tiled(8),
            ),
            Case(
                "keys in reverse order",
                "NaN in rows that have seen no key yet",
                {"T": 12, "S": 12, "positions": "reversed_keys"},
                tiled(4),
            ),
            Case(
                "a row that never sees a key",
                "an undefined result that is handed back as if it were one",
                {"T": 4, "S": 4, "positions": "before_all", "raises": "ValueError"},
                tiled(4),
            ),
        ),
        build=_online_calls,
        judge=judge_attention,
        faults=TORCH_FAULTS,
        faulty=_faulty,
        probes=probes.attention(tiled(8)),
    ),
    Exercise(
        id="memory_saved",
        lesson=LESSON,
        title="Memory, measured",
        function="memory_saved",
        points=3,
        signature="memory_saved(t) -> (exact_bytes, online_bytes)",
        returns="two integers (exact_bytes, online_bytes)",
        public=(Case("t = 256", "bytes computed for another shape or dtype", {}, {"t": 256}),),
        build=lambda case, seed: [dict(case.args)],
        judge=_judge_memory,
    ),
    question(3, LESSON, "Which does FlashAttention reduce: arithmetic, memory, or both?"),
)
