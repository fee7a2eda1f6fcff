"""Which tiles, warps and stages the tuned backward takes: a table of what was measured, no search.

A search while a program runs would time kernels inside a student's call, and two machines of one
kind could answer with different bits.
"""

from typing import NamedTuple

import torch


class Config(NamedTuple):
    """Queries and keys in a tile, warps of a program, streamed tiles in flight."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    tma: bool = True  # False only to show what descriptors are worth
    split_masks: bool = True  # False masks every tile, as the teaching kernels do
    together: int = 4  # heads whose tiles take turns under a causal mask
    registers: int | None = None  # the most a thread may hold: fewer let more programs share an SM


class Configs(NamedTuple):
    """One for each walk: the keys' program streams queries, the queries' program keys."""

    dkdv: Config
    dq: Config


# (bytes of an element, columns padded to a power of two) -> configs. Hopper: measured on one H200
# on 2026-12-01, torch 2.11, triton 3.6; TFLOP/s of the products a walk does (dk and dv take four
# of the seven, dq three) at B 4, Hq = 2048 / D, T 8k, bf16, causal (no mask).
#   D64  dk, dv  533 (555): (64, 64, 4, 3) 417 (470), (64, 128, 8, 2) 356 (399).
#        dq      591 (610): (64, 64, 4, 3) 559 (524), (128, 128, 8, 3) 489 (516).
#   D128 dk, dv  577 (595): two programs an SM; (64, 128, 8, 2) 490 (553), (32, 64, 4, 3) 457
#                (507). Pointers instead of descriptors 442 (516), masks everywhere 553 (553), one
#                stage 435 (485).
#        dq      584 (641): without a mask (128, 128, 8, 2), which causal is 575; (64, 64, 4, 2)
#                601 there; (128, 64, 8, 3) 588 (612), (128, 64, 4, 2) 373 (414).
#   group as a constant 1, or lse read before dp instead of after it, lets ptxas order the products
#   otherwise: up to 2 % faster without a mask, 7 to 24 % slower with one.
HOPPER = {
    (2, 64): Configs(Config(128, 64, 4, 2), Config(128, 64, 8, 3)),
    (2, 128): Configs(Config(64, 64, 4, 2), Config(128, 128, 8, 2)),
    (2, 256): Configs(Config(32, 64, 8, 2), Config(64, 32, 4, 2)),
    (4, 64): Configs(Config(16, 32, 4, 1), Config(32, 16, 4, 1)),
    (4, 128): Configs(Config(16, 16, 4, 1), Config(16, 16, 4, 1)),
    (4, 256): Configs(Config(16, 16, 8, 1), Config(16, 16, 4, 1)),
}
# Small tiles waste less at the diagonal.
HOPPER_CAUSAL = HOPPER | {(2, 128): Configs(Config(64, 64, 4, 2), Config(64, 64, 4, 2))}

# Everywhere else: tiles that fit the 99 KB of shared memory of the smallest cards of today.
OTHERS = {
    (2, 64): Configs(Config(64, 64, 4, 1), Config(64, 64, 4, 1)),
    (2, 128): Configs(Config(32, 64, 8, 1), Config(64, 32, 4, 1)),
    (2, 256): Configs(Config(32, 32, 8, 1), Config(32, 32, 4, 1)),
    (4, 64): Configs(Config(16, 32, 4, 1), Config(32, 16, 4, 1)),
    (4, 128): Configs(Config(16, 16, 4, 1), Config(16, 16, 4, 1)),
    (4, 256): Configs(Config(16, 16, 8, 1), Config(16, 16, 4, 1)),
}

INTERPRETED = Configs(Config(32, 16, 4, 1), Config(16, 32, 4, 1))


def choose(dtype: torch.dtype, block_d: int, causal: bool, capability: int) -> Configs:
    """The configs for D padded to block_d; capability is the major number of the GPU's compute
    capability, 0 in the interpreter."""
    if capability == 0:
        return INTERPRETED
    hopper = HOPPER_CAUSAL if causal else HOPPER
    return (hopper if capability == 9 else OTHERS)[dtype.itemsize, max(block_d, 64)]
