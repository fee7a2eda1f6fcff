"""Flash-decoding at the speed of memory: contiguous or paged caches, split and merged.

The teaching kernel of `decode` with what a fast one adds: settings from `decode_plan`, loads that
run ahead of the arithmetic, exponents in base 2, partial results in the form of the result (one
split needs no merge), and a merge whose launch overlaps the splits.

Source: Dao et al., Flash-Decoding for long-context inference (2023); CUDA C++ Programming Guide,
programmatic dependent launch.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from flashkit import runtime
from flashkit.contracts import Dims
from flashkit.kernels.decode_join import join_splits
from flashkit.kernels.decode_plan import THREADS, Plan
from flashkit.kernels.primitives import exp_reference, normalise

LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _split_range(length, window, split, num_splits, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr):
    """The first visible key, and the keys [start, stop) of a split; start is that of a tile."""
    first = 0
    if WINDOWED:
        first = tl.maximum(length - window, 0)
    first_tile = first // BLOCK_N
    tiles = tl.cdiv(tl.cdiv(length, BLOCK_N) - first_tile, num_splits)
    start = (first_tile + split * tiles) * BLOCK_N
    return first, start, tl.minimum(start + tiles * BLOCK_N, length)


@triton.jit
def _visible(keys, first, stop, WINDOWED: tl.constexpr):
    """Whether the query sees each key of a split."""
    seen = keys < stop
    if WINDOWED:
        seen &= keys >= first
    return seen


@triton.jit
def _slots(start_n, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where a tile's keys lie, counted in rows from the first row of the page it begins in."""
    begin = 0 if BLOCK_N % PAGE == 0 else start_n % PAGE
    return begin + tl.arange(0, BLOCK_N)


@triton.jit
def _page_ids(
    table_ptr, stride_tp, start_n, first, stop,
    PAGE: tl.constexpr, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """The pages of a tile's keys: one id where pages hold whole tiles, else one a key.

    Entries without a key in [first, stop) are not read. The ids stay as they are loaded: widened
    here, the load would become a stage of the pipeline and halve how far k and v run ahead.
    """
    entry = start_n // PAGE
    wanted = start_n < stop
    if PAGE % BLOCK_N:
        entry += _slots(start_n, PAGE, BLOCK_N) // PAGE
        wanted = _visible(start_n + tl.arange(0, BLOCK_N), first, stop, WINDOWED)
    return tl.load(table_ptr + entry * stride_tp, wanted, 0)


@triton.jit
def _tile_rows(
    ptr, stride_page, stride_row, pages, start_n,
    PAGE: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Pointers to the rows of one tile. Only offsets within a tile or a page may be of 32 bits."""
    if PAGE == 0:
        ptr += start_n * tl.cast(stride_row, tl.int64)
        slots = tl.arange(0, BLOCK_N)
    else:
        ptr += pages.to(tl.int64) * stride_page
        slots = _slots(start_n, PAGE, BLOCK_N)
        if PAGE % BLOCK_N:
            slots = slots % PAGE
    return ptr + slots.to(INDEX) * stride_row


@triton.jit
def _load(rows, cols, stride_col, seen, D: tl.constexpr):
    """A tile (ROWS, COLS) from pointers to its rows; 0 in rows not seen and past column D."""
    inside = seen[:, None] & (cols < D)[None, :]
    return tl.load(rows[:, None] + cols[None, :] * stride_col, inside, 0.0)


@triton.jit
def _step(q, k, v, seen, m, l, acc, scale_log2):
    """One step of online softmax, exponents in base 2; what is `seen` (N,) every row sees."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    s = tl.where(seen[None, :], s, -float("inf"))
    m_new = tl.maximum(m, tl.max(s, axis=1))
    reference = exp_reference(m_new)
    alpha = tl.exp2(m - reference)
    p = tl.exp2(s - reference[:, None])
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_new, alpha * l + tl.sum(p, axis=1), acc


@triton.jit(do_not_specialize=["S", "window", "num_splits"])
def _decode_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, table_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_lb, stride_tb, stride_tp,
    S, window, num_splits, scale_log2,
    D: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr,
    WINDOWED: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr, INDEX: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program: up to BLOCK_G query heads of one KV head against one split of its keys.

    Grid      (num_splits * ceil(group / BLOCK_G) * Hkv * B,)
    Reads     the q rows; k and v of its split once. PAGE > 0: stride_kb and stride_vb are those
              of a page, table[b, key // PAGE] is the page of a key
    Writes    o (B, Hq, num_splits, D) in its own dtype; lse (B, Hq, num_splits) float32, natural
              log. One split: the result; several: what `decode_join` joins
    Keys      the last `window` before the length; what is hidden or unused is never read
    """
    if DEPENDENT:
        gdc_launch_dependents()  # the merge may be launched now: it waits for our results itself
    split = tl.program_id(0) % num_splits
    unit = tl.program_id(0) // num_splits
    bh = unit // tl.cdiv(GROUP, BLOCK_G)
    b = (bh // KV_HEADS).to(tl.int64)
    kv_h = (bh % KV_HEADS).to(tl.int64)
    length = S
    if lengths_ptr is not None:
        given = tl.load(lengths_ptr + b * stride_lb)
        length = tl.minimum(tl.maximum(given, 0), S).to(tl.int32)
    first, start, stop = _split_range(length, window, split, num_splits, BLOCK_N, WINDOWED)

    heads = unit % tl.cdiv(GROUP, BLOCK_G) * BLOCK_G + tl.arange(0, BLOCK_G)
    real = heads < GROUP
    cols = tl.arange(0, BLOCK_D)
    q_rows = q_ptr + b * stride_qb + (kv_h * GROUP + heads) * stride_qh
    q = _load(q_rows, cols.to(tl.int64), stride_qd, real, D)
    k_ptr += kv_h * stride_kh
    v_ptr += kv_h * stride_vh
    pages = 0
    if PAGE == 0:
        k_ptr += b * stride_kb
        v_ptr += b * stride_vb
    else:
        table_ptr += b * stride_tb
        pages = _page_ids(table_ptr, stride_tp, start, first, stop, PAGE, BLOCK_N, WINDOWED)
    m = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for start_n in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        keys = start_n + tl.arange(0, BLOCK_N)
        seen = _visible(keys, first, stop, WINDOWED)
        k_rows = _tile_rows(k_ptr, stride_kb, stride_ks, pages, start_n, PAGE, BLOCK_N, INDEX)
        v_rows = _tile_rows(v_ptr, stride_vb, stride_vs, pages, start_n, PAGE, BLOCK_N, INDEX)
        if PAGE > 0:  # a tile ahead, so that the next keys do not wait for their address
            after = start_n + BLOCK_N
            pages = _page_ids(table_ptr, stride_tp, after, first, stop, PAGE, BLOCK_N, WINDOWED)
        k = _load(k_rows, cols.to(INDEX), stride_kd, seen, D)
        v = _load(v_rows, cols.to(INDEX), stride_vd, seen, D)
        m, l, acc = _step(q, k, v, seen, m, l, acc, scale_log2)

    o, lse = normalise(m * LN_2, l, acc)
    rows = (bh.to(tl.int64) * GROUP + heads) * num_splits + split
    tl.store(lse_ptr + rows, lse, real)
    inside = real[:, None] & (cols < D)[None, :]
    tl.store(o_ptr + rows[:, None] * D + cols[None, :], o.to(o_ptr.dtype.element_ty), inside)


def decode_tuned_fwd(
    q: Tensor, k: Tensor, v: Tensor, dims: Dims, plan: Plan, *, lengths: Tensor | None,
    window: int | None, scale: float, table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch on checked inputs: q (B, Hq, 1, D); k, v (B, Hkv, S, D), or pages with a table.

    Pages are (pages, Hkv, page size, D), table (B, n), lengths (B,) or None for S, all on q's
    device. Returns o (B, Hq, 1, D) in q's dtype and lse (B, Hq, 1) float32.
    """
    shape = (dims.batch, dims.q_heads, 1)
    o = torch.empty(*shape, dims.d, dtype=q.dtype, device=q.device)
    lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    if o.numel() == 0:
        return o, lse
    problem = (q, k, v, lengths, table, dims, plan, window, scale)
    with torch.cuda.device_of(q):
        if plan.num_splits == 1:
            _launch_splits(o, lse, *problem, dependent=False)
            return o, lse
        part_lse = torch.empty(*shape[:2], plan.num_splits, dtype=torch.float32, device=q.device)
        part = torch.empty(*part_lse.shape, dims.d, dtype=torch.float32, device=q.device)
        dependent = _can_overlap(q)
        _launch_splits(part, part_lse, *problem, dependent=dependent)
        join_splits(part, part_lse, o, lse, dependent=dependent)
    return o, lse


def _can_overlap(q: Tensor) -> bool:
    """Whether a kernel can be launched before the one it depends on ends: from Hopper on."""
    return not runtime.interpreting() and torch.cuda.get_device_capability(q.device) >= (9, 0)


def _launch_splits(
    o, lse, q, k, v, lengths, table, dims: Dims, plan: Plan, window, scale: float, *, dependent
) -> None:
    page = 0 if table is None else k.shape[2]
    units = dims.batch * dims.kv_heads * triton.cdiv(dims.group, plan.block_g)
    stride_qb, stride_qh, _, stride_qd = q.stride()
    stride_lb = 0 if lengths is None else lengths.stride(0)
    stride_table = (0, 0) if table is None else table.stride()
    _decode_kernel[(units * plan.num_splits,)](
        q, k, v, lengths, table, o, lse, stride_qb, stride_qh, stride_qd, *k.stride(), *v.stride(),
        stride_lb, *stride_table, dims.s, window or 0, plan.num_splits, scale / math.log(2.0),
        D=dims.d, KV_HEADS=dims.kv_heads, GROUP=dims.group, PAGE=page, WINDOWED=window is not None,
        BLOCK_G=plan.block_g, BLOCK_N=plan.block_n, BLOCK_D=triton.next_power_of_2(dims.d),
        STAGES=plan.stages, INDEX=_offset_type(k, v, max(page, plan.block_n)),
        DEPENDENT=dependent, num_warps=THREADS // 32, maxnreg=plan.registers,
    )  # fmt: skip


def _offset_type(k: Tensor, v: Tensor, rows: int) -> tl.dtype:
    """Offsets within a tile or page take 32 bits unless the strides are out of the ordinary."""
    reach = max(rows * x.stride(2) + 256 * x.stride(3) for x in (k, v))
    return tl.int32 if reach < 2**31 else tl.int64
