"""The backward again, tuned: the same two walks as in `backward`, with less to do a tile.

Whole tiles come through the copy engine, only tiles at an edge are masked, exponents are in base 2
and the scale is applied once. Where a gradient comes out not finite, the kernels of `backward` do
the work once more, with care: a weight of 0 hides nothing that is NaN.
"""

import torch
from torch import Tensor

from flashkit.contracts import Dims
from flashkit.kernels.backward import careful_bwd, new_gradients, serves
from flashkit.kernels.backward_config import Configs, choose
from flashkit.kernels.backward_dkdv import _tuned_dkdv_kernel
from flashkit.kernels.backward_dq import _tuned_dq_kernel
from flashkit.kernels.backward_parts import launch
from flashkit.kernels.delta import row_terms
from flashkit.kernels.forward_tuned import capability_of, nearby

__all__ = ["serves", "tuned_bwd"]


def tuned_bwd(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, dlse: Tensor | None,
    dims: Dims, *, offset: int, causal: bool, window: int | None, scale: float,
    needs: tuple[bool, bool] = (True, True), config: Configs | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients dq, dk, dv of checked inputs of any strides; as `flash_bwd`, bit for bit the
    same on repetition."""
    offset, window = nearby(dims, offset, window)
    grads = new_gradients(q, k, v, needs)
    terms = row_terms(o, lse, do, dlse, dims)
    only_if = torch.zeros(1, dtype=torch.int32, device=q.device)
    block_d = 1 << (dims.d - 1).bit_length()
    dkdv, dq = config or choose(q.dtype, block_d, causal, capability_of(q))
    options = {"offset": offset, "causal": causal, "window": window, "scale": scale}
    launch(_tuned_dkdv_kernel, dkdv, (q, k, v, do), terms, grads[1:], only_if, dims, **options)
    launch(_tuned_dq_kernel, dq, (q, k, v, do), terms, grads[:1], only_if, dims, **options)
    careful_bwd(q, k, v, do, terms, grads, dims, only_if=only_if, **options)
    return grads
