# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 6 · Beyond
#
# You have built FlashAttention, forwards and backwards. What is used today goes further: it is
# nine times faster than your kernel on the same GPU, reads its keys from pages, computes with 8
# bits, and spreads one text over many GPUs. In this lesson you run each of these ideas, see what
# it changes, and find that all of them stand on the rule that you wrote in lesson 4.
#
# **Afterwards you can**
#
# - say what FlashAttention changes about attention, what it does not, and show both by counting;
# - say what FlashAttention-2 and -3 added, and what each step was worth on an H200;
# - find a key in a paged KV cache, and decode from one without copying it;
# - say when a ring of GPUs hides its transfers, and how FP8 lives with four significant bits;
# - tell from a roofline how fast something *can* be, before anybody measures it.
#
# **Time:** about 120 minutes: 60 to read and run, 60 for the exercises.
#
# **You need** lessons 1, 2 and 4; lesson 3 helps. No GPU. What was measured was measured on one
# H200, and is read from the repository's `benchmarks/results`.

# %% nbgrader={"grade_id": "imports"}
import math

import flashkit  # before triton: it chooses the interpreter where there is no GPU
import torch

from flashkit.exercises import check

# %% [markdown]
# ## What FlashAttention changes, and what it does not
#
# Count, for one head of width 128: the scores that unfused attention stores, what FlashAttention
# holds in their place, the bytes that each moves, and the operations.

# %% tags=["nbval-check-output"]
from flashkit.cost import flash_bytes, flops, score_bytes, unfused_bytes

print("        T   S and P     m, l   bytes moved   with tiles   operations")
for t in [1024, 8192, 65536, 1048576]:
    stored, kept = 2 * score_bytes(t, t) / 2**20, 8 * t / 2**20
    moved, tiled = unfused_bytes(t, t, 128) / 2**30, flash_bytes(t, t, 128, 128) / 2**30
    work = flops(t, t, 128, causal=False) / 1e12
    print(f"{t:9,} {stored:9,.0f} {kept:8.2f} {moved:13,.2f} {tiled:12,.2f} {work:12,.2f}")
print("            MiB      MiB           GiB          GiB         1e12")

# %% [markdown]
# - **It changes** memory: $O(T^2)$ becomes $O(T)$. And traffic: half of it in this count, which
#   knows no cache (most reads of K and V come from the L2), and none of it is scores. That is
#   what makes long attention bound by arithmetic, and fast.
# - **It does not change** the result, up to rounding. Nor the arithmetic: $4 T^2 D$ operations
#   for each head, half of that if causal. Four times the tokens, sixteen times the work.
#
# So with the memory gone, the arithmetic is what is left. An H200 does at most $989 \cdot 10^{12}$
# operations a second. The cell below divides. It is the reason for sparse and linear attention,
# which are other models. FlashAttention is not.

# %% tags=["nbval-check-output"]
from flashkit.cost import DEVICES, flops

peak = DEVICES["H200"].flops
for t in [8192, 131072, 1048576]:
    seconds = flops(t, t, 128, heads=32) / peak
    print(f"T = {t:9,}: a causal layer of 32 heads takes {seconds:9.4f} s at the least")

# %% [markdown]
# ## FlashAttention-2: which loop is outside
#
# The first FlashAttention walked over *keys* in the outer loop: each tile of K and V is read once,
# and all queries come by. But then a row is touched by every tile, so its $m$, $\ell$ and output
# go to memory and come back each time, and all rows of a head must share one program. Your kernel
# has the loops the other way round. That is FlashAttention-2:
#
# ```
#   FlashAttention (2022)                 FlashAttention-2 (2023)
#   for a tile of keys:                   for a block of queries:        <- a program each
#       for a block of queries:               m, l, acc in registers
#           load o, m, l                      for a tile of keys:
#           update                                update
#           store o, m, l                     o = acc / l, stored once
#   one program a head                    T / BLOCK_M programs a head
# ```
#
# The second idea is to do less *outside* the matmuls, which are the only thing that tensor cores
# do: $a$ is divided by $\ell$ once, at the end, as you do it since lesson 1.
#
# `flashkit.kernels.loop_order` has both orders, as two kernels that differ in nothing else. They
# give the same numbers. Count what differs.

# %% tags=["nbval-check-output"]
import torch
from flashkit.contracts import check_qkv
from flashkit.cost import flash_bytes, keys_outside_bytes, non_matmul_flops
from flashkit.kernels.loop_order import keys_outside_fwd, queries_outside_fwd
from flashkit.runtime import device

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 48, 16, device=device())
options = {"offset": 0, "causal": True, "window": None, "scale": 0.25, "block_m": 16}
first, _ = keys_outside_fwd(q, k, v, check_qkv(q, k, v), **options, block_n=16)
second, _ = queries_outside_fwd(q, k, v, check_qkv(q, k, v), **options, block_n=16)
print("largest difference below 1e-6:", bool((first - second).abs().max() < 1e-6))

T, D, BLOCK_M, BLOCK_N, heads = 16384, 128, 128, 64, 32
print("                            keys outside   queries outside")
print(f"programs of {heads} heads        {heads:12,} {heads * T // BLOCK_M:17,}")
old, new = keys_outside_bytes(T, T, D, BLOCK_N), flash_bytes(T, T, D, BLOCK_M)
print(f"bytes moved by a head, GiB  {old / 2**30:12.2f} {new / 2**30:17.2f}")
old, new = (non_matmul_flops(T, T, D, BLOCK_N, keys_outside=x) for x in (True, False))
matmuls = 4 * D * T * T
print(f"operations outside matmuls  {old / matmuls:12.2%} {new / matmuls:17.2%}")

# %% [markdown]
# Two per cent sounds like nothing. But the tensor cores do a thousand operations in the time in
# which other units do sixteen exponentials. What is outside counts many times.
#
# ## FlashAttention-3: who works when
#
# In your kernel a program does $QK^\top$, then the softmax, then $PV$, in turn. For one score, an
# H200's SM needs $D / 1024$ clocks of its tensor cores and $1 / 16$ of a clock for the
# exponential. At $D = 64$ both take as long. In turn, each of them is idle half of the time.
#
# FlashAttention-3 gives *roles* to the warps of one program. A producer has the copy engine (TMA)
# fetch tiles, and computes nothing. Two groups of consumers compute, half a turn apart: while the
# one is at its exponentials, the other has the tensor cores.

# %% tags=["nbval-check-output"]
from flashkit.widgets.figures.beyond import busy_share

for d in [64, 128, 256]:
    print(f"D = {d:3}: in turn, the tensor cores are busy {busy_share(d):.0%} of the time at best")

# %%
from flashkit.widgets import figures

figures.timeline(d=128)

# %% [markdown]
# The kernel that does this here, in Gluon, the language below Triton, is
# `flashkit/kernels/hopper.py`; `docs/hopper.md` reads it slowly. Whether the compiler keeps the
# overlap is another matter: it is easily lost, and nothing says so but the clock.
#
# **Measured.** The same attention, one idea more in each bar. Find your own kernel: with its small
# tiles it stands on the third bar or below.

# %%
from flashkit.bench import ladder
from flashkit.bench.results import newest
from flashkit.widgets import figures

names = {rung.implementation.name for rung in (*ladder.IDEA_RUNGS, *ladder.RUNGS)} | {"cudnn"}
found = newest("ladder", lambda row: row.implementation == "keys outside")
rungs = ladder.IDEA_RUNGS if found else ladder.RUNGS
where, _, rows = newest("ladder", lambda row: row.implementation in names)
print(where)
figures.ladder(rungs, ladder.PREFILLS[0], rows)

# %% [markdown]
# ## The same in CUDA C++
#
# Triton decides which thread does what. In CUDA C++ you do. Below is a forward kernel for one
# head, from scratch: a warp has a row of Q, a lane has a key. Read `flash_kernel` and find your
# five lines; then see what is new: tiles are copied to `shared` memory by hand, `__syncthreads`
# waits until all have come, and a maximum over 32 lanes is five shuffles.

# %%
from flashkit import native

print(native.source("cuda"))

# %% [markdown]
# The next cell builds and runs it, where there is a GPU and NVIDIA's compiler. The state of the
# last row after each tile is compared with `flashkit.online`.

# %% tags=["nbval-check-output"]
import torch
from flashkit import native

if torch.cuda.is_available() and "cuda" in native.languages():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 300, 64, device="cuda")
    o, _, trace = native.cuda_attention(q, k, v, tile=32, trace_row=299)
    want, python = native.online_attention(q[299].cpu(), k.cpu(), v.cpu(), 32, language="python")
    for name, x, y in zip("mla", trace, python, strict=True):
        print(f"{name}: off by less than 1e-4: {bool((x.cpu() - y).abs().max() < 1e-4)}")
else:
    print("No GPU with a CUDA compiler here: the source is above, its trace is that of lesson 2.")

# %% [markdown]
# ## A cache in pages
#
# A server that writes many texts at once does not know how long each will be. If each sequence had
# room for the longest, in one piece, most of the memory would wait for tokens that never come.
# So the cache is cut into **pages** of, say, 16 tokens, as an operating system cuts up memory, and
# a sequence takes a page when it needs one. Where its pages lie, the **block table** says:
#
# ```
#   block_table                        k_pages (pages, page size, Hkv, D), here of 4 rows
#   sequence 0   [ 5, 2, 7 ]           page 0   .  .  .  .
#   sequence 1   [ 1, 3, -1 ]          page 1   1: keys 0  1  2  3
#                                      page 2   0: keys 4  5  6  7
#   lengths      [ 10, 6 ]             page 3   1: keys 4  5  .  .
#                                      page 4   .  .  .  .
#   key i of sequence b lies in        page 5   0: keys 0  1  2  3
#     page  block_table[b, i // 4]     page 6   .  .  .  .
#     row   i % 4                      page 7   0: keys 8  9  .  .
# ```
#
# What is in the free rows belongs to nobody: it is what an older text left there.

# %% tags=["nbval-check-output"]
import torch

torch.manual_seed(0)
lengths = (2 ** torch.randint(5, 13, (64,))) + torch.randint(0, 32, (64,))
longest, page = 8192, 16
used = int(lengths.sum())
reserved = 64 * longest
in_pages = int(((lengths + page - 1) // page * page).sum())
print(f"64 texts, {used:,} tokens in all")
print(f"room for {longest:,} each: {reserved:9,} rows, {used / reserved:6.1%} of them in use")
print(f"pages of {page}:           {in_pages:9,} rows, {used / in_pages:6.1%} of them in use")

# %% [markdown]
# ### Exercise 1 · `gather_pages` (4 points, about 10 minutes)
#
# Put the keys of one sequence side by side.
#
# **Write** `gather_pages(pages, block_table, length)`.
#
# | argument | shape | |
# |---|---|---|
# | `pages` | `(pages, page size, Hkv, D)` | any strides, any page size |
# | `block_table` | `(n,)`, int32 | of one sequence; entries past its last page may be anything |
# | `length` | an integer | how many keys it has; may be 0 |
#
# **Return** `k` `(Hkv, length, D)` in the dtype of `pages`: key $i$ of head $h$ is `k[h, i]`.


# %% nbgrader={"grade_id": "gather_pages", "solution": true}
import torch


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    # About 4 lines: number the keys, find page and row of each, index, exchange two axes.
    ### BEGIN SOLUTION
    size = pages.shape[1]
    keys = torch.arange(length, device=pages.device)
    page = block_table[keys // size].long()
    return pages[page, keys % size].transpose(0, 1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-gather_pages", "grade": true, "points": 4}
check("gather_pages")
pages = torch.arange(8.0).reshape(4, 2, 1, 1)
assert gather_pages(pages, torch.tensor([3, 0]), 3).flatten().tolist() == [6.0, 7.0, 0.0]

# %% [markdown]
# ## Decoding where the keys lie
#
# To gather is to copy the whole cache for each new token: it costs as much as attention itself,
# which only *reads* it once. So do not gather. A page is a tile: $m$, $\ell$ and $a$ do not care
# where it lies, or in which order the tiles come.
#
# ### Exercise 2 · `paged_decode` (8 points, about 30 minutes)
#
# Attention of one new query for each sequence, page by page, in PyTorch.
#
# **Write** `paged_decode(q, k_pages, v_pages, block_table, lengths)`.
#
# | argument | shape | |
# |---|---|---|
# | `q` | `(B, Hq, 1, D)` | float32 or float16; head `h` reads KV head `h // (Hq // Hkv)` |
# | `k_pages`, `v_pages` | `(pages, page size, Hkv, D)` | any strides, any page size |
# | `block_table` | `(B, n)`, int32 | entries past a sequence's last page may be anything |
# | `lengths` | `(B,)`, int32 | keys of each sequence; the query sees them all |
#
# **Return** `o` `(B, Hq, 1, D)` in the dtype of `q`; 0 for a sequence without keys.
#
# - Keep $m$, $\ell$ and $a$ in float32, and cast once at the end.
# - Free rows may hold anything, even infinity, and $0 \cdot \infty$ is not a number. So do not
#   mask them: leave them out.
# - Loop over sequences and pages. The query heads of a group are rows that share one tile: shape
#   `q[b]` as `(Hkv, group, D)`, a page as `(Hkv, n, D)`.


# %% nbgrader={"grade_id": "paged_decode", "solution": true}
import math

import torch


def paged_decode(q, k_pages, v_pages, block_table, lengths):
    """o (B, Hq, 1, D) of one query a sequence, one page at a time. Shapes as in the table."""
    # About 18 lines: for each sequence a fresh state; for each page its used rows and the update.
    ### BEGIN SOLUTION
    size, kv_heads, d = k_pages.shape[1:]
    o = torch.zeros_like(q)
    for b, length in enumerate(lengths.tolist()):
        rows = q[b].float().reshape(kv_heads, -1, d) / math.sqrt(d)
        m = torch.full((*rows.shape[:2], 1), -math.inf, device=q.device)
        l, acc = torch.zeros_like(m), torch.zeros_like(rows)
        for start in range(0, length, size):
            page, n = block_table[b, start // size], min(size, length - start)
            k, v = (x[page, :n].float().transpose(0, 1) for x in (k_pages, v_pages))
            s = rows @ k.mT
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            alpha, p = torch.exp(m - m_new), torch.exp(s - m_new)
            l = alpha * l + p.sum(-1, keepdim=True)
            acc = alpha * acc + p @ v
            m = m_new
        if length > 0:
            o[b] = (acc / l).reshape(-1, 1, d)
    return o
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-paged_decode", "grade": true, "points": 8}
check("paged_decode")
scores, values = torch.tensor([0.0, 1.0, 2.0, -1.0]), torch.tensor([2.0, 4.0, 1.0, 3.0])
k_pages, v_pages = (torch.stack([x[2:], x[:2]]).view(2, 2, 1, 1) for x in (scores, values))
o = paged_decode(
    torch.ones(1, 1, 1, 1), k_pages, v_pages, torch.tensor([[1, 0]]), torch.tensor([4])
)
assert abs(o.item() - 1.8619) < 1e-4  # the worked example, its two tiles in pages 1 and 0

# %% [markdown]
# ## As a kernel
#
# `flashkit.paged_decode` is flash-decoding over pages: splits as in lesson 4, and each split looks
# its pages up in the table. Below it runs beside `flash_decode`, on the same keys: the one in
# pages in a random order, the other in one piece. Then two sequences *share* the pages of a common
# beginning: a system prompt is stored once, however many texts begin with it.

# %% tags=["nbval-check-output"]
import flashkit
import torch
from flashkit.runtime import device

torch.manual_seed(0)
q = torch.randn(2, 4, 1, 16, device=device())
k, v = torch.randn(2, 2, 2, 32, 16, device=device())  # two sequences, two KV heads, 32 keys
k[1, :, :16], v[1, :, :16] = k[0, :, :16], v[0, :, :16]  # that begin alike
table = torch.tensor([[4, 1, 0, 6], [4, 1, 3, 5]], device=device())
k_pages, v_pages = torch.zeros(2, 7, 8, 2, 16, device=device())  # 7 pages of 8 rows
for pages, x in ((k_pages, k), (v_pages, v)):
    for b in range(2):
        pages[table[b]] = x[b].transpose(0, 1).reshape(4, 8, 2, 16)
lengths = torch.tensor([32, 29])
paged = flashkit.paged_decode(q, k_pages, v_pages, table, lengths)
whole = flashkit.flash_decode(q, k, v, lengths=lengths)
print("largest difference below 1e-6:", bool((paged - whole).abs().max() < 1e-6))
print("pages that hold a key:", len(table.unique()), "of 8 that two sequences would take alone")

# %% [markdown]
# ## A ring of GPUs
#
# A model in training cannot hold a text of one million tokens on one GPU: K and V of a single
# layer with 8 heads are 4 GiB. Give each of $n$ GPUs, the *ranks*, $T / n$ tokens. Every layer but
# attention works on tokens one by one. For attention, each rank keeps its *queries*, and K and V
# travel round the ring. In $n$ steps everybody has seen everything, and what a rank finds in a
# step is a **part**, which it merges.
#
# ```
#               step 0    step 1    step 2    step 3
# rank 0  Q0    K0 V0     K3 V3     K2 V2     K1 V1
# rank 1  Q1    K1 V1     K0 V0     K3 V3     K2 V2       each sends to the next,
# rank 2  Q2    K2 V2     K1 V1     K0 V0     K3 V3       and receives from the one before
# rank 3  Q3    K3 V3     K2 V2     K1 V1     K0 V0
# ```
#
# Nothing in this needs more than one process to be understood. Here are four ranks as four entries
# of a list, causal, with the state of lesson 1 and your `merge`, and "sending" is a shift.

# %% tags=["nbval-check-output"]
import torch
from flashkit.online import EMPTY, finish, merge, update
from flashkit.reference import causal_attention

torch.manual_seed(0)
world, T, D = 4, 64, 16
q, k, v = torch.randn(3, T, D).double()
position = torch.arange(T).chunk(world)
queries = [q[p] / D**0.5 for p in position]
travelling = [(k[p], v[p], p) for p in position]  # what each rank has of the keys just now
state = [EMPTY] * world
for _ in range(world):
    for rank in range(world):
        keys, values, at = travelling[rank]
        seen = at[None, :] <= position[rank][:, None]
        if seen.any():  # else there is nothing to do, and the rank waits
            scores = (queries[rank] @ keys.T).masked_fill(~seen, -torch.inf)
            state[rank] = merge(state[rank], update(EMPTY, scores, values))
    travelling = [travelling[rank - 1] for rank in range(world)]
o = torch.cat([finish(x) for x in state])
want = causal_attention(*(x[None, None] for x in (q, k, v)))[0, 0]
print("the ring against one process, below 1e-12:", bool((o - want).abs().max() < 1e-12))

# %% [markdown]
# **"The rank waits"** is the trouble with that. The last tokens see everything, the first nearly
# nothing: rank 0 has work in one step of four. So cut $T$ into $2n$ chunks, and give rank $r$ the
# chunks $r$ and $2n - 1 - r$, one early and one late: *zigzag*. Compare the columns below. In each
# step everybody waits for the slowest.

# %%
from flashkit.widgets import figures

figures.ring_work(world=4)

# %% [markdown]
# While a rank computes, the next keys are already on their way. The transfer costs nothing as long
# as it takes less time than the computing. With $C = T / n$ tokens on a rank, $F$ operations a
# second and $W$ bytes a second to the neighbour:
#
# $$ \frac{4 D H_q \, C^2 / 2}{F} \;\ge\; \frac{4 D H_{kv} \, C}{W}
#    \quad\Longleftrightarrow\quad C \;\ge\; \frac{2F}{W} \cdot \frac{H_{kv}}{H_q} . $$
#
# It is the length of the *shard* that counts, not that of the text, and grouped heads help.

# %% tags=["nbval-check-output"]
for what, rate in [("NVLink, within a host", 400e9), ("400 Gbit/s, between hosts", 50e9)]:
    tokens = 2 * 600e12 / rate * 8 / 32
    print(f"{what:26} {rate / 1e9:4.0f} GB/s: hidden from {tokens:5,.0f} tokens a rank")
print("what a rank sends, T = 1,048,576 on 8 ranks, 8 KV heads of 128, 16 bits:")
shard = 1048576 // 8
print(f"  forward   K and V, {2 * 2 * 8 * shard * 128 / 2**20:,.0f} MiB a step, 7 times")
print(f"  backward  the same, and dK, dV, {2 * 4 * 8 * shard * 128 / 2**20:,.0f} MiB, 8 times")

# %% [markdown]
# `flashkit.ring.ring_attention` is this for any number of processes, forwards and backwards, on
# CPUs and GPUs; `docs/ring.md` says how to start it. What one rank of $n$ has to do in each step,
# and how many bytes a second its links must bring so that it never waits, was measured on one
# H200:

# %%
from flashkit.bench.results import records

where, rows = records("ring-step") or ("No rows of a ring here: see benchmarks/ring_step.py.", [])
print(where)
for row in rows:
    if row["direction"] == "forward" and row["rank"] == "0":
        step, needed, share = (float(row[x]) for x in ("hop_ms", "needed_gbs", "efficiency"))
        what = f"T {int(row['T']):8,} on {row['ranks']} rank(s): {step:6.1f} ms a step,"
        print(f"{what} {needed:5.1f} GB/s needed, {share:.2f} of one GPU's speed")

# %% [markdown]
# ## Eight bits
#
# Hopper's tensor cores do twice the work on FP8. The format e4m3 has a sign, 4 bits of exponent
# and 3 of mantissa: it ends at 448, and every number is off by up to one part in 16. Two things
# make that bearable.
#
# **A scale for each block of rows**, so that a large number spoils its block and no other. **A
# rotation** of Q and K alike: with $R$ orthogonal, $(QR)(KR)^\top = QK^\top$, so nothing changes,
# except that a single large entry is spread over all columns. $R$ is a Hadamard matrix with random
# signs, and costs $D \log D$ additions.
#
# Here it is on the CPU, with outliers as in the FlashAttention-3 paper: one entry in a thousand is
# ten times as large. Only the rounding is imitated; the attention around it is exact.

# %% tags=["nbval-check-output"]
import torch
from flashkit.fp8 import dequantize, hadamard, quantize, random_signs

torch.manual_seed(0)
T, D, BLOCK = 1024, 128, 128
q, k, v = torch.randn(3, T, D) + 10 * torch.randn(3, T, D) * (torch.rand(3, T, D) < 1e-3)


def attend(q, k, v):
    """Exact, without a mask, in float64."""
    return torch.softmax(q.double() @ k.double().T / D**0.5, -1) @ v.double()


def rounded(x, block):
    """What is left of x after e4m3."""
    return dequantize(*quantize(x, block), block)


want, signs = attend(q, k, v), random_signs(D)
turned = hadamard(q, signs), hadamard(k, signs), v
ways = {
    "bfloat16": [x.bfloat16() for x in (q, k, v)],
    "e4m3, one scale a tensor": [rounded(x, None) for x in (q, k, v)],
    "e4m3, a scale a block": [rounded(x, BLOCK) for x in (q, k, v)],
    "e4m3, a scale a block, rotated": [rounded(x, BLOCK) for x in turned],
}
for name, inputs in ways.items():
    error = (attend(*inputs) - want).square().mean().sqrt() / want.square().mean().sqrt()
    print(f"{name:32} {error:8.2%} off")

# %% [markdown]
# What `flashkit.fp8_attention` does on the H200, with P rounded to 8 bits as well:

# %%
from flashkit.bench.results import records

where, rows = records("fp8") or ("No rows of FP8 here: see benchmarks/fp8.py.", [])
print(where)
for row in rows:
    if row["table"] == "error":
        print(f"{row['inputs']:9} {row['method']:34} rmse {row['rmse']:>9}")
    elif (row["D"], row["T"], row["causal"]) == ("128", "16384", "False"):
        print(f"D 128, T 16384, no mask: {row['method']:26} {row['TFLOP/s']:>6} TFLOP/s")

# %% [markdown]
# ## What the roofline says
#
# You need no GPU to know how fast something can be. Two numbers of the machine do: an H200 has
# $F = 989 \cdot 10^{12}$ operations a second (16 bits, tensor cores) and $W = 4.8 \cdot 10^{12}$
# bytes a second. Work that does fewer operations for each byte than $F / W$ is bound by memory,
# and takes at least bytes $/ W$. The rest is bound by arithmetic: at least operations $/ F$.
#
# ### Exercise 3 · `read_roofline` (6 points, about 20 minutes)
#
# Predict, on paper or in code. **Write** `read_roofline()`, which returns a dict of six numbers,
# to two digits or better (3 % off is fine). 32 query heads on 8 KV heads, $D = 128$, 2 bytes a
# number:
#
# | key | |
# |---|---|
# | `ridge` | operations a byte at which an H200 turns from memory to arithmetic |
# | `decode_intensity` | operations a byte of decode, when K and V are read once and $S$ is long |
# | `decode_us` | microseconds for one token of 16 sequences with 8,192 keys each, at the least |
# | `prefill_ms` | milliseconds for one causal prefill, $T = S = 16{,}384$, at the least |
# | `share_percent` | such a prefill took 3.31 ms: what percentage of $F$ is that? |
# | `ring_tokens` | tokens a rank from which a ring hides its transfers: $F$ 600e12, $W$ 50e9 |
#
# Attention does $4 D$ operations for each visible pair and query head. Each number is a case.


# %% nbgrader={"grade_id": "read_roofline", "solution": true}
def read_roofline():
    """Six numbers by name, see the table."""
    ### BEGIN SOLUTION
    peak, bandwidth = 989e12, 4.8e12
    cache = 2 * 2 * 8 * 128 * 8192  # bytes of K and V of one sequence
    work = 4 * 128 * 32 * 16384**2 / 2  # causal
    return {
        "ridge": peak / bandwidth,
        "decode_intensity": 4 * 128 * 32 * 8192 / cache,
        "decode_us": 16 * cache / bandwidth * 1e6,
        "prefill_ms": work / peak * 1e3,
        "share_percent": 100 * work / 3.31e-3 / peak,
        "ring_tokens": 2 * 600e12 / 50e9 * 8 / 32,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-read_roofline", "grade": true, "points": 6}
check("read_roofline")
assert all(float(x) > 0 for x in read_roofline().values())

# %% [markdown]
# ## And what the clock says
#
# The limits above are datasheet numbers. A large matmul reaches about 800 of the 989, and a copy
# about 4.3 of the 4.8. Below are rows as they were measured, with the share of *that*.

# %%
from flashkit.bench.results import newest

shown = {
    "forward": ("hopper", "cudnn"),
    "decode": ("triton", "cudnn"),
    "backward": ("hopper",),
}
sizes = (1024, 8192, 16384)
for path, names in shown.items():
    found = newest(
        "quick", lambda row, path=path: row.shape.path == path and row.measure == "call"
    )
    for row in found[2] if found else ():
        wanted = row.shape.d == 128 and row.shape.s in sizes
        if row.implementation in names and row.share and wanted:
            speed = f"{row.gbs:5.0f} GB/s" if path == "decode" else f"{row.tflops:5.0f} TFLOP/s"
            print(f"{row.shape.label:44} {row.implementation:8} {speed:14} {row.share:4.0%}")

# %% [markdown]
# If this machine has a GPU, the next cell measures it: one forward pass of `flash_attention` at
# growing $T$, the median of ten.

# %% tags=["nbval-check-output"]
import flashkit
import torch
from flashkit.cost import flops


def milliseconds(function, times=10):
    """The median time of a call on the GPU."""
    function()
    spans = []
    for _ in range(times):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        stop.synchronize()
        spans.append(start.elapsed_time(stop))
    return sorted(spans)[times // 2]


if torch.cuda.is_available():
    print(torch.cuda.get_device_name())
    for t in [1024, 4096, 16384]:
        q, k, v = torch.randn(3, 1, 16, t, 64, device="cuda", dtype=torch.float16)
        ms = milliseconds(lambda q=q, k=k, v=v: flashkit.flash_attention(q, k, v))
        print(f"T = {t:6,}: {ms:8.3f} ms, {flops(t, t, 64, heads=16) / ms / 1e9:6.1f} TFLOP/s")
else:
    print("No GPU here: nothing to measure. The interpreter's times say nothing about a GPU.")

# %% [markdown]
# ## One rule
#
# | what | the parts | where they lie | who merges |
# |---|---|---|---|
# | FlashAttention | tiles of keys | one after the other in one program | the loop: `update` |
# | flash-decoding | splits of the keys | programs of one GPU | a second kernel |
# | paged KV | pages | anywhere in memory, by a table | the loop, then the second kernel |
# | ring attention | the keys of a rank | other GPUs, they come by | each rank, after each step |
# | FP8 | tiles with scales of their own | one program | $\alpha$ times a ratio of scales |
#
# ### Question 6 (1 point, about 5 minutes)
#
# Which property is it that lets the same keys be cut into tiles, splits, pages and shards?
#
# - **a** · Softmax is linear in the scores, so that parts of it may be added.
# - **b** · The maximum of all scores is known before the first tile, from the lengths of Q and K.
# - **c** · Partial results over disjoint keys merge exactly: $(m, \ell, a)$ of a union follows
#   from those of its parts, in any order and grouping.
# - **d** · Most weights are so small that the parts hardly influence each other.
#
# Return one letter.


# %% nbgrader={"grade_id": "question_6", "solution": true}
def answer_6():
    """One of "a", "b", "c", "d"."""
    ### BEGIN SOLUTION
    return "c"
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-question_6", "grade": true, "points": 1}
check("question_6")
assert isinstance(answer_6(), str)

# %% [markdown]
# ## Summary
#
# - FlashAttention makes memory linear and traffic small. The arithmetic stays $O(T^2 D)$, and is
#   what is left to pay.
# - FlashAttention-2 exchanged the loops: a program a block of queries, state in registers, less
#   work outside the matmuls. FlashAttention-3 gave roles to warps, so that copies, matmuls and
#   exponentials run at the same time.
# - In a paged cache a key is found by `block_table[b, i // page_size]` and `i % page_size`. A page
#   is a tile.
# - A ring hides its transfers from a shard of $2F/W \cdot H_{kv}/H_q$ tokens on, and zigzag shares
#   causal work equally.
# - FP8 needs scales by block, and a rotation against outliers.
# - All of it rests on one rule, which is the one you derived with four scores and a pencil.
#
# ## Going deeper
#
# - *Programming Massively Parallel Processors*, section 20.5 (pages 492 to 503): FlashAttention
#   derived and implemented in CUDA. Section 20.6: the arithmetic intensity of the KV cache.
# - GPU Mode lectures: 12 (FlashAttention, with a CUDA version from scratch), 13 (ring attention
#   and the log-sum-exp merge), 36 (FlashAttention-3 with CUTLASS).
# - Dao et al., *FlashAttention* (2022); Dao, *FlashAttention-2* (2023); Shah et al.,
#   *FlashAttention-3* (2024): three papers, one idea at a time.
# - Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018).
# - Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*
#   (2023). Liu, Zaharia and Abbeel, *Ring Attention with Blockwise Transformers* (2023).
# - The Triton tutorial *Fused Attention*. FlashInfer and vLLM, for what serving needs on top.
# - In this repository: `docs/ladder.md`, `docs/hopper.md`, `docs/decode.md`, `docs/ring.md`,
#   `docs/fp8.md`, and `docs/chapter.md`, which says for every sentence of the chapter where it is
#   kept.
