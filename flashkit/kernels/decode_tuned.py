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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from flashkit import runtime
from flashkit.contracts import Dims
from flashkit.kernels.decode_plan import Plan, merge_columns
from flashkit.kernels.primitives import exp_reference, normalise

LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _split_range(length, window, split, num_splits, BLOCK_N: tl.constexpr):
    """The first visible key, and the keys [start, stop) of a split; start is that of a tile."""
    first = tl.maximum(length - window, 0)
    first_tile = first // BLOCK_N
    tiles = tl.cdiv(length, BLOCK_N) - first_tile
    start = (first_tile + split * tiles // num_splits) * BLOCK_N
    stop = (first_tile + (split + 1) * tiles // num_splits) * BLOCK_N
    return first, start, tl.minimum(stop, length)


@triton.jit
def _page_ids(
    table_ptr, stride_tp, start_n, first, stop, PAGE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The pages of a tile's keys: one id where pages hold whole tiles, else one a key.

    Entries of keys outside [first, stop) are not read.
    """
    one: tl.constexpr = PAGE % BLOCK_N == 0
    keys = tl.maximum(start_n, first) if one else start_n + tl.arange(0, BLOCK_N)
    wanted = (keys >= first) & (keys < stop)
    return tl.load(table_ptr + keys // PAGE * stride_tp, wanted, 0)


@triton.jit
def _tile_rows(
    ptr, stride_page, stride_row, pages, start_n, PAGE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Pointers to the rows of one tile, by offsets of 64 bits."""
    offs_n = tl.arange(0, BLOCK_N).to(tl.int64)
    if PAGE == 0:
        return ptr + start_n * tl.cast(stride_row, tl.int64) + offs_n * stride_row
    one: tl.constexpr = PAGE % BLOCK_N == 0
    slots = start_n % PAGE + offs_n if one else (start_n + offs_n) % PAGE
    return ptr + pages.to(tl.int64) * stride_page + slots * stride_row


@triton.jit
def _load(rows, cols, stride_col, seen, D: tl.constexpr):
    """A tile (ROWS, COLS) from pointers to its rows; 0 in rows not seen and past column D."""
    inside = seen[:, None] & (cols < D)[None, :]
    return tl.load(rows[:, None] + cols.to(tl.int64)[None, :] * stride_col, inside, 0.0)


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


@triton.jit(do_not_specialize=["S", "window", "num_splits", "zero"])
def _decode_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, table_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_lb, stride_tb, stride_tp,
    S, window, kv_heads, num_splits, scale_log2, zero,
    D: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr, Q_IN_LOOP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program: up to BLOCK_G query heads of one KV head against one split of its keys.

    Grid      (num_splits * ceil(group / BLOCK_G) * Hkv * B,)
    Reads     the q rows; k and v of its split once. PAGE > 0: stride_kb and stride_vb are those
              of a page, table[b, key // PAGE] is the page of a key
    Writes    o (B, Hq, num_splits, D) in its own dtype; lse (B, Hq, num_splits) float32, natural
              log. One split: the result; several: what `_merge_kernel` joins
    Keys      the last `window` before the length; what is hidden or unused is never read
    """
    if DEPENDENT:
        gdc_launch_dependents()  # the merge may be launched now: it waits for our results itself
    split = tl.program_id(0) % num_splits
    unit = tl.program_id(0) // num_splits
    bh = (unit // tl.cdiv(GROUP, BLOCK_G)).to(tl.int64)
    b = bh // kv_heads
    kv_h = bh % kv_heads
    length = S
    if lengths_ptr is not None:
        given = tl.load(lengths_ptr + b * stride_lb)
        length = tl.minimum(tl.maximum(given, 0), S).to(tl.int32)
    first, start, stop = _split_range(length, window, split, num_splits, BLOCK_N)

    heads = unit % tl.cdiv(GROUP, BLOCK_G) * BLOCK_G + tl.arange(0, BLOCK_G)
    real = heads < GROUP
    cols = tl.arange(0, BLOCK_D)
    q_rows = q_ptr + b * stride_qb + (kv_h * GROUP + heads) * stride_qh
    k_ptr += kv_h * stride_kh
    v_ptr += kv_h * stride_vh
    pages = 0
    if PAGE == 0:
        k_ptr += b * stride_kb
        v_ptr += b * stride_vb
    else:
        table_ptr += b * stride_tb
        pages = _page_ids(table_ptr, stride_tp, start, first, stop, PAGE, BLOCK_N)
    if not Q_IN_LOOP:
        q = _load(q_rows, cols, stride_qd, real, D)
    m = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for start_n in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        keys = start_n + tl.arange(0, BLOCK_N)
        seen = (keys >= first) & (keys < stop)
        k_rows = _tile_rows(k_ptr, stride_kb, stride_ks, pages, start_n, PAGE, BLOCK_N)
        v_rows = _tile_rows(v_ptr, stride_vb, stride_vs, pages, start_n, PAGE, BLOCK_N)
        if PAGE > 0:  # a tile ahead, so that the next keys do not wait for their address
            pages = _page_ids(table_ptr, stride_tp, start_n + BLOCK_N, first, stop, PAGE, BLOCK_N)
        if Q_IN_LOOP:  # q then arrives with the first keys; `zero` keeps it from being hoisted
            q = _load(q_rows + start_n * zero, cols, stride_qd, real, D)
        k = _load(k_rows, cols, stride_kd, seen, D)
        v = _load(v_rows, cols, stride_vd, seen, D)
        m, l, acc = _step(q, k, v, seen, m, l, acc, scale_log2)

    o, lse = normalise(m * LN_2, l, acc)
    rows = (bh * GROUP + heads) * num_splits + split
    tl.store(lse_ptr + rows, lse, real)
    inside = real[:, None] & (cols < D)[None, :]
    tl.store(o_ptr + rows[:, None] * D + cols[None, :], o.to(o_ptr.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_kernel(
    part_ptr, part_lse_ptr, o_ptr, lse_ptr, num_splits,
    D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_D columns of one row of o from all its splits at once.

    Grid      (rows * ceil(D / BLOCK_D),)
    Reads     part (rows, num_splits, D), part_lse (rows, num_splits), float32, contiguous
    Writes    o (rows, D) in its own dtype; lse (rows,) float32, natural log
    """
    row = (tl.program_id(0) // tl.cdiv(D, BLOCK_D)).to(tl.int64)
    column = tl.program_id(0) % tl.cdiv(D, BLOCK_D) * BLOCK_D
    splits = tl.arange(0, BLOCK_P)
    cols = column + tl.arange(0, BLOCK_D)
    parts = row * num_splits + splits
    real = splits < num_splits
    if DEPENDENT:
        gdc_wait()  # until all splits are written
    lse_i = tl.load(part_lse_ptr + parts, real, -float("inf"))
    inside = real[:, None] & (cols < D)[None, :]
    o_i = tl.load(part_ptr + parts[:, None] * D + cols[None, :], inside, 0.0)
    reference = exp_reference(tl.max(lse_i, axis=0))
    weights = tl.exp(lse_i - reference)
    total = tl.sum(weights, axis=0)
    safe = tl.where(total == 0.0, 1.0, total)
    o = tl.sum(weights[:, None] * o_i, axis=0) / safe
    tl.store(o_ptr + row * D + cols, o.to(o_ptr.dtype.element_ty), cols < D)
    lse = tl.where(total == 0.0, -float("inf"), reference + tl.log(safe))
    tl.store(lse_ptr + row, lse, column == 0)


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
        _launch_merge(part, part_lse, o, lse, dependent=dependent)
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
        stride_lb, *stride_table, dims.s, window or dims.s, dims.kv_heads, plan.num_splits,
        scale / math.log(2.0), 0,
        D=dims.d, GROUP=dims.group, PAGE=page, BLOCK_G=plan.block_g, BLOCK_N=plan.block_n,
        BLOCK_D=triton.next_power_of_2(dims.d), STAGES=plan.stages, Q_IN_LOOP=plan.q_in_loop,
        DEPENDENT=dependent, num_warps=4,
    )  # fmt: skip


def _launch_merge(part: Tensor, part_lse: Tensor, o: Tensor, lse: Tensor, *, dependent) -> None:
    num_splits, d = part.shape[2:]
    block_d = merge_columns(lse.numel(), d)
    _merge_kernel[(lse.numel() * triton.cdiv(d, block_d),)](
        part, part_lse, o, lse, num_splits, D=d, BLOCK_P=triton.next_power_of_2(num_splits),
        BLOCK_D=block_d, DEPENDENT=dependent, num_warps=1,
        **({"launch_pdl": True} if dependent else {}),
    )  # fmt: skip
