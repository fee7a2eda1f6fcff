# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 3 · The Triton kernel
#
# Lesson 2 saved the memory. It did not save the time: every tile was several small PyTorch
# calls, and each of them went out to the GPU's main memory and back. Now the whole loop goes
# into one kernel.
#
# **Afterwards you can**
#
# - say what a *program* of a Triton kernel is, and what stays on the chip while it runs;
# - work out which tiles of keys a tile of queries has to visit, and skip the others;
# - write the FlashAttention forward kernel and its launcher, and add a sliding window;
# - find inputs that expose a wrong kernel.
#
# **Time:** about 150 minutes: 45 to read and run, 105 for the four exercises.
#
# **You need** lessons 1 and 2. You do not need a GPU: without one, Triton's *interpreter* runs
# your kernel as ordinary Python on the CPU. It is slow, so the shapes here are small.
#
# Run the cells from top to bottom. Where a cell says `NotImplementedError`, it is your turn.

# %% nbgrader={"grade_id": "imports"}
import math

import flashkit  # before triton: it chooses the interpreter where there is no GPU
import torch
import triton
import triton.language as tl
from flashkit.exercises import check

# %% [markdown]
# ## What a program is
#
# A GPU is many small processors side by side. NVIDIA calls one of them an SM, a *streaming
# multiprocessor*. Two kinds of memory matter to us:
#
# - **HBM**, the main memory: large, far away, shared by all SMs. Every tensor lives there.
# - **SRAM**, on the chip: shared memory and registers inside each SM. Small, and many times
#   faster.
#
# A Triton kernel describes the work of one **program**. You launch a *grid* of programs; each
# asks for its own number with `tl.program_id(axis)`, loads its part of the tensors, computes,
# and stores its result. Programs run in any order, many at once. They cannot wait for one
# another.
#
# For attention we cut the work like this: **one program takes `BLOCK_M` queries of one (batch,
# head) pair.** It loads these queries once. Then it lets the keys and values come by, `BLOCK_N`
# at a time, and keeps $m$, $\ell$ and $a$ on the chip until it is done.
#
# Does that fit? Let us add up one program's tiles for 128 queries, 128 keys, head dimension 128.

# %% tags=["nbval-check-output"]
from flashkit.cost import DEVICES, score_bytes

BLOCK_M, BLOCK_N, D = 128, 128, 128
half, single = 2, 4  # bytes of a float16 and of a float32
tiles = (BLOCK_M * D + 2 * BLOCK_N * D) * half  # q, k and v as they were loaded
state = (BLOCK_M * BLOCK_N + BLOCK_M * D + 2 * BLOCK_M) * single  # scores, a, m and l
print(f"q, k, v tiles            {tiles / 2**10:6.0f} KiB  of 228 KiB shared memory in one SM")
print(f"scores, a, m, l          {state / 2**10:6.0f} KiB  of 256 KiB registers in one SM")
on_chip = DEVICES["H200"].sms * (228 + 256) * 2**10
print(f"all SMs of an H200       {on_chip / 2**20:6.1f} MiB")
print(f"scores of one head       {score_bytes(8192, 8192) / 2**20:6.1f} MiB  at T = 8192")

# %% [markdown]
# The tiles fit. The full score matrix of a single head does not fit, even if it had the whole
# chip to itself. This is why the scores must be used tile by tile and then forgotten.
#
# ## A first kernel: pointers, strides, masks
#
# A kernel does not receive tensors. It receives the *address* of the first element, and you
# compute the address of every other one. Element `(i, j)` of a matrix lies at
#
# $$ \text{address} = \text{start} + i \cdot \text{stride}_m + j \cdot \text{stride}_n . $$
#
# The strides come from `x.stride()`. They are what lets one kernel read a matrix, its transpose
# or a slice of it without a copy.
#
# `tl.arange(0, N)` makes a vector of indices; `N` must be a power of two and known when the
# kernel is compiled (`tl.constexpr`). The matrix will rarely divide evenly, so some lanes point
# past its end. A **mask** says which lanes are real, and **`other`** says what the rest should
# hold.
#
# The kernel below takes the maximum of each row. Watch what `other` does.

# %% tags=["nbval-check-output"]
import flashkit
import torch
import triton
import triton.language as tl

device = flashkit.runtime.device()


@triton.jit
def _row_max_kernel(x_ptr, out_ptr, stride_m, stride_n, M, N, OTHER, BLOCK: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,) my rows
    offs_n = tl.arange(0, BLOCK)  # (BLOCK,) columns
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)  # (BLOCK, BLOCK) real lanes
    x_ptrs = x_ptr + offs_m[:, None] * stride_m + offs_n[None, :] * stride_n  # (BLOCK, BLOCK)
    x = tl.load(x_ptrs, mask=inside, other=OTHER)  # (BLOCK, BLOCK)
    tl.store(out_ptr + offs_m, tl.max(x, axis=1), mask=offs_m < M)  # (BLOCK,) store real rows


x = -1.0 - torch.arange(15.0, device=device).reshape(3, 5).T  # (5, 3), not contiguous
out = torch.empty(5, device=device)
grid = (triton.cdiv(5, 4),)  # two programs of four rows
maxima = {}
for other in (0.0, -float("inf")):
    _row_max_kernel[grid](x, out, *x.stride(), 5, 3, other, BLOCK=4)
    maxima[other] = out.tolist()
for other, row_max in maxima.items():
    print(f"other = {other:4}: {row_max}   (wanted {x.amax(1).tolist()})")

# %% [markdown]
# Three columns were real and one was padding. With `other=0.0` the padding won, because every
# real number was negative. With $-\infty$ it can never win. **The filling must be neutral for
# what comes next**: 0 for a sum or a dot product, $-\infty$ for a maximum.
#
# Two more tools. `tl.trans(x)` is the transpose of a tile. `tl.dot(a, b)` multiplies two tiles
# on the GPU's tensor cores; each side of a tile must then be at least 16. Here is one tile of
# scores, $q k^\top / \sqrt d$, for 20 queries and 24 keys in tiles of 16.

# %% tags=["nbval-check-output"]
import flashkit
import torch
import triton
import triton.language as tl

device = flashkit.runtime.device()


@triton.jit
def _scores_kernel(q_ptr, k_ptr, s_ptr, T, S, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,) queries
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,) keys
    offs_d = tl.arange(0, D)  # (D,)
    q_ptrs = q_ptr + offs_m[:, None] * D + offs_d[None, :]
    k_ptrs = k_ptr + offs_n[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptrs, mask=offs_m[:, None] < T, other=0.0)  # (BLOCK, D)
    k = tl.load(k_ptrs, mask=offs_n[:, None] < S, other=0.0)  # (BLOCK, D)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK, BLOCK)
    inside = (offs_m[:, None] < T) & (offs_n[None, :] < S)
    tl.store(s_ptr + offs_m[:, None] * S + offs_n[None, :], s, mask=inside)


torch.manual_seed(0)
q, k = torch.randn(20, 32, device=device), torch.randn(24, 32, device=device)
s = torch.empty(20, 24, device=device)
_scores_kernel[(2, 2)](q, k, s, 20, 24, 32**-0.5, D=32, BLOCK=16)
print("right:", torch.allclose(s, q @ k.T / 32**0.5, atol=1e-5))

# %% [markdown]
# You now have every tool you need. This kernel *stores* its scores, which is exactly what
# FlashAttention avoids. Yours will put a loop around the keys and the recurrence inside it.
#
# ## The loop bounds lab
#
# Before we write the loop, we ask where it starts and stops. Query row $i$ stands at position
# `offset + i` of the text and sees key $j$ if
#
# $$ j \le \text{offset} + i \quad\text{and, with a window } W,\quad j > \text{offset} + i - W . $$
#
# Take a tile of queries and a tile of keys. There are three cases:
#
# - **skip**: no query of the tile sees any key of the tile. Do not even load it.
# - **full**: every query sees every key. No mask is needed.
# - **partial**: some pairs are visible. Compute the tile and mask it.
#
# Below: 64 queries and 64 keys in tiles of 16, causal, offset 0. Run this cell and step through
# the query tiles. See how everything above the diagonal is skipped, and that only the tiles on
# the diagonal need a mask. Then raise T and S together: the work saved comes nearer to half.

# %%
from flashkit.widgets.explorers import tile_map_explorer

tile_map_explorer(64, 64)

# %% [markdown]
# Skipping is worth about half the work. The longer the text, the nearer to half, because the
# diagonal is a thin line in a large square. The last column says which share of the tiles is
# visited.

# %% tags=["nbval-check-output"]
from flashkit.cost import tile_counts

counts = {t: tile_counts(t, t, 0, 128, 128) for t in (256, 1024, 4096, 8192)}
print("    T   skip   full  partial  visited")
for t, c in counts.items():
    visited = (c["full"] + c["partial"]) / sum(c.values())
    print(f"{t:5} {c['skip']:6} {c['full']:6} {c['partial']:8}  {visited:7.1%}")

# %% [markdown]
# Real calls are less tidy. In the next picture 40 new queries follow 30 old keys, so the offset
# is 30 and the diagonal is shifted to the right; the window is 24; and neither 40 nor 70 is a
# multiple of 16. See that each row of tiles now has a first tile as well as a last one. No tile
# is full any more: every visited tile needs its mask. Move the offset and watch the band slide;
# widen the window to 40 and the first full tile appears.

# %%
from flashkit.widgets.explorers import tile_map_explorer

tile_map_explorer(40, 70, 30, window=24, name="offset and window")

# %% [markdown]
# ### Exercise 1 · `tile_bounds` (5 points, about 20 minutes)
#
# Query tile `i` holds the query rows from $i \cdot \text{BLOCK\_M}$ up to (not including)
# $\min\big((i+1)\cdot\text{BLOCK\_M},\ T\big)$. Its first row sees the furthest *back*, its last
# row sees the furthest *ahead*. With $p$ for a row's position,
#
# $$ \text{first key} = \max(0,\ p_\text{first} - W + 1), \qquad
#    \text{last key} = \min(S - 1,\ p_\text{last}) . $$
#
# Without a window the first key is 0. Without `causal` the last key is $S - 1$.
#
# **Write** a function of plain integers that returns `(first, stop)`: the number of the first
# key *tile* to visit, and one more than the number of the last. In the picture above, query tile
# 0 stands at positions 30 to 45 and gives `(0, 3)`. If the tile sees nothing at all, return
# `(0, 0)`.
#
# It must hold for ragged ends, for `block_m != block_n`, for a query tile that lies wholly past
# `t`, and for a negative offset (then the first rows come before the first key and see nothing).


# %% nbgrader={"grade_id": "tile_bounds", "solution": true}
def tile_bounds(i, t, s, offset, block_m, block_n, causal=True, window=None):
    """Key tiles that query tile i must visit: (first, stop), integers; (0, 0) if none."""
    # About 7 lines: the positions of the first and last query, the first and last key, the tiles.
    ### BEGIN SOLUTION
    first_position = offset + i * block_m
    last_position = offset + min((i + 1) * block_m, t) - 1
    first_key = 0 if window is None else max(0, first_position - window + 1)
    last_key = min(s - 1, last_position) if causal else s - 1
    if last_position < first_position or last_key < first_key:
        return 0, 0
    return first_key // block_n, last_key // block_n + 1
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-tile_bounds", "grade": true, "points": 5}
check("tile_bounds")
assert tile_bounds(0, 40, 70, 30, 16, 16, window=24) == (0, 3)

# %% [markdown]
# **Your bounds over the truth.** Run this cell: the brackets are the `[first, stop)` that your
# function returns. A tile marked + is visited for nothing, which costs time; a tile marked − is
# left out, which makes the result wrong. Move the offset below 0, set the window to 1, take a
# `BLOCK_N` of 8, turn `causal` off. Do your brackets stay right?

# %%
from flashkit.widgets.explorers import tile_map_explorer

tile_map_explorer(40, 70, 30, window=24, bounds=tile_bounds)

# %% [markdown]
# ## One kernel, three jobs
#
# The offset is one integer, and it turns one kernel into three:
#
# - **prefill**: all $T$ tokens of a prompt at once, $S = T$, offset 0;
# - **chunked prefill**: the next few tokens of a long prompt, $T < S$;
# - **decode**: one new token, $T = 1$.
#
# If the queries are the newest tokens, the offset is $S - T$. That is the default. Below, all
# three jobs give the same rows. The last line is a famous mistake: a single query with offset 0
# believes that it is the first token, and sees only key 0.

# %% tags=["nbval-check-output"]
import flashkit
import torch

device = flashkit.runtime.device()
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 40, 16, device=device) for _ in range(3))
prefill = flashkit.flash_attention(q, k, v)
chunk = flashkit.flash_attention(q[:, :, 16:24], k[:, :, :24], v[:, :, :24])  # offset 24 - 8 = 16
decode = flashkit.flash_attention(q[:, :, 39:], k, v)  # offset 40 - 1 = 39
wrong = flashkit.flash_attention(q[:, :, 39:], k, v, query_offset=0)
print("chunk equals prefill: ", torch.allclose(chunk, prefill[:, :, 16:24], atol=1e-6))
print("decode equals prefill:", torch.allclose(decode, prefill[:, :, 39:], atol=1e-6))
print("offset 0 gives v[0]:  ", torch.allclose(wrong, v[:, :, :1], atol=1e-6))

# %% [markdown]
# ## Grouped queries cost nothing
#
# Many models have fewer key and value heads than query heads. With `group = Hq // Hkv`, query
# head `h` reads KV head **`h // group`**. In PyTorch we repeated K and V to make the shapes fit.
# A kernel needs no repetition: it computes one integer and reads the right head where it lies.
#
# Make sure it is `//`. `h % Hkv` also gives valid heads, but the wrong ones. Below, KV head 0
# holds only zeros and KV head 1 only ones, so each output shows which head was read.

# %% tags=["nbval-check-output"]
import flashkit
import torch

device = flashkit.runtime.device()
torch.manual_seed(0)
q, k = torch.randn(1, 4, 3, 16, device=device), torch.randn(1, 2, 3, 16, device=device)
v = torch.tensor([0.0, 1.0], device=device).reshape(1, 2, 1, 1).expand(1, 2, 3, 16)
o = flashkit.flash_attention(q, k, v)
print("query head      ", [0, 1, 2, 3])
print("h // 2 reads    ", [h // 2 for h in range(4)])
print("h % 2 would read", [h % 2 for h in range(4)])
print("the output shows", [round(o[0, h].mean().item()) for h in range(4)])
mib = 2 * 8192 * 128 * 2 / 2**20  # K and V of one head: T = 8192, D = 128, float16
print(f"K and V of 32 heads: {32 * mib:.0f} MiB; of 8 heads: {8 * mib:.0f} MiB")

# %% [markdown]
# ## Which numbers need 32 bits
#
# **The inputs may be small.** Tensor cores are fastest with float16 or bfloat16 tiles. They
# still add up in float32.
#
# **The statistics may not.** $m$, $\ell$ and $a$ live through the whole loop, and errors pile
# up. Float16 has 11 significant bits: from 2048 on, adding 1 changes nothing any more. The first
# line below adds 4096 ones.
#
# **$p$ is in between.** It is computed in float32. Then it is cast to the type of $v$, because
# both sides of a `tl.dot` must have one type. That costs little: each $p$ lies between 0 and 1,
# is used once, and is summed in float32.
#
# **float32 must mean float32.** Unless you ask otherwise, `tl.dot` on an NVIDIA GPU rounds
# float32 inputs to TF32, which keeps 10 bits after the point of the mantissa instead of 23. The
# last line imitates that rounding: the error grows to about 1e-3. A test at 1e-4 then fails on the
# GPU and passes in the interpreter, which ignores the setting. Write `input_precision="ieee"` in
# both dots. Float16 inputs are not affected.

# %% tags=["nbval-check-output"]
import flashkit
import torch


def to_tf32(x):
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)  # 23 - 10 = 13 bits go


l16, l32 = torch.zeros((), dtype=torch.float16), torch.zeros(())
for _ in range(4096):
    l16, l32 = l16 + 1.0, l32 + 1.0

torch.manual_seed(0)
qkv = [torch.randn(1, 2, 101, 32) for _ in range(3)]
exact = flashkit.causal_attention(*(x.double() for x in qkv))
full = flashkit.causal_attention(*qkv)
tf32 = flashkit.causal_attention(*(to_tf32(x) for x in qkv))
print(f"4096 ones added in float16: {l16.item():.0f}, in float32: {l32.item():.0f}")
print(f"float32 error below 1e-5: {(full - exact).abs().max().item() < 1e-5}")
print(f"TF32 error              : {(tf32 - exact).abs().max().item():.0e}")

# %% [markdown]
# ## Rows that have seen nothing
#
# A tile is visited if *some* row of it sees *some* key. Another row of the same tile may see
# none yet: with a window, the first tile can lie wholly before the window of the tile's last
# rows. For such a row all scores are $-\infty$ and $m$ is still $-\infty$, and
# $-\infty - (-\infty)$ is not a number.
#
# The cure is the one you know from lesson 2: where $m_\text{new} = -\infty$, measure against a
# **safe reference** of 0 instead. Then $\alpha$ and $p$ are $e^{-\infty} = 0$: nothing seen,
# nothing added.
#
# A row that *never* sees a key (a negative offset makes such rows) ends with $\ell = 0$. The
# PyTorch function raised an error. A kernel cannot raise, so ours stores **0** for such a row,
# never NaN.
#
# ## What the kernel reads
#
# Each of the $T / \text{BLOCK\_M}$ query tiles streams K and V once: $2 T d$ elements. Together
# about
#
# $$ \frac{T}{\text{BLOCK\_M}} \cdot 2 T d = \frac{2 T^2 d}{\text{BLOCK\_M}} $$
#
# elements per head, and half of that when causal tiles are skipped. For $d = 128$ and `BLOCK_M`
# $= 128$ this is $2T^2$. Unfused attention moves $4T^2$ score elements (write S, read S, write
# P, read P) besides its own K and V.

# %% tags=["nbval-check-output"]
from flashkit.cost import flash_kv_reads, score_entries

print("    T   K and V read by the kernel   scores moved unfused   (per head)")
for t in (1024, 4096, 8192):
    reads, scores = flash_kv_reads(t, t, 128, 128), 4 * score_entries(t, t)
    print(f"{t:5}   {reads:11,} = {reads / t**2:.0f} T^2   {scores:18,} = {scores / t**2:.0f} T^2")

# %% [markdown]
# Only a factor of two? Look at the picture, in bytes: it has everything that moves. And three
# gains are not in it. Nothing of size $T^2$ is ever allocated. Nothing of size $T^2$ is ever
# *written*. And many of these reads never reach HBM, because neighbouring programs read the same
# K and V and find them in the L2 cache. What remains are two large matrix products per tile: the
# work that a GPU does best.

# %%
from flashkit.widgets import figures

figures.traffic(8192, 128, 128)

# %% [markdown]
# ### Exercise 2 · `flash_attention`, the kernel and its launcher (12 points, about 45 minutes)
#
# For one tile of queries, and for each tile of keys and values that it visits:
#
# $$ \begin{aligned}
# s &= q k^\top / \sqrt d \quad (-\infty \text{ where hidden}), &
# m_\text{new} &= \max\big(m, \textstyle\max_j s\big), \\
# \alpha &= e^{m - m_\text{new}}, \quad p = e^{s - m_\text{new}}, &
# \ell &\leftarrow \alpha \ell + \textstyle\sum_j p, \qquad a \leftarrow \alpha a + p\, v,
# \end{aligned} $$
#
# and after the loop $o = a / \ell$. In a program the shapes are
#
# ```
# q, acc (BLOCK_M, D)    k, v (BLOCK_N, D)    s, p (BLOCK_M, BLOCK_N)    m, l (BLOCK_M,)
# ```
#
# **Write** `flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32)`.
#
# - `q` is `(B, Hq, T, D)`; `k` and `v` are `(B, Hkv, S, D)`; the result is like `q`. `D` is a
#   power of two, at least 16.
# - Causal. Row $i$ stands at `offset + i`; the default offset is `S - T`.
# - Any `T` and `S`, any group, float32 and float16, any strides. `block_m` and `block_n` may
#   differ.
# - Key tiles beyond the last visible key are not visited. Rows that see no key give 0.
# - $m$, $\ell$ and `acc` in float32; $p$ cast to `v`'s dtype; both dots with
#   `input_precision="ieee"`.
#
# The grid has two axes: axis 0 counts the query tiles, axis 1 the `B * Hq` pairs of batch and
# head. The launcher is plain PyTorch: shapes, an empty output, the grid, the call.
#
# The words you need are `tl.load`, `tl.store`, `tl.dot`, `tl.trans`, `tl.where`, `tl.exp`,
# `tl.max`, `tl.sum`, `tl.maximum`, `tl.minimum`, `tl.full`, `tl.zeros`, and an ordinary
# `for start in range(...)`. Between two scalars or two tiles take `tl.maximum`; along an axis of
# one tile, `tl.max(x, axis=1)`.
#
# If the check fails, compare with `flashkit.online_attention` on the smallest case it names: one
# tile first, then two.


# %% nbgrader={"grade_id": "flash_attention", "solution": true}
import math

import torch
import triton
import triton.language as tl


@triton.jit
def _flash_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_ob, stride_oh, stride_ot, stride_od,
    T, S, offset, q_heads, group, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # 1. Which query tile, batch, query head and KV head am I?             about 4 lines
    # 2. Load the query tile once. Rows past T hold 0.                     about 5 lines
    # 3. The state before any key: m, l, acc.                              3 lines
    # 4. Where does the loop over the keys stop?                           1 or 2 lines
    # 5. The loop: load k and v, score, hide, update the state.            about 16 lines
    # 6. Divide (mind rows that saw no key) and store the rows below T.    about 4 lines
    ### BEGIN SOLUTION
    pid_m = tl.program_id(0)
    b = tl.program_id(1) // q_heads
    h = tl.program_id(1) % q_heads
    kv_h = h // group

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    q_base = q_ptr + b * stride_qb + h * stride_qh
    k_base = k_ptr + b * stride_kb + kv_h * stride_kh
    v_base = v_ptr + b * stride_vb + kv_h * stride_vh
    q_ptrs = q_base + offs_m[:, None] * stride_qt + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=offs_m[:, None] < T, other=0.0)  # (BLOCK_M, D)
    positions = offset + offs_m

    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)

    # The last real query of this tile sees the furthest ahead.
    stop = tl.minimum(S, offset + tl.minimum(T, (pid_m + 1) * BLOCK_M))
    for start in range(0, stop, BLOCK_N):
        keys = start + offs_n
        k_ptrs = k_base + keys[:, None] * stride_ks + offs_d[None, :] * stride_kd
        v_ptrs = v_base + keys[:, None] * stride_vs + offs_d[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=keys[:, None] < stop, other=0.0)  # (BLOCK_N, D)
        v = tl.load(v_ptrs, mask=keys[:, None] < stop, other=0.0)

        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_M, BLOCK_N)
        visible = (keys[None, :] <= positions[:, None]) & (keys[None, :] < stop)
        s = tl.where(visible, s, -float("inf"))

        m_new = tl.maximum(m, tl.max(s, axis=1))
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)
        alpha = tl.exp(m - reference)
        p = tl.exp(s - reference[:, None])
        l = alpha * l + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new

    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    o_base = o_ptr + b * stride_ob + h * stride_oh
    o_ptrs = o_base + offs_m[:, None] * stride_ot + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=offs_m[:, None] < T)
    ### END SOLUTION


def flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32):
    """Causal attention. q (B, Hq, T, D); k, v (B, Hkv, S, D); returns o like q."""
    # About 8 lines. q.stride() gives the four strides of q in the order the kernel wants them.
    ### BEGIN SOLUTION
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    offset = s - t if query_offset is None else query_offset
    o = torch.empty_like(q)
    grid = (triton.cdiv(t, block_m), batch * q_heads)
    _flash_kernel[grid](
        q, k, v, o, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        t, s, offset, q_heads, q_heads // kv_heads, 1.0 / math.sqrt(d),
        D=d, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return o
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-flash_attention", "grade": true, "points": 12}
check("flash_attention")
device = flashkit.runtime.device()
v = torch.eye(16, device=device).reshape(1, 1, 16, 16)
o = flash_attention(torch.zeros_like(v), v, v)  # all scores 0: row i is the mean of rows 0..i
assert torch.allclose(o[0, 0, 3, :5].cpu(), torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0]))

# %% [markdown]
# ## Your kernel, tile by tile
#
# In the interpreter your kernel is ordinary Python, so its variables can be watched. Below is one
# query row of your own kernel. Run this cell and move the slider: after each tile of keys you see
# your $m$, $\ell$ and `acc` beside the right ones. At the first tile that differs it stops and
# says which of the three is wrong, by how much, and, if it can, why.
#
# Then choose another query tile or row, more keys, or scores that are all far below 0. If your
# variables have names of your own, they are found by what they hold. On a GPU, restart the
# notebook with `TRITON_INTERPRET=1` to see this.

# %%
from flashkit.widgets.explorers import kernel_explorer

kernel_explorer(flash_attention)

# %% [markdown]
# ## The attention you computed
#
# A kernel never shows its attention matrix. There is a trick to see it anyway: let V be the
# identity. Then $O = PV = P$, and the output *is* the matrix. With $D = 64$ it fits up to 64 keys.
#
# Run this cell: it runs **your** kernel, 40 queries after 8 old keys in tiles of 16. The small map
# judges every tile. Beside it, for one query tile at a time, stand the rows that you computed, the
# right ones, and the difference. Each row must sum to 1.
#
# When a kernel is wrong, *where* it is wrong tells you why: a band on the diagonal (the mask), a
# tile left out (the bounds), a right-hand edge (the ragged tail). Set S to 50 for a ragged tail of
# keys, the offset below 0 for rows that see nothing. For a look at a right kernel, choose
# flashkit's.

# %%
from flashkit.widgets.explorers import attention_explorer

attention_explorer(flash_attention)

# %% [markdown]
# ## What the interpreter does not tell
#
# The interpreter runs the programs one after another, in NumPy. A kernel that passes here can
# still be wrong on a GPU. Four things to know:
#
# - **Out of bounds.** A load without a mask returns whatever lies next in memory. Below, the
#   kernel asks for 8 numbers from a tensor that has 4, and gets the neighbours. No error. When
#   we mark your work, the neighbours are NaN.
# - **Races.** 64 programs each read a counter, add 1 and write it back. One at a time, that
#   counts to
#   64. On a GPU they read the same old value, and the count comes out too small.
# - **bfloat16.** The interpreter's `tl.dot` multiplies the raw bit patterns. The result is
#   nonsense, so flashkit refuses it by name.
# - **Small tiles.** It accepts a dot with sides below 16, and it ignores `input_precision`.

# %% tags=["nbval-check-output"]
import flashkit
import torch
import triton
import triton.language as tl

device = flashkit.runtime.device()


@triton.jit
def _careless_kernel(x_ptr, out_ptr, count_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))  # no mask
    tl.store(count_ptr, tl.load(count_ptr) + 1.0)  # read, add, write: not in one step


memory = torch.arange(8.0, device=device)
x, out, count = memory[:4], torch.empty(8, device=device), torch.zeros(1, device=device)
_careless_kernel[(64,)](x, out, count, N=8)
print("x has 4 numbers, the kernel read", out.tolist())
print("64 programs counted to", count.item())
q = torch.ones(1, 1, 16, 16, dtype=torch.bfloat16, device=device)
try:
    flashkit.flash_attention(q, q, q)
except ValueError as error:
    print("bfloat16:", error)

# %% [markdown]
# ### Exercise 3 · ★★ `flash_attention_window` (6 points, about 25 minutes)
#
# With a window $W$ a row sees only the last $W$ keys up to its own position:
#
# $$ \text{offset} + i - W \;<\; j \;\le\; \text{offset} + i . $$
#
# Whole tiles before the window are **skipped**: the loop starts at the tile of the first key
# that the tile's *first* row sees. Within the boundary tile the keys before the window are
# **masked**.
#
# The picture: $T = S = 96$, window 40. Run its cell and step through the query tiles. See that
# the number of visited tiles per row stops growing. The cost is now proportional to $T \cdot W$
# instead of $T^2$. Then set the window to 32, and to 33: both need three tiles a row. Why not two?
#
# **Write** `flash_attention_window(q, k, v, window, query_offset=None, block_m=32, block_n=32)`,
# with everything that exercise 2 asked for. `window` is at least 1; with `window=1` each row
# sees only its own key. Start from a copy of your kernel: about 4 lines change. Then think again
# about rows that have seen nothing *yet*.

# %%
from flashkit.widgets.explorers import tile_map_explorer

tile_map_explorer(96, 96, window=40, name="a window")


# %% nbgrader={"grade_id": "flash_attention_window", "solution": true}
import math

import torch
import triton
import triton.language as tl


@triton.jit
def _flash_window_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    stride_ob, stride_oh, stride_ot, stride_od,
    T, S, offset, window, q_heads, group, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Your kernel of exercise 2, with a first tile and one more condition.
    ### BEGIN SOLUTION
    pid_m = tl.program_id(0)
    b = tl.program_id(1) // q_heads
    h = tl.program_id(1) % q_heads
    kv_h = h // group

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    q_base = q_ptr + b * stride_qb + h * stride_qh
    k_base = k_ptr + b * stride_kb + kv_h * stride_kh
    v_base = v_ptr + b * stride_vb + kv_h * stride_vh
    q_ptrs = q_base + offs_m[:, None] * stride_qt + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=offs_m[:, None] < T, other=0.0)  # (BLOCK_M, D)
    positions = offset + offs_m

    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)

    # The first query of this tile sees the furthest back, the last real one the furthest ahead.
    first = tl.maximum(0, offset + pid_m * BLOCK_M - window + 1)
    stop = tl.minimum(S, offset + tl.minimum(T, (pid_m + 1) * BLOCK_M))
    for start in range(first // BLOCK_N * BLOCK_N, stop, BLOCK_N):
        keys = start + offs_n
        needed = (keys >= first) & (keys < stop)
        k_ptrs = k_base + keys[:, None] * stride_ks + offs_d[None, :] * stride_kd
        v_ptrs = v_base + keys[:, None] * stride_vs + offs_d[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=needed[:, None], other=0.0)  # (BLOCK_N, D)
        v = tl.load(v_ptrs, mask=needed[:, None], other=0.0)

        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_M, BLOCK_N)
        visible = (keys[None, :] <= positions[:, None]) & needed[None, :]
        visible = visible & (keys[None, :] > positions[:, None] - window)
        s = tl.where(visible, s, -float("inf"))

        m_new = tl.maximum(m, tl.max(s, axis=1))
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)
        alpha = tl.exp(m - reference)
        p = tl.exp(s - reference[:, None])
        l = alpha * l + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new

    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    o_base = o_ptr + b * stride_ob + h * stride_oh
    o_ptrs = o_base + offs_m[:, None] * stride_ot + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=offs_m[:, None] < T)
    ### END SOLUTION


def flash_attention_window(q, k, v, window, query_offset=None, block_m=32, block_n=32):
    """Causal sliding-window attention. q (B, Hq, T, D); k, v (B, Hkv, S, D); returns o like q."""
    ### BEGIN SOLUTION
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    offset = s - t if query_offset is None else query_offset
    o = torch.empty_like(q)
    grid = (triton.cdiv(t, block_m), batch * q_heads)
    _flash_window_kernel[grid](
        q, k, v, o, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        t, s, offset, window, q_heads, q_heads // kv_heads, 1.0 / math.sqrt(d),
        D=d, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return o
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-flash_attention_window", "grade": true, "points": 6}
check("flash_attention_window")
device = flashkit.runtime.device()
q = torch.randn(1, 1, 20, 16, device=device)
assert torch.allclose(flash_attention_window(q, q, q, 1), q, atol=1e-6)  # own key only: o = v

# %% [markdown]
# ## Break this kernel
#
# Now the other side of the table. Here are five kernels, each with one classic bug, and every
# one of them was written by someone who had tests:
#
# | fault | the line should be | the line is |
# |---|---|---|
# | `bound_without_offset` | loop up to `offset + (pid_m + 1) * BLOCK_M` | the offset is missing |
# | `gqa_modulo` | `kv_h = h // group` | `kv_h = h % kv_heads` |
# | `last_tile_skipped` | tiles of keys rounded up | `S // BLOCK_N` tiles, rounded down |
# | `max_starts_at_zero` | `m` starts at $-\infty$ | `m` starts at 0 |
# | `padded_keys_counted` | hide where `keys >= S` too | only the causal condition |
#
# `faulty_attention(fault, q, k, v, query_offset)` runs them, in tiles of 16 by 16. Below is a
# test as one finds it in many places: one head, $T = S = 32$, random numbers, a tolerance of
# 0.01. See that all five pass.

# %% tags=["nbval-check-output"]
import torch
from flashkit import causal_attention
from flashkit.faults import faulty_attention

torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, 32, 16) for _ in range(3))
want = causal_attention(q, k, v)
for fault in (
    "bound_without_offset", "gqa_modulo", "last_tile_skipped",
    "max_starts_at_zero", "padded_keys_counted",
):  # fmt: skip
    error = (faulty_attention(fault, q, k, v) - want).abs().max().item()
    print(f"{fault:22} {'passes' if error < 0.01 else 'FAILS'}")

# %% [markdown]
# ### Exercise 4 · `counterexample` (5 points, about 15 minutes)
#
# For each fault find inputs on which it is wrong:
#
# $$ \text{faulty}(q, k, v, \text{offset}) \;\ne\; \text{right}(q, k, v, \text{offset}) . $$
#
# Do not search at random. Ask of each line in the table: *when* does it matter? Look at the tile
# map again: which tiles does the weak test have, and which does it lack?
#
# **Write** `counterexample(fault)`, which gets one of the five names and returns a tuple
# `(q, k, v, query_offset)`.
#
# - `q` `(1, Hq, T, D)`, `k` and `v` `(1, Hkv, S, D)`, float32, on the CPU; small: a few thousand
#   numbers are plenty.
# - `query_offset` is `None` for the default $S - T$, or an integer that is not negative.
# - All numbers are finite, and a *right* kernel must still be right on them. One point per
#   fault.


# %% nbgrader={"grade_id": "counterexample", "solution": true}
import torch


def counterexample(fault):
    """Inputs (q, k, v, query_offset) on which the kernel with this fault is wrong."""
    # About 15 lines. Start from the weak test and change one thing for each fault.
    ### BEGIN SOLUTION
    q_heads, kv_heads, t, s, offset = 1, 1, 32, 32, None
    if fault == "bound_without_offset":
        t = 16  # sixteen old keys: the offset is 16
    elif fault == "gqa_modulo":
        q_heads, kv_heads = 4, 2  # head 1 reads KV head 0; with % it would read KV head 1
    elif fault == "last_tile_skipped":
        t = s = 20  # the last tile has only four keys
    elif fault == "padded_keys_counted":
        s, offset = 20, 40  # all rows stand past the last key, so causality hides no padding
    torch.manual_seed(0)
    q = torch.randn(1, q_heads, t, 16)
    k = torch.randn(1, kv_heads, s, 16)
    v = torch.randn(1, kv_heads, s, 16)
    if fault == "max_starts_at_zero":
        q, k = q - 10.0, k + 10.0  # scores near -400, and exp(-400) is 0 in float32
    return q, k, v, offset
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-counterexample", "grade": true, "points": 5}
check("counterexample")
assert len(counterexample("gqa_modulo")) == 4

# %% [markdown]
# ## A question to end with
#
# Twice the `BLOCK_M` means half the reads of K and V. Why not take `BLOCK_M = 1024`? Find your
# own answer before you open this one. It is not graded.
#
# <details><summary>Answer</summary>
#
# Set `BLOCK_M` to 1024 in the first cell of this lesson and run it: the scores and the
# accumulator no longer fit into the registers of an SM. There would also be fewer programs,
# perhaps too few to keep every SM busy. The tile is a compromise.
#
# </details>
#
# ## Summary
#
# - A program takes a tile of queries of one (batch, head). K and V stream past; $m$, $\ell$ and
#   $a$ stay on the chip. Nothing of size $T^2$ is written.
# - The bounds of the loop come from the first and the last query of the tile. Causality skips
#   about half of the tiles, a window skips most of them.
# - The offset makes prefill, chunked prefill and decode one kernel; `h // group` makes grouped
#   heads free.
# - Statistics in float32, `input_precision="ieee"`, a safe reference for rows that have seen
#   nothing.
# - A test proves little until you know which bugs it would catch.
#
# **Next:** lesson 4. Your kernel is right for a single query too, but then most of the GPU
# stands idle. You will cut the keys instead, and merge.
