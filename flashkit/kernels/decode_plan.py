"""How the tuned decode kernel is launched: sizes of a tile, stages, splits, by a measured model.

A unit is the work that shares its keys: one batch entry, one KV head, and as many of its query
heads as a program takes. Splits cut the keys of a unit.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from flashkit import runtime
from flashkit.contracts import Dims
from flashkit.cost import DEVICES, decode_splits

THREADS, SM_REGISTERS = 128, 65536
"""Four warps a program, all that the small tiles of one query can feed; 32-bit registers an SM."""
MAX_SPLITS = 128
"""What one program of the merge holds at once."""


class Tile(NamedTuple):
    """What a program holds at a time: query heads, and keys with their bytes of K and V."""

    block_g: int
    block_n: int
    bytes: int


class Plan(NamedTuple):
    """Settings of one launch; registers a thread may use, None for what the compiler likes."""

    block_g: int
    block_n: int
    stages: int
    num_splits: int
    registers: int | None = None


class Pipeline(NamedTuple):
    """A depth of the loads: programs that fit on an SM, microseconds of a tile alone on one."""

    stages: int
    resident: int
    alone: float


@dataclass(frozen=True)
class Model:
    """Readings of one device, in microseconds and bytes.

    launch     a call that reads nothing: start, first loads, merge
    rate       bytes a microsecond of the memory
    sm_rate    bytes a microsecond of one busy SM
    split      each further split, paid in the merge
    pipelines  the numbers of stages to choose from
    """

    launch: float
    rate: float
    sm_rate: float
    split: float
    pipelines: tuple[Pipeline, ...]


HOPPER = Model(
    launch=3.85, rate=4.56e6, sm_rate=51.2e3, split=0.053,
    pipelines=(Pipeline(3, 3, 0.79), Pipeline(2, 4, 1.63), Pipeline(4, 2, 0.68)),
)  # fmt: skip
"""An H200, fitted to timings of keys 1k to 512k, batch 1 to 64, splits 1 to 66: 3.8 % rms."""


def predicted_us(
    model: Model,
    sms: int,
    units: int,
    tiles: int,
    tile_bytes: int,
    pipeline: Pipeline,
    num_splits: int,
) -> float:
    """Microseconds of a decode step whose units read `tiles` tiles each.

    The limit is the memory, which streams all bytes, or the longest chain: waves of programs,
    times the tiles of a split, times a tile, alone or shared. Fifth powers smooth the maximum.
    """
    programs, places = units * num_splits, sms * pipeline.resident
    together = math.ceil(min(programs, places) / sms)
    tile = max(pipeline.alone, together * tile_bytes / model.sm_rate)
    chain = math.ceil(programs / places) * math.ceil(tiles / num_splits) * tile
    stream = units * tiles * tile_bytes / model.rate
    return model.launch + (stream**5 + chain**5) ** 0.2 + model.split * num_splits


def tile_of(dims: Dims, itemsize: int, page: int = 0) -> Tile:
    """A tile of 32 KiB of K and V, half of it in float32, that registers and shared memory hold.

    Its keys are 16 to 128; no more than a page of 64 or more, so that a tile lies in one page.
    """
    row = itemsize * _next_power_of_2(dims.d)
    keys = min(128, max(16, (16 if itemsize == 2 else 8) * 1024 // row))
    if math.gcd(keys, page) >= 64:
        keys = math.gcd(keys, page)
    heads = min(64, 16 * 1024 // row, max(16, _next_power_of_2(dims.group)))
    return Tile(heads, keys, 2 * keys * row)


def plan(
    q: Tensor, dims: Dims, window: int | None, num_splits: int | None, *,
    page: int = 0, uneven: bool = False,
) -> Plan:  # fmt: skip
    """The settings for q's device; dims.s is the longest length, uneven if others may be less."""
    tile = tile_of(dims, q.element_size(), page)
    units = dims.batch * dims.kv_heads * math.ceil(dims.group / tile.block_g)
    tiles = math.ceil(min(dims.s, window or dims.s) / tile.block_n)
    if runtime.interpreting():
        return choose(None, DEVICES["laptop"].sms, units, tiles, tile, num_splits)
    device = torch.cuda.get_device_properties(q.device)
    model = HOPPER if device.major == 9 else None
    # A page's id has to come before its rows: a fourth stage waits for it and fills nothing.
    deepest, sms = 3 if page else 4, device.multi_processor_count
    return choose(model, sms, units, tiles, tile, num_splits, uneven, deepest)


@lru_cache(maxsize=4096)
def choose(
    model: Model | None, sms: int, units: int, tiles: int, tile: Tile, num_splits: int | None,
    uneven: bool = False, deepest: int = 4,
) -> Plan:  # fmt: skip
    """The fastest settings by the model, of at most `deepest` stages.

    Without a model two programs an SM and two stages. At most one split a tile, and MAX_SPLITS; a
    number that is given is kept within these.
    """
    most = max(1, min(MAX_SPLITS, tiles))
    if num_splits is None and model is None:
        num_splits = decode_splits(units, 1, tiles, sms, block_n=1)
    if model is None:
        return Plan(tile.block_g, tile.block_n, 2, min(num_splits, most))
    given = None if num_splits is None else [min(num_splits, most)]
    _, (stages, resident, _), num_splits = min(
        (predicted_us(model, sms, units, tiles, tile.bytes, pipeline, n), pipeline, n)
        for pipeline in model.pipelines
        for n in given or _worth_trying(sms, units, tiles * tile.block_n, most, uneven)
        if pipeline.stages <= min(deepest, max(3, math.ceil(tiles / n) // 2))  # they must fill
    )
    # More heads need more registers; for 16, keep to what lets the model's programs fit on an SM.
    registers = min(248, SM_REGISTERS // (THREADS * resident) // 8 * 8)
    registers = registers if tile.block_g == 16 else None
    return Plan(tile.block_g, tile.block_n, stages, num_splits, registers)


def _worth_trying(sms: int, units: int, keys: int, most: int, uneven: bool) -> range:
    """Numbers of splits, up to 16 programs an SM. The model knows the longest sequence only.

    Where the rest may be much shorter, a long one is cut into runs of 2048 keys, or it would be
    read by two programs while all others are done.
    """
    least = min(math.ceil(keys / 2048), 8 * sms // max(1, units)) if uneven and keys > 8192 else 1
    least = max(1, min(least, most))
    return range(least, max(least, min(most, 16 * sms // max(1, units))) + 1)


def merge_columns(rows: int, d: int) -> int:
    """Columns of o that one merging program takes, 16 or more: about 512 programs in all."""
    return max(16, min(_next_power_of_2(rows * d // 512 + 1), _next_power_of_2(d)))


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
