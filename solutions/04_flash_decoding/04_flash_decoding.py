# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 4 · Flash-decoding
#
# The kernel of lesson 3 is right for a single query too. It is only slow: when a model writes
# its answer token by token, almost the whole GPU stands idle. In this lesson you cut the *keys*
# into parts, let many programs work on them at once, and put the parts together again. The rule
# that joins them is one you know already.
#
# **Afterwards you can**
#
# - say why decoding needs another division of the work than prefill;
# - merge partial results $(m, \ell, a)$ in any order and any grouping, and say why that is
#   exact;
# - write flash-decoding as two Triton kernels, one that splits and one that merges;
# - say what FlashAttention changes about attention, and what it does not.
#
# **Time:** about 120 minutes: 35 to read and run, 85 for the exercises.
#
# **You need** lessons 1 to 3. No GPU: the interpreter runs the kernels, and the shapes are
# small.

# %% nbgrader={"grade_id": "imports"}
import math

import flashkit  # before triton: it chooses the interpreter where there is no GPU
import torch
import triton
import triton.language as tl
from flashkit.exercises import check

# %% [markdown]
# ## Decode is different
#
# In **prefill** there are thousands of queries. Lesson 3 cut them into tiles, and each tile of
# each head is a program: more than enough for every SM.
#
# In **decode** there is one query per sequence, and a long cache of keys and values. There is
# nothing to cut on the side of the queries. The query heads of one KV head read the same keys,
# so they share a program. What is left is one program per (batch, KV head).

# %% tags=["nbval-check-output"]
from flashkit.cost import DEVICES, decode_programs

sms = DEVICES["H200"].sms
prefill = (8192 // 128) * 32  # tiles of 128 queries, 32 query heads, batch 1
decode = decode_programs(batch=1, kv_heads=8)
print(f"prefill, T = 8192: {prefill:5} programs for {sms} SMs")
print(f"decode,  T = 1:    {decode:5} programs for {sms} SMs, {sms - decode} of them idle")
print(f"share of the GPU at work: {decode / sms:.1%}")

# %% [markdown]
# Eight programs for 132 SMs. And each of them has a long way to go: with a cache of 8,192 tokens
# it walks through all 8,192 keys, one tile after the other.
#
# What is the work made of? Every byte of K and V is read once and used for only a few
# operations. The cell below counts. A GPU can do hundreds of operations in the time it takes to
# read a byte, so decode is limited by *reading*. To read at full speed, all SMs must read at
# once.

# %% tags=["nbval-check-output"]
from flashkit.cost import DEVICES, flops, roofline_time

S, D, heads, kv_heads = 8192, 128, 32, 8
gpu = DEVICES["H200"]
operations = flops(1, S, D, heads=heads)
cache = 2 * kv_heads * S * D * 2  # K and V of one sequence and layer, float16
print(f"operations {operations / 1e6:.0f} million, cache {cache / 2**20:.0f} MiB")
print(f"operations per byte: {operations / cache:.0f}")
print(f"the H200 could do:   {gpu.flops / gpu.bandwidth:.0f}")
print(f"at best {roofline_time(operations, cache, gpu) * 1e6:.1f} microseconds, all SMs reading")

# %% [markdown]
# So there must be more programs, and the keys are the only thing left to cut. Cut them into
# `num_splits` parts: then there are `B * Hkv * num_splits` programs.
#
# **Run the cell below and move the slider** from one part upwards. See where the bars pass the
# line of the SMs, and how many SMs stand idle in the last wave. (When there are more programs
# than SMs, they run one *wave* after another.) The predicted time comes from a simple model: it
# counts the bytes each program reads, and calls arithmetic and launches free. Then raise the
# batch, and see that fewer parts are enough. The tree at the bottom joins the parts of a small
# row again. How, the next two sections say.

# %%
from flashkit.widgets.explorers import split_explorer

split_explorer(batch=1, kv_heads=8)

# %% [markdown]
# ## A part is a state
#
# What does a program know that has seen only *some* keys? It cannot know the weights: the
# denominator needs all scores. It does know the running state of lesson 1, for its own keys:
#
# $$ m_i = \max_j s_j, \;\; \ell_i = \sum_j e^{s_j - m_i}, \;\; a_i = \sum_j e^{s_j - m_i} v_j . $$
#
# Here is the worked example again, scores $[0, 1, 2, -1]$ and values $[2, 4, 1, 3]$. This time
# the two halves know nothing of each other. Both start from EMPTY.

# %% tags=["nbval-check-output"]
import torch
from flashkit import EMPTY, update

scores = torch.tensor([0.0, 1.0, 2.0, -1.0])
values = torch.tensor([[2.0], [4.0], [1.0], [3.0]])
left = update(EMPTY, scores[:2], values[:2])
right = update(EMPTY, scores[2:], values[2:])
for name, part in (("left ", left), ("right", right)):
    print(f"{name}  m = {part.m.item():.4f}  l = {part.l.item():.4f}  a = {part.a.item():.4f}")

# %% [markdown]
# ## The merge rule
#
# The left part measured its terms against $m_1 = 1$, the right one against $m_2 = 2$. They may
# not be added like that. Lesson 1 had the same trouble with old and new terms, and one factor
# cured it:
#
# $$ e^{s - m} = e^{s - m_i} \cdot e^{m_i - m} . $$
#
# Take the larger of the two maxima as the common reference $m$. Multiply each part by its own
# factor. Then add:
#
# $$ m = \max_i m_i, \qquad \ell = \sum_i e^{m_i - m}\, \ell_i, \qquad
#    a = \sum_i e^{m_i - m}\, a_i, \qquad O = a / \ell . $$
#
# The update of lesson 1 is the special case in which the second part is a fresh tile, whose
# terms are already measured against the new maximum. Nothing here is approximate.

# %% tags=["nbval-check-output"]
import flashkit
import torch
from flashkit import EMPTY, finish, update

scores = torch.tensor([0.0, 1.0, 2.0, -1.0])
values = torch.tensor([[2.0], [4.0], [1.0], [3.0]])
left = update(EMPTY, scores[:2], values[:2])
right = update(EMPTY, scores[2:], values[2:])
whole = flashkit.merge(left, right)
factors = [torch.exp(part.m - whole.m).item() for part in (left, right)]
print(f"factors {factors[0]:.4f} and {factors[1]:.4f}")
print(f"l = {whole.l.item():.4f}  a = {whole.a.item():.4f}  O = {finish(whole).item():.4f}")
print(f"softmax of all four scores:       {(scores.softmax(0) @ values).item():.4f}")

# %% [markdown]
# Now cut as finely as possible: four parts of one key each. A part with one key is simply
# $m = s$, $\ell = 1$, $a = v$. **Run the cell and move the slider**: each step makes one merge,
# and the rule stands beside the tree with its numbers. See that the two nodes in the middle are
# the left and right part from above, and that the last node is the same as before. Then let it
# merge from left to right, or from right to left: other nodes on the way, the same end.

# %%
from flashkit.widgets.explorers import merge_explorer

merge_explorer("0, 1, 2, -1", "2, 4, 1, 3", parts=4)

# %% [markdown]
# ## Any order, any grouping
#
# Merging behaves like addition:
#
# - it is **commutative**: $x \oplus y = y \oplus x$;
# - it is **associative**: $(x \oplus y) \oplus z = x \oplus (y \oplus z)$;
# - it has a **zero**: EMPTY $= (-\infty, 0, 0)$, and $x \oplus \text{EMPTY} = x$.
#
# Why? Every state stands for two plain sums over its keys, $\sum e^{s_j}$ and
# $\sum e^{s_j} v_j$, written with a common factor $e^{m}$ taken out so that nothing overflows.
# Merging adds the sums. Sums do not care about order.
#
# Five parts, in float64, grouped in five ways. Each line prints the first two numbers of $O$.

# %% tags=["nbval-check-output"]
from functools import reduce

import torch
from flashkit import EMPTY, finish, update
from flashkit import merge as join

torch.manual_seed(0)
a, b, c, d, e = (
    update(EMPTY, 5 * torch.randn(3).double(), torch.randn(3, 2).double()) for _ in range(5)
)
groupings = {
    "(((a b) c) d) e": reduce(join, [a, b, c, d, e]),
    "a (b (c (d e)))": join(a, join(b, join(c, join(d, e)))),
    "(a b) (c d) e": join(join(join(a, b), join(c, d)), e),
    "d b e a c": reduce(join, [d, b, e, a, c]),
    "with EMPTY": reduce(join, [EMPTY, a, EMPTY, b, c, d, e, EMPTY]),
}
want = finish(groupings["(((a b) c) d) e"])
for name, state in groupings.items():
    o = finish(state)
    same = (o - want).abs().max().item() < 1e-12
    print(f"{name:16} O = {o[0].item():.4f}, {o[1].item():.4f}   the same to 1e-12: {same}")

# %% [markdown]
# ## The same rule, with log-sum-exp
#
# Many libraries hand over a finished part: the normalised output $o_i = a_i / \ell_i$ and one
# number, the **log-sum-exp** $L_i = m_i + \ln \ell_i$. That is enough to merge:
#
# $$ L = \ln\big(e^{L_1} + e^{L_2}\big), \qquad o = e^{L_1 - L}\, o_1 + e^{L_2 - L}\, o_2 . $$
#
# Two traps. The $L_i$ are logarithms, so they are **not added**: two parts with $L = 0$ hold a
# sum of 1 each, together 2, and $L = \ln 2$. And some libraries use base 2. Mixing the bases
# gives no error message, only wrong weights.

# %% tags=["nbval-check-output"]
import flashkit
import torch
from flashkit import EMPTY, finish, lse, update

one = update(EMPTY, torch.tensor([0.0]), torch.tensor([[1.0]]))  # score 0, value 1
two = update(EMPTY, torch.tensor([0.0]), torch.tensor([[5.0]]))  # score 0, value 5
both = flashkit.merge(one, two)
print(f"L of the parts: {lse(one).item():.4f} and {lse(two).item():.4f}")
print(f"L of both: {lse(both).item():.4f}   ln 2 = {torch.tensor(2.0).log().item():.4f}")
weights = [torch.exp(lse(part) - lse(both)).item() for part in (one, two)]
print(f"weights {weights[0]:.4f} and {weights[1]:.4f}, O = {finish(both).item():.4f}")

# %% [markdown]
# ### Exercise 1 · `merge` (4 points, about 10 minutes)
#
# $$ m = \max(m_1, m_2), \qquad \ell = e^{m_1 - m}\, \ell_1 + e^{m_2 - m}\, \ell_2, \qquad
#    a = e^{m_1 - m}\, a_1 + e^{m_2 - m}\, a_2 . $$
#
# **Write** `merge(a, b)`. Each argument is a tuple `(m, l, a)` for `T` rows, with shapes `(T,)`,
# `(T,)` and `(T, D)`. Return a tuple of the same kind.
#
# - A part may be empty in some rows: $m = -\infty$, $\ell = 0$, $a = 0$. Merging with it changes
#   nothing. If both are empty, so is the result. No NaN.
# - Let `a` have one axis more than `m`, whatever the shape of `m`. Then your function also works
#   for `(B, Hq, T)` rows, and exercise 2 can use it.


# %% nbgrader={"grade_id": "merge", "solution": true}
import torch


def merge(a, b):
    """Join two partial softmaxes over disjoint keys: m (T,), l (T,), a (T, D) each."""
    # About 8 lines: the common maximum, a safe reference, one factor for each part, two sums.
    ### BEGIN SOLUTION
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = torch.maximum(m_a, m_b)
    reference = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    weight_a = torch.exp(m_a - reference)
    weight_b = torch.exp(m_b - reference)
    l = weight_a * l_a + weight_b * l_b
    acc = weight_a[..., None] * acc_a + weight_b[..., None] * acc_b
    return m, l, acc
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-merge", "grade": true, "points": 4}
check("merge")
part = (torch.zeros(1), torch.ones(1), torch.ones(1, 2))
assert merge(part, part)[1].item() == 2.0

# %% [markdown]
# ### Exercise 2 · ★★ `split_attention` (5 points, about 20 minutes)
#
# Before any kernel, the whole idea in PyTorch. Cut the $S$ keys into `num_splits` consecutive
# parts. For part $i$ with keys $K_i, V_i$, compute the state **on its own**, from nothing:
#
# $$ s = Q K_i^\top / \sqrt d, \qquad m_i = \max_j s, \qquad \ell_i = \sum_j e^{s - m_i}, \qquad
#    a_i = e^{s - m_i}\, V_i . $$
#
# Then merge the parts and divide once, at the very end.
#
# ```
# keys   0 1 2 3 | 4 5 6 7 | 8 9 .      S = 10 keys, num_splits = 3
#        part 0    part 1    part 2
#       (m, l, a) (m, l, a) (m, l, a)   merged: (m, l, a), then o = a / l
# ```
#
# **Write** `split_attention(q, k, v, num_splits=4)`: `q` is `(B, Hq, T, D)`, `k` and `v` are
# `(B, Hkv, S, D)`, the result is like `q`.
#
# - Causal, bottom right: row $i$ stands at $S - T + i$ and sees the keys up to its own position.
#   So a row may see nothing of a part. ($T \le S$.)
# - `num_splits` may be larger than `S`. Then some parts hold no key at all.
# - Compute in float32, return `q`'s dtype. Group as in lesson 3. Parts run in a Python loop:
#   fine here.


# %% nbgrader={"grade_id": "split_attention", "solution": true}
import math

import torch


def split_attention(q, k, v, num_splits=4):
    """Causal attention, its keys cut into parts. q (B, Hq, T, D); k, v (B, Hkv, S, D)."""
    # About 22 lines. Your merge does the joining.
    ### BEGIN SOLUTION
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    k = k.float().repeat_interleave(q_heads // kv_heads, dim=1)
    v = v.float().repeat_interleave(q_heads // kv_heads, dim=1)
    positions = torch.arange(s - t, s, device=q.device)[:, None]  # (T, 1)
    keys = torch.arange(s, device=q.device)[None, :]  # (1, S)
    size = math.ceil(s / num_splits)

    m = torch.full((batch, q_heads, t), -torch.inf, device=q.device)
    state = (m, torch.zeros_like(m), torch.zeros(*m.shape, v.shape[-1], device=q.device))
    for start in range(0, s, size):  # parts without keys are left out: they would change nothing
        part = slice(start, start + size)
        scores = q.float() @ k[:, :, part].transpose(-2, -1) / math.sqrt(d)
        scores = scores.masked_fill(keys[:, part] > positions, -torch.inf)
        m = scores.amax(-1)
        p = torch.exp(scores - torch.where(m == -torch.inf, 0.0, m)[..., None])
        state = merge(state, (m, p.sum(-1), p @ v[:, :, part]))
    m, l, acc = state
    return (acc / l[..., None]).to(q.dtype)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-split_attention", "grade": true, "points": 5}
check("split_attention")
q = torch.randn(1, 1, 4, 16)
assert torch.allclose(split_attention(q, q, q, 9), split_attention(q, q, q, 1), atol=1e-6)

# %% [markdown]
# ## Two kernels
#
# On the GPU the parts run at the same time. A program cannot wait for another, so the merge
# needs a second kernel, launched after the first:
#
# 1. **split**: one program per (batch, KV head, part). It runs the loop of lesson 3 over its own
#    keys and stores $m_i$, $\ell_i$ and $a_i$, not normalised, in float32.
# 2. **merge**: one program per (batch, query head). It loads the parts, merges them, divides,
#    stores.
#
# Two details make the split kernel good.
#
# **Packing.** `tl.dot` wants at least 16 rows, and we have one query. But the `group` query
# heads of a KV head all read the *same* keys. Pack them as the rows of one tile: row `g` is
# query head `kv_h * group + g`. Pad to 16 rows, or to the next power of two above. K and V are
# then read once per KV head instead of once per query head.
#
# **No mask but the end.** The query is the newest token, so it sees every key. Only the end of
# the part has to be masked.

# %% tags=["nbval-check-output"]
S, D, heads, kv_heads = 8192, 128, 32, 8
group = heads // kv_heads
for name, readers in (("one program per query head", heads), ("group packed in a tile", kv_heads)):
    print(f"{name:27} reads {2 * readers * S * D * 2 / 2**20:4.0f} MiB of K and V")
print(f"rows of the tile in use: {group} of 16")
num_splits = 16
partial = heads * num_splits * (D + 2) * 4  # m, l and acc in float32
cache = 2 * kv_heads * S * D * 2
print(f"partial results of {num_splits} parts: {partial / 2**10:.0f} KiB,", end=" ")
print(f"{partial / cache:.1%} of the cache")

# %% [markdown]
# Twelve of 16 rows are empty, and it does not matter: decode waits for memory, not for
# arithmetic. The partial results are small beside the cache, so the second kernel is cheap.
#
# `flashkit.flash_decode` with `backend="teaching"` is this pair of kernels; on a GPU a tuned pair
# runs by default. Below, the number of parts changes nothing but the last digits. It is also the
# same as the last row of ordinary attention.

# %% tags=["nbval-check-output"]
import flashkit
import torch

device = flashkit.runtime.device()
torch.manual_seed(0)
q = torch.randn(1, 4, 1, 16, device=device)
k, v = (torch.randn(1, 2, 100, 16, device=device) for _ in range(2))
want = flashkit.causal_attention(q.double(), k.double(), v.double())
errors = {
    n: (flashkit.flash_decode(q, k, v, num_splits=n, backend="teaching") - want).abs().max().item()
    for n in (1, 2, 3, 8)
}
for num_splits, error in errors.items():
    print(f"{num_splits} parts: error below 1e-6: {error < 1e-6}")

# %% [markdown]
# ### Exercise 3 · `decode_split` (6 points, about 30 minutes)
#
# Part $i$ of `num_splits` holds the keys from $i \cdot c$ up to
# $\min\big((i + 1) \cdot c,\ S\big)$ with $c = \lceil S / \text{num\_splits} \rceil$. For its
# keys, and the `group` queries of one KV head,
#
# $$ m_i = \max_j s_j, \;\; \ell_i = \sum_j e^{s_j - m_i}, \;\; a_i = \sum_j e^{s_j - m_i} v_j . $$
#
# ```
#            part 0   part 1   part 2          q     (BLOCK_G, D)
# KV head 0  program  program  program         k, v  (BLOCK_N, D)
# KV head 1  program  program  program         s, p  (BLOCK_G, BLOCK_N)
# ```
#
# **Write** `decode_split(q, k, v, num_splits)`: a kernel and its launcher. `q` is
# `(B, Hq, 1, D)`, `k` and `v` are `(B, Hkv, S, D)`, float32 or float16, any strides, `D` a power
# of two. Return float32 tensors
#
# ```
# m, l (B, Hq, num_splits)        acc (B, Hq, num_splits, D)
# ```
#
# - Walk through a part in tiles of `BLOCK_N` keys (16 is enough here). The cut may fall inside a
#   tile.
# - A part may hold no key (`num_splits > S`). Store $m = -\infty$, $\ell = 0$, $a = 0$ for it.
# - Another cut into consecutive parts is fine as well. We merge what you return, then compare.


# %% nbgrader={"grade_id": "decode_split", "solution": true}
import math

import torch
import triton
import triton.language as tl


@triton.jit
def _decode_split_kernel(
    q_ptr, k_ptr, v_ptr, m_ptr, l_ptr, acc_ptr,
    stride_qb, stride_qh, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd,
    S, kv_heads, group, num_splits, scale,
    D: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # 1. Which batch, KV head and part am I? Which keys are mine?        about 6 lines
    # 2. Load the queries of my group as one tile; padding rows hold 0.   about 5 lines
    # 3. The loop of lesson 3 over my keys only.                          about 18 lines
    # 4. Store m, l and acc of the real heads. m, l and acc are contiguous. about 6 lines
    ### BEGIN SOLUTION
    split = tl.program_id(1)
    b = tl.program_id(0) // kv_heads
    kv_h = tl.program_id(0) % kv_heads
    size = tl.cdiv(S, num_splits)
    begin = split * size
    stop = tl.minimum(S, begin + size)

    offs_g = tl.arange(0, BLOCK_G)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    heads = kv_h * group + offs_g
    real = offs_g < group
    q_base = q_ptr + b * stride_qb
    q_ptrs = q_base + heads[:, None] * stride_qh + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=real[:, None], other=0.0)  # (BLOCK_G, D)
    k_base = k_ptr + b * stride_kb + kv_h * stride_kh
    v_base = v_ptr + b * stride_vb + kv_h * stride_vh

    m = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, D), tl.float32)
    for start in range(begin, stop, BLOCK_N):
        keys = start + offs_n
        mine = keys < stop
        k_ptrs = k_base + keys[:, None] * stride_ks + offs_d[None, :] * stride_kd
        v_ptrs = v_base + keys[:, None] * stride_vs + offs_d[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=mine[:, None], other=0.0)  # (BLOCK_N, D)
        v = tl.load(v_ptrs, mask=mine[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_G, BLOCK_N)
        s = tl.where(mine[None, :], s, -float("inf"))

        # Every tile of the loop holds a key that every row sees, so m_new is finite.
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp(m - m_new)
        p = tl.exp(s - m_new[:, None])
        l = alpha * l + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new

    rows = (b * kv_heads * group + heads) * num_splits + split
    tl.store(m_ptr + rows, m, mask=real)
    tl.store(l_ptr + rows, l, mask=real)
    tl.store(acc_ptr + rows[:, None] * D + offs_d[None, :], acc, mask=real[:, None])
    ### END SOLUTION


def decode_split(q, k, v, num_splits):
    """Partial m, l (B, Hq, num_splits) and acc (B, Hq, num_splits, D), float32."""
    # About 14 lines. triton.next_power_of_2(n) helps with BLOCK_G.
    ### BEGIN SOLUTION
    batch, q_heads, _, d = q.shape
    kv_heads, s = k.shape[1], k.shape[2]
    group = q_heads // kv_heads
    m = torch.empty(batch, q_heads, num_splits, dtype=torch.float32, device=q.device)
    l = torch.empty_like(m)
    acc = torch.empty(batch, q_heads, num_splits, d, dtype=torch.float32, device=q.device)
    stride_qb, stride_qh, _, stride_qd = q.stride()
    _decode_split_kernel[(batch * kv_heads, num_splits)](
        q, k, v, m, l, acc, stride_qb, stride_qh, stride_qd, *k.stride(), *v.stride(),
        s, kv_heads, group, num_splits, 1.0 / math.sqrt(d),
        D=d, BLOCK_G=max(16, triton.next_power_of_2(group)), BLOCK_N=16,
    )  # fmt: skip
    return m, l, acc
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-decode_split", "grade": true, "points": 6}
check("decode_split")
device = flashkit.runtime.device()
x = torch.ones(1, 1, 5, 16, device=device)
m, l, acc = decode_split(x[:, :, :1], x, x, 1)  # five equal scores in one part
assert l.item() == 5.0
assert m.item() == 4.0

# %% [markdown]
# ### Exercise 4 · `decode_merge` (5 points, about 20 minutes)
#
# $$ m = \max_i m_i, \qquad o = \frac{\sum_i e^{m_i - m}\, a_i}{\sum_i e^{m_i - m}\, \ell_i} . $$
#
# One program takes one (batch, query head): a row of `num_splits` maxima, a row of sums, and a
# `(num_splits, D)` tile of accumulators.
#
# ```
# m    (num_splits,)    max  ->  ()         weights exp(m_i - m)   (num_splits,)
# l    (num_splits,)    weighted sum  ->  ()
# acc  (num_splits, D)  weighted sum over the parts  ->  (D,)
# ```
#
# **Write** `decode_merge(m, l, acc)`: a kernel and its launcher. `m` and `l` are
# `(B, Hq, num_splits)`, `acc` is `(B, Hq, num_splits, D)`, all float32, `D` a power of two.
# Return `o` `(B, Hq, 1, D)` in float32.
#
# - `num_splits` need not be a power of two, and `tl.arange` wants one. Load more lanes, mask
#   them, and choose each `other` so that a padding lane acts like EMPTY.
# - Some parts are EMPTY. If all parts of a row are, its output is 0.
# - No `tl.dot` is needed here: `tl.sum` with `axis=0` will do.


# %% nbgrader={"grade_id": "decode_merge", "solution": true}
import torch
import triton
import triton.language as tl


@triton.jit
def _decode_merge_kernel(
    m_ptr, l_ptr, acc_ptr, o_ptr, num_splits, D: tl.constexpr, BLOCK_P: tl.constexpr
):
    # About 14 lines. m, l, acc and o are contiguous.
    ### BEGIN SOLUTION
    row = tl.program_id(0)  # which (batch, query head)
    offs_p = tl.arange(0, BLOCK_P)
    offs_d = tl.arange(0, D)
    real = offs_p < num_splits
    parts = row * num_splits + offs_p
    m = tl.load(m_ptr + parts, mask=real, other=-float("inf"))  # (BLOCK_P,)
    l = tl.load(l_ptr + parts, mask=real, other=0.0)
    acc_ptrs = acc_ptr + parts[:, None] * D + offs_d[None, :]
    acc = tl.load(acc_ptrs, mask=real[:, None], other=0.0)  # (BLOCK_P, D)

    m_all = tl.max(m, axis=0)
    reference = tl.where(m_all == -float("inf"), 0.0, m_all)
    weights = tl.exp(m - reference)
    l_all = tl.sum(weights * l, axis=0)
    a = tl.sum(weights[:, None] * acc, axis=0)  # (D,)
    tl.store(o_ptr + row * D + offs_d, a / tl.where(l_all == 0.0, 1.0, l_all))
    ### END SOLUTION


def decode_merge(m, l, acc):
    """Join the parts: m, l (B, Hq, num_splits), acc (B, Hq, num_splits, D) -> o (B, Hq, 1, D)."""
    # About 6 lines.
    ### BEGIN SOLUTION
    batch, q_heads, num_splits, d = acc.shape
    m, l, acc = m.contiguous(), l.contiguous(), acc.contiguous()
    o = torch.empty(batch, q_heads, 1, d, dtype=torch.float32, device=acc.device)
    _decode_merge_kernel[(batch * q_heads,)](
        m, l, acc, o, num_splits, D=d, BLOCK_P=triton.next_power_of_2(num_splits)
    )
    return o
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-decode_merge", "grade": true, "points": 5}
check("decode_merge")
device = flashkit.runtime.device()
m, l = torch.zeros(1, 1, 3, device=device), torch.ones(1, 1, 3, device=device)
o = decode_merge(m, l, torch.ones(1, 1, 3, 16, device=device))  # three equal parts
assert torch.equal(o, torch.ones_like(o))

# %% [markdown]
# ## How many parts?
#
# Too few, and SMs stand idle. Too many, and each program hardly starts before it stops, and the
# merge has more to read. A simple rule works well: about two programs for each SM, but no part
# shorter than one tile of keys.
#
# See how a large batch needs hardly any splits: there, the sequences themselves fill the GPU.

# %% tags=["nbval-check-output"]
from flashkit.cost import DEVICES, decode_programs, decode_splits

sms = DEVICES["H200"].sms
print("batch  cache length   parts  programs")
for batch in (1, 4, 32):
    for s in (512, 8192, 131072):
        parts = decode_splits(batch, 8, s, sms)
        print(f"{batch:5} {s:13,} {parts:7} {decode_programs(batch, 8, parts):9,}")

# %% [markdown]
# ## One rule, many uses
#
# Because parts can be merged in any grouping, it does not matter *where* a part was computed.
#
# - **Ring attention** puts the parts on different GPUs. Each GPU keeps its queries, the keys and
#   values travel round the ring, and every GPU merges what passes by. Sequences no longer have
#   to fit on one GPU.
# - **A paged KV cache** keeps the keys in pages, scattered in memory, with a table that says
#   where. Each page, or run of pages, gives a part. The pages need not be neighbours.
# - **A shared prefix**: if many requests begin with the same text, its part can be computed for
#   all of them together and merged with each one's own.
#
# Production kernels rest on the recurrence you wrote, and add to it:
#
# | | what it adds |
# |---|---|
# | FlashAttention-2 | programs for tiles of the sequence, too; less work that is no matmul |
# | FlashAttention-3 | Hopper: asynchronous copies (TMA); some warps load, others compute; FP8 |
# | FlashInfer | paged and ragged KV caches, many variants, a plan that balances the work |
# | vLLM | a paged KV cache for serving; its kernels read the pages where they lie |
#
# ## What FlashAttention changes, and what it does not
#
# **It changes** the memory for intermediates, from $O(T^2)$ to $O(T)$. It changes the traffic to
# HBM, so that long sequences are limited by arithmetic and no longer by memory.
#
# **It does not change** the result, except for rounding. And it does not change the arithmetic:
# that is still $O(T^2 d)$. Twice the length is four times the work, in the last column below. At
# very long contexts this becomes the limit. Sparse and linear attention lower it, but they
# compute something else.

# %% tags=["nbval-check-output"]
from flashkit.cost import flops, score_bytes

print("      T   scores of a head    m and l   operations (causal, D = 128)")
for t in (4096, 8192, 16384):
    statistics = 2 * t * 4 / 2**10  # one m and one l a row, float32
    work = flops(t, t, 128) / 1e9
    scores = score_bytes(t, t) / 2**20
    print(f"{t:7} {scores:14.0f} MiB {statistics:7.0f} KiB {work:10.1f} billion")

# %% [markdown]
# ### Question 4 (1 point, about 5 minutes)
#
# Why does decode need another parallelisation (flash-decoding) than prefill?
#
# - **a** · With one query there is only one row of scores, and the running maximum cannot be
#   rescaled.
# - **b** · The causal mask hides most of the keys from the newest token, so whole programs have
#   nothing to do.
# - **c** · Decode does more arithmetic per byte than prefill, so the tensor cores of a few SMs
#   become the limit.
# - **d** · There are no query tiles to hand out: one program per batch and KV head is far fewer
#   than there are SMs, so the long key axis has to be shared out instead.
#
# Return one letter.


# %% nbgrader={"grade_id": "question_4", "solution": true}
def answer_4():
    """One of "a", "b", "c", "d"."""
    ### BEGIN SOLUTION
    return "d"
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-question_4", "grade": true, "points": 1}
check("question_4")
assert isinstance(answer_4(), str)

# %% [markdown]
# ## Summary
#
# - Decode has one query per sequence. It is limited by reading the cache, and with one program
#   per (batch, KV head) most of the GPU does not read.
# - The keys can be cut anywhere. A part is a state $(m, \ell, a)$.
# - States are merged by the rescaling of lesson 1. The rule is associative and commutative, and
#   EMPTY is its zero. One rule joins tiles, splits, pages and GPUs.
# - Two kernels: split (a group of query heads in one tile) and merge.
#
# You have now written the forward half of FlashAttention, from four scores by hand to two
# kernels.
#
# ## Going deeper
#
# - *Programming Massively Parallel Processors*, section 20.5 (pages 492 to 503): FlashAttention
#   derived and implemented in CUDA. Section 20.6: the arithmetic intensity of the KV cache.
# - GPU Mode lectures: 12 (FlashAttention, with a CUDA version from scratch), 13 (ring attention
#   and the log-sum-exp merge), 36 (FlashAttention-3).
# - Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018).
# - Dao et al., *FlashAttention* (2022); Dao, *FlashAttention-2* (2023); Shah et al.,
#   *FlashAttention-3* (2024).
# - The Triton tutorial *Fused Attention*: the same kernel, tuned further.
