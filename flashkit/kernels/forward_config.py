"""Which tiles, warps and stages the tuned forward takes: a table of what was measured, no search.

A search while a program runs would time kernels inside a student's call, and two machines of one
kind could answer with different bits.
"""

from typing import NamedTuple

import torch


class Config(NamedTuple):
    """Rows of queries and of keys in a tile, warps of a program, tiles of K and V in flight.

    registers, if given, is the most that a thread may hold: fewer let more programs share an SM.
    together is the number of heads whose row blocks take turns under a causal mask.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    registers: int | None = None
    together: int = 1
    descriptors: bool = True  # False only to show what they are worth


# (bytes of an element, columns padded to a power of two) -> config. Hopper: measured on one H200
# on 2026-11-29, torch 2.11, triton 3.6; TFLOP/s at B 4, Hq = 2048 / D, T 8k, causal (no mask).
#   bf16 D64    458 (474): three programs an SM by the cap on registers, 363 without it;
#               (64, 64, 4, 3) 423, (128, 128, 8, 3) 352. SDPA with cuDNN 465 (504).
#   bf16 D128   524 (542): two programs an SM, one in its softmax while the other multiplies;
#               (128, 64, 4, 3) fits once and gives 428, (128, 128, 8, 3) 485, (64, 64, 4, 2) 428.
#               Pointers instead of descriptors 455. cuDNN 636 (692), SDPA-flash 335 (334).
#   bf16 D256   532 (523); (64, 64, 4, 1) 463, (128, 32, 8, 4) 433. cuDNN 677 (746).
#   together    4 instead of 1 gave 2 to 4 % at D128 and D256, T 4k and 8k; nothing at D64.
#   FP8         D64 392 (466), D128 548 (603), D256 559 (559): V must become float16 on the way.
#   float32     9, 8 and 5: no tensor core multiplies true float32. Larger tiles are slow to
#               compile and are no faster.
HOPPER = {
    (1, 64): Config(64, 128, 4, 2, 168),
    (1, 128): Config(128, 64, 4, 3, None, 4),
    (1, 256): Config(128, 64, 8, 3, None, 4),
    (2, 64): Config(64, 128, 4, 2, 168),
    (2, 128): Config(128, 64, 4, 2, None, 4),
    (2, 256): Config(128, 64, 8, 2, None, 4),
    (4, 64): Config(32, 32, 4, 1),
    (4, 128): Config(32, 32, 4, 1),
    (4, 256): Config(16, 16, 4, 1),
}

# Everywhere else: tiles that fit the 99 KB of shared memory of the smallest cards of today.
OTHERS = {
    (1, 64): Config(128, 64, 4, 2),
    (1, 128): Config(64, 64, 4, 2),
    (1, 256): Config(64, 32, 4, 1),
    (2, 64): Config(128, 64, 4, 2),
    (2, 128): Config(64, 64, 4, 2),
    (2, 256): Config(64, 32, 4, 1),
    (4, 64): Config(32, 32, 4, 1),
    (4, 128): Config(32, 32, 4, 1),
    (4, 256): Config(16, 16, 4, 1),
}

INTERPRETED = Config(32, 32, 4, 1)
FEW = 16  # the least rows that tl.dot takes


def choose(
    dtype: torch.dtype, t: int, block_d: int, capability: int,
    block_m: int | None = None, block_n: int | None = None,
) -> Config:  # fmt: skip
    """The config for T = t queries with D padded to block_d; a tile that is given is kept.

    capability is the major number of the GPU's compute capability, 0 in the interpreter.
    """
    if capability == 0:
        config = INTERPRETED
    else:
        table = HOPPER if capability == 9 else OTHERS
        config = table[dtype.itemsize, max(block_d, 64)]
    if t <= FEW:
        config = config._replace(block_m=FEW, warps=4, registers=None)
    if block_m is None and block_n is None:
        return config
    rows = config.block_m if block_m is None else block_m
    keys = config.block_n if block_n is None else block_n
    warps = 8 if rows >= 128 else 4
    return Config(rows, keys, warps, min(config.stages, 2), None, config.together)
