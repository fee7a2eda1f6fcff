"""The public calls for one new query per sequence: check, choose the splits, launch.

Both take q (B, Hq, 1, D), Hq a multiple of Hkv, D from 16 to 256, and a cache of any strides
(fastest where D is innermost), in float32 (true float32), float16 or, on a GPU, bfloat16. Both
return o in q's shape and dtype and, if asked for, lse (B, Hq, 1) float32, natural log. The query
of sequence b is the newest of its lengths[b] keys; it sees them all or, with a window, the last
`window`. A sequence that sees no key gives 0 and -inf; one that sees a value that is not finite
gives a result that is not finite. What is not seen is not read.

lengths are integers (B,), a tensor or a list, from 0 to what the cache can hold. On the CPU they
are checked. On the GPU the kernel clamps them instead: to look at them would stop the queue. So
with lengths on the GPU a call never waits for it, takes as many splits as the longest length that
may be given asks for, and can be captured in a CUDA graph.

Both raise ValueError for other inputs and NotImplementedError for inputs that need a gradient.
Underneath lie the operators flashkit::flash_decode and flashkit::paged_decode: torch.compile sees
one node and its shapes.
Source: Dao et al., Flash-Decoding for long-context inference (2023); Kwon et al., Efficient memory
management for large language model serving with PagedAttention (2023).
"""

import math

import torch
from torch import Tensor, library

from flashkit import runtime
from flashkit.contracts import (
    KERNEL_DTYPES,
    Dims,
    check_kernel_inputs,
    check_no_gradient,
    check_positive,
    check_tensor,
    require,
)
from flashkit.cost import DEVICES, decode_splits

BACKENDS = ("auto", "teaching", "triton")


def flash_decode(
    q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, window: int | None = None,
    num_splits: int | None = None, return_lse: bool = False, backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of one query per sequence over a long KV cache k, v (B, Hkv, S, D).

    lengths defaults to S for every sequence. num_splits defaults to what is fastest; "triton"
    takes it as an upper bound. backend is "teaching" (the two kernels of lesson 4), "triton" (the
    tuned ones) or "auto": teaching in the interpreter, tuned on a GPU.
    """
    _check_options({"q": q, "k": k, "v": v}, window, num_splits)
    o, lse = torch.ops.flashkit.flash_decode(
        q, k, v, _as_tensor(lengths), window, num_splits, backend
    )
    return (o, lse) if return_lse else o


def paged_decode(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
    window: int | None = None, num_splits: int | None = None, return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """`flash_decode` over a cache in pages: k_pages, v_pages (pages, page size, Hkv, D).

    Key i of sequence b is row i % page_size of page block_table[b, i // page_size]. The table is
    int32 or int64 (B, n), so a sequence holds up to n * page_size keys. Entries that hold no
    visible key are never read and may be anything; the others must be pages (on the CPU they are
    checked). Any page size works; 16, 64 and 128 are measured.
    """
    _check_options({"q": q, "k_pages": k_pages, "v_pages": v_pages}, window, num_splits)
    if not isinstance(block_table, Tensor):
        raise ValueError(f"block_table must be a torch.Tensor, got {type(block_table).__name__}")
    o, lse = torch.ops.flashkit.paged_decode(
        q, k_pages, v_pages, block_table, _as_tensor(lengths), window, num_splits
    )
    return (o, lse) if return_lse else o


def _check_options(tensors: dict[str, Tensor], window: int | None, num_splits: int | None) -> None:
    """What can be told without the sizes; the operators look at the rest."""
    for name, x in tensors.items():
        check_tensor(name, x)
    check_positive("window", window)
    check_positive("num_splits", num_splits)
    check_no_gradient(*tensors.values())


def _as_tensor(lengths) -> Tensor | None:
    return lengths if lengths is None or isinstance(lengths, Tensor) else torch.tensor(lengths)


library.define(
    "flashkit::flash_decode",
    "(Tensor q, Tensor k, Tensor v, Tensor? lengths, SymInt? window, SymInt? num_splits, "
    "str backend) -> (Tensor, Tensor)",
)
library.define(
    "flashkit::paged_decode",
    "(Tensor q, Tensor k_pages, Tensor v_pages, Tensor block_table, Tensor lengths, "
    "SymInt? window, SymInt? num_splits) -> (Tensor, Tensor)",
)


@library.impl("flashkit::flash_decode", "default")
def _flash_decode(q, k, v, lengths, window, num_splits, backend):
    dims = check_kernel_inputs(q, k, v)
    _check_query(q)
    require(backend in BACKENDS, f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "auto":
        backend = "teaching" if runtime.interpreting() else "triton"
    lengths = _checked_lengths(lengths, dims, q.device)
    attend = _tuned if backend == "triton" else _teaching
    return attend(q, k, v, dims, lengths, window, num_splits)


@library.impl("flashkit::paged_decode", "default")
def _paged_decode(q, k_pages, v_pages, block_table, lengths, window, num_splits):
    dims = _checked_pages(q, k_pages, v_pages, block_table)
    _check_query(q)
    on_host = None if lengths.is_cuda else lengths.tolist()
    lengths = _checked_lengths(lengths, dims, q.device)
    if not block_table.is_cuda:
        _check_used_entries(block_table, on_host, window, k_pages)
    k, v = k_pages.transpose(1, 2), v_pages.transpose(1, 2)
    return _tuned(q, k, v, dims, lengths, window, num_splits, block_table)


@library.register_fake("flashkit::flash_decode")
@library.register_fake("flashkit::paged_decode")
def _result_shapes(q, *_):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def _check_query(q: Tensor) -> None:
    require(q.shape[2] == 1, f"q must have shape (B, Hq, 1, D), got {tuple(q.shape)}")
    names = "float32, float16 or bfloat16"
    require(q.dtype in KERNEL_DTYPES, f"decode takes {names}, got {q.dtype}")


def _checked_pages(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor) -> Dims:
    """The sizes of the problem, S being the longest sequence that the table can hold."""
    require(
        k_pages.shape == v_pages.shape and k_pages.shape[1] > 0,
        "k_pages and v_pages must have one shape (pages, page size, Hkv, D), page size >= 1, "
        f"got {tuple(k_pages.shape)} and {tuple(v_pages.shape)}",
    )
    is_table = block_table.ndim == 2 and block_table.dtype in (torch.int32, torch.int64)
    require(
        is_table and (len(block_table), block_table.device) == (len(q), q.device),
        f"block_table must be int32 or int64 of shape ({len(q)}, n) on {q.device}, got "
        f"{block_table.dtype} {tuple(block_table.shape)} on {block_table.device}",
    )
    one = check_kernel_inputs(q[:0], k_pages[:0].transpose(1, 2), v_pages[:0].transpose(1, 2))
    return one._replace(batch=len(q), s=block_table.shape[1] * k_pages.shape[1])


def _checked_lengths(lengths: Tensor | None, dims: Dims, device: torch.device) -> Tensor | None:
    """lengths where the kernel can read them; their values are looked at if on the CPU."""
    if lengths is None:
        return None
    require(
        lengths.shape == (dims.batch,) and lengths.dtype in (torch.int32, torch.int64),
        f"lengths must be int32 or int64 of shape ({dims.batch},), "
        f"got {lengths.dtype} {tuple(lengths.shape)}",
    )
    if lengths.is_cuda:
        return lengths
    require(
        bool(((lengths >= 0) & (lengths <= dims.s)).all()),
        f"lengths must be from 0 to S = {dims.s}, got {lengths.tolist()}",
    )
    return lengths.to(device)


def _check_used_entries(
    table: Tensor, lengths: list[int], window: int | None, pages: Tensor
) -> None:
    """On the CPU a wrong page would end the process: refuse it first, by name."""
    for b, length in enumerate(lengths):
        first = max(0, length - window) if window else 0
        used = table[b, first // pages.shape[1] : math.ceil(length / pages.shape[1])]
        require(
            bool(((used >= 0) & (used < len(pages))).all()),
            f"block_table[{b}] must name pages from 0 to {len(pages) - 1} for its {length} keys, "
            f"got {used.tolist()}",
        )


def _tuned(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, lengths: Tensor | None, window: int | None,
    num_splits: int | None, block_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from flashkit.kernels.decode_plan import plan
    from flashkit.kernels.decode_tuned import decode_tuned_fwd

    page = 0 if block_table is None else k.shape[2]
    uneven = lengths is not None and dims.batch > 1
    return decode_tuned_fwd(
        q, k, v, dims, plan(q, dims, window, num_splits, page=page, uneven=uneven),
        lengths=lengths, window=window, scale=1.0 / math.sqrt(dims.d), table=block_table,
    )  # fmt: skip


def _teaching(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, lengths: Tensor | None, window: int | None,
    num_splits: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from flashkit.kernels.decode import decode_merge_fwd, decode_split_fwd

    if lengths is None:
        lengths = torch.full((dims.batch,), dims.s, dtype=torch.int32, device=q.device)
    lengths = lengths.clamp(0, dims.s).contiguous()  # on a GPU nothing else has looked
    block_n = 64 if dims.d <= 128 else 32
    if num_splits is None:
        num_splits = decode_splits(dims.batch, dims.kv_heads, dims.s, _multiprocessors(q), block_n)
    partial = decode_split_fwd(
        q, k, v, lengths, dims,
        window=window, num_splits=num_splits, scale=1.0 / math.sqrt(dims.d), block_n=block_n,
    )  # fmt: skip
    return decode_merge_fwd(*partial, q.dtype)


def _multiprocessors(q: Tensor) -> int:
    if not q.is_cuda:
        return DEVICES["laptop"].sms
    return torch.cuda.get_device_properties(q.device).multi_processor_count
