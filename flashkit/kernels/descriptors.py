"""Tensor descriptors: what the copy engine (TMA) of a Hopper GPU reads whole tiles by."""

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


def describable(x: Tensor) -> bool:
    """Whether the copy engine takes x as it lies: 16-byte rows, columns next to one another."""
    *outer, last = x.stride()
    size = x.element_size()
    return (
        last == 1
        and x.numel() > 0
        and x.data_ptr() % 16 == 0
        and all(stride > 0 and stride * size % 16 == 0 for stride in outer)
    )


def descriptor(x: Tensor, rows: int, block_d: int) -> TensorDescriptor:
    """Each head by itself: a tile that runs past its last row reads 0, not the next head."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, block_d])
