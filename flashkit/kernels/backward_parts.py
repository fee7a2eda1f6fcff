"""What both walks of the tuned backward share: how they read a head, judge it and are launched."""

import triton
import triton.language as tl
from torch import Tensor

from flashkit.contracts import Dims
from flashkit.kernels.backward_config import Config
from flashkit.kernels.descriptors import describable, descriptor
from flashkit.kernels.forward_tuned import LOG2_E, capability_of


@triton.jit
def head_of(x, b, h, strides, TMA: tl.constexpr):
    """What `load_rows` reads one head by: the descriptor as it is, or a pointer to the head."""
    if not TMA:
        x += b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
    return x


@triton.jit
def note_wrong(only_if, grad, rows, stop):
    """Set the flag if a row of grad below stop is not finite."""
    wrong = (tl.abs(grad) < float("inf")).to(tl.int32) ^ 1
    wrong = tl.max(tl.where(rows[:, None] < stop, wrong, 0))
    tl.store(only_if, wrong, mask=wrong > 0)


def launch(
    kernel, config: Config, sources: tuple[Tensor, ...], terms: tuple[Tensor, Tensor],
    grads: tuple[Tensor, ...], only_if: Tensor, dims: Dims,
    *, offset: int, causal: bool, window: int | None, scale: float,
) -> None:  # fmt: skip
    """One walk: a program for each tile of the gradients it writes."""
    if grads[0].numel() == 0:
        return
    block_d = 1 << (dims.d - 1).bit_length()
    own = config.block_m if len(grads) == 1 else config.block_n
    rows, heads = grads[0].shape[2], grads[0].shape[1]
    strides = [x.stride() for x in sources]
    # A program that walks a group's heads is that much longer, and there are fewer of them.
    together = config.together * (dims.q_heads // heads) if causal else 1
    tma = config.tma and capability_of(sources[0]) not in range(1, 9)
    tma = tma and all(map(describable, sources))
    if tma:
        tiles = config.block_m, config.block_n, config.block_n, config.block_m
        sources = [descriptor(x, n, block_d) for x, n in zip(sources, tiles, strict=True)]
    kernel[(-(-rows // own) * dims.batch * heads,)](
        *sources, *terms, *grads, only_if, *strides, dims.t, dims.s, terms[0].shape[2], offset,
        heads, dims.group, together, scale, scale * LOG2_E,
        CAUSAL=causal, WINDOW=window or 0, TMA=tma, SPLIT_MASKS=config.split_masks, D=dims.d,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=block_d,
        num_warps=config.num_warps, num_stages=config.num_stages, maxnreg=config.registers,
    )  # fmt: skip
