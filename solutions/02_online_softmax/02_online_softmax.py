# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 2 · Online softmax for every row
#
# **When you are done** you can write the recurrence for all batches, heads and rows at once, mask
# by absolute position, handle the two kinds of row that see nothing, and measure what the
# recurrence saves.
#
# **Time:** about 100 minutes, of which 60 are exercises.
#
# **You need:** lesson 1, and PyTorch's broadcasting. No GPU. With a C++ or a Rust compiler you can
# also run the recurrence in those languages; without one you read it.
#
# **How to work:** as before, top to bottom with Shift+Enter. Replace each `raise
# NotImplementedError(...)` with your own code, then run the check below it. Three exercises,
# 12 points; a star marks the one that is an extra step.

# %% nbgrader={"grade_id": "imports"}
import math

import torch

from flashkit.exercises import check
from flashkit.masks import positions, visible

# %% [markdown]
# ## From one row to all rows
#
# In lesson 1 a row had three things: $m$, $\ell$ and $a$. Rows do not talk to one another. So for
# many rows we need no new mathematics, only more of the same numbers:
#
# | | one row | all rows |
# |---|---|---|
# | scores of a tile | `(N,)` | `(..., N)` |
# | $m$, $\ell$ | `()` | `(...)` |
# | $a$ | `(D,)` | `(..., D)` |
#
# The dots stand for batch, head and query. `flashkit.online` has the recurrence as three names:
# `EMPTY`, the state before anything was seen; `update`, one tile; `finish`, the division
# $a / \ell$. Here they run five rows of twelve scores.

# %% tags=["nbval-check-output"]
from flashkit.online import EMPTY, finish, update

generator = torch.Generator().manual_seed(0)
scores = torch.randn(5, 12, generator=generator, dtype=torch.float64)
values = torch.randn(12, 3, generator=generator, dtype=torch.float64)
state = EMPTY
for start in range(0, 12, 4):
    state = update(state, scores[:, start : start + 4], values[start : start + 4])

whole = torch.softmax(scores, dim=-1) @ values
print("m, l, a:", *(tuple(x.shape) for x in state))
print("same as the whole softmax:", bool((finish(state) - whole).abs().max() < 1e-12))

# %% [markdown]
# ## Masks by absolute position
#
# A language model is causal: a token sees itself and what came before it. It is tempting to say
# "mask the upper triangle". That is only right if the queries and the keys are the same tokens.
# With a KV cache they are not: there are $T$ queries and $S \ge T$ keys, because the older keys
# are already in the cache. (From here on $S$ is the number of keys, as in the code.)
#
# What never goes wrong is to ask *where each token stands in the text*. The queries are the newest
# tokens, so query row $i$ stands at position
#
# $$\text{offset} + i, \qquad \text{offset} = S - T,$$
#
# and it sees key $j$ if and only if $j \le \text{offset} + i$. One rule covers three situations:
#
# - **full prefill**, $T = S$: the whole prompt at once;
# - **chunked prefill**, $1 < T < S$: the next part of a long prompt;
# - **decode**, $T = 1$: one new token against everything before it.

# %% tags=["nbval-check-output"]
from flashkit.masks import positions, visible

for name, t, s in [("full prefill", 6, 6), ("chunked prefill", 3, 6), ("decode", 1, 6)]:
    rows = positions(None, 1, t, s - t, torch.device("cpu"))
    keys = positions(None, 1, s, 0, torch.device("cpu"))
    print(f"{name}: T = {t}, S = {s}, offset = {s - t}")
    for position, row in zip(rows[0].tolist(), visible(rows, keys)[0, 0].tolist(), strict=True):
        print(f"  query at {position}:", " ".join("#" if seen else "." for seen in row))

# %%
from flashkit.widgets import figures

figures.tile_map(8, 20, 12, 4, 4)

# %% [markdown]
# **In the picture above** the same rule is drawn tile by tile, for 8 queries and 20 keys in tiles
# of 4 by 4. A full square is a tile in which everything is visible; a dot, one in which nothing
# is; a half square is cut by the diagonal and needs the mask. The diagonal ends in the bottom
# right corner, whatever $T$ and $S$ are. That is what $\text{offset} = S - T$ means.
#
# The classic mistake is to let it start in the *top left* corner, which is $\text{offset} = 0$.
# With a full prefill nobody notices. In decode, the one query then believes that it stands at
# position 0, and it sees a single key: its output is that key's value.

# %% tags=["nbval-check-output"]
from flashkit.online import online_attention as tiled

generator = torch.Generator().manual_seed(1)
q = torch.randn(1, 1, 1, 8, generator=generator)
k, v = (torch.randn(1, 1, 20, 8, generator=generator) for _ in "kv")
right = tiled(q, k, v)
top_left = tiled(q, k, v, query_positions=torch.tensor([0]))

print("offset 0 returns the value of key 0:", torch.equal(top_left[0, 0, 0], v[0, 0, 0]))
print("and is off by more than 0.1:", bool((top_left - right).abs().max() > 0.1))

# %% [markdown]
# ## A row that has seen nothing *yet*
#
# A hidden key gets the score $-\infty$, so its weight is $e^{-\infty} = 0$. Good. But suppose that
# for some row *every* key of the first tile is hidden. That happens as soon as the keys do not
# come in the order of the text, or when a row may not look further back than a window, or when a
# batch is padded on the left.
#
# For such a row the tile's maximum is $-\infty$, and so is $m_\text{old}$. Then $m_\text{new} =
# -\infty$, and the exponents become $-\infty - (-\infty)$, which is not a number. Once there is a
# NaN in $\ell$ or $a$, no later tile can remove it.
#
# The cure is a **safe reference**. Measure against 0 instead of $m_\text{new}$, for these rows
# only. Every exponential is then $e^{-\infty} = 0$: nothing is added, nothing is kept, and $m$
# itself stays $-\infty$.

# %% tags=["nbval-check-output"]
from flashkit.online import EMPTY, step

hidden = torch.tensor([-math.inf, -math.inf])
m_new = torch.maximum(EMPTY.m, hidden.max())
print("naive:  alpha", torch.exp(EMPTY.m - m_new).item(), " p", torch.exp(hidden - m_new).tolist())

m, alpha, p = step(EMPTY, hidden)
print("safe:   alpha", alpha.item(), " p", p.tolist(), " m", m.item())

# %% [markdown]
# Compare a different case: a row that *has* seen something and then meets a hidden tile. Its $m$
# is finite, so $\alpha = e^0 = 1$ and $p = 0$, and there is no problem. Only "nothing yet" is
# special.
#
# ## A row that *never* sees a key
#
# If a row has seen nothing after the last tile either, $\ell$ is 0 and $a/\ell$ is $0/0$. A
# softmax over no scores has no meaning, so the functions of this lesson say so and stop: they
# raise `ValueError`. It is easy to get there by accident, with more queries than keys. The offset
# is then negative, and the first rows stand before the first key.

# %% tags=["nbval-check-output"]
from flashkit.online import online_attention as tiled

q, k, v = torch.ones(1, 1, 4, 8), torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8)
print("positions of the queries:", [2 - 4 + i for i in range(4)])
try:
    tiled(q, k, v)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## The tile size does not change the result
#
# After any number of tiles, $\ell$ and $a$ are the sums over all keys seen so far, measured
# against their maximum. Where the cuts were has left no trace. So the tile size is free: it may be
# 1, it need not divide $S$, it may exceed $S$. What it changes is speed, never meaning.

# %% tags=["nbval-check-output"]
from flashkit.online import online_attention as tiled
from flashkit.reference import causal_attention

generator = torch.Generator().manual_seed(2)
q, k, v = (torch.randn(2, 2, 37, 16, generator=generator, dtype=torch.float64) for _ in "qkv")
exact = causal_attention(q, k, v)
for tile in [1, 2, 7, 16, 37, 64]:
    difference = (tiled(q, k, v, tile=tile) - exact).abs().max()
    print(f"tile {tile:2d}: differs by less than 1e-12: {bool(difference < 1e-12)}")

# %% [markdown]
# ## Several query heads, one KV head
#
# To keep the KV cache small, many models let a *group* of query heads share one KV head. This is
# grouped-query attention, GQA. With `group = Hq // Hkv`, query head `h` reads KV head `h //
# group`. Neighbours share. (`h % Hkv` would run without complaint, and be wrong.)
#
# In the cell below the values of KV head 0 are all 10 and those of KV head 1 all 20. A weighted
# mean of equal values is that value, so the output shows which head was read.

# %% tags=["nbval-check-output"]
from flashkit.online import online_attention as tiled

generator = torch.Generator().manual_seed(3)
q = torch.randn(1, 6, 5, 8, generator=generator)
k = torch.randn(1, 2, 5, 8, generator=generator)
v = torch.tensor([10.0, 20.0]).reshape(1, 2, 1, 1).expand(1, 2, 5, 8)
o = tiled(q, k, v)

print("query head h:     ", list(range(6)))
print("reads h // group: ", [h // 3 for h in range(6)])
print("the output shows: ", [round(x) for x in o[0, :, 0, 0].tolist()])

# %% [markdown]
# ## Small inputs, careful sums
#
# Models keep $q$, $k$ and $v$ in 16 bits to save memory. The running state must not be kept so. A
# float16 has 11 significant bits. From 2,048 on, its neighbours are 2 apart, so adding 1 changes
# nothing and a sum comes to a halt. $\ell$ is just such a sum: up to $S$ terms, each at most 1.
#
# Therefore **$m$, $\ell$ and $a$ are float32** whatever the inputs are. Only the finished output
# goes back to the inputs' type.

# %% tags=["nbval-check-output"]
from flashkit.online import online_attention as tiled
from flashkit.reference import causal_attention

total = torch.zeros((), dtype=torch.float16)
for _ in range(4096):
    total = total + 1
print(f"4,096 ones added up in float16: {total:.0f}")

generator = torch.Generator().manual_seed(4)
q, k, v = (torch.randn(1, 2, 256, 64, generator=generator).half() for _ in "qkv")
o, exact = tiled(q, k, v), causal_attention(q.double(), k.double(), v.double())
print("output type:", o.dtype, " within 0.002 of float64:", bool((o - exact).abs().max() < 0.002))

# %% [markdown]
# ## Your turn: online attention
#
# *8 points, about 45 minutes.* Everything above, in one function.
#
# **The formula**, for every row of every head at once:
#
# $$m_\text{new} = \max(m, \max s), \quad \alpha = e^{m - m_\text{new}}, \quad
# p = e^{s - m_\text{new}}, \quad \ell \leftarrow \alpha\,\ell + \textstyle\sum p, \quad
# a \leftarrow \alpha\,a + p\,V_\text{tile}$$
#
# where $s = q\,k_\text{tile}^\top / \sqrt D$, hidden keys $-\infty$. At the end $O = a/\ell$.
#
# **Specification.**
#
# | argument | shape | |
# |---|---|---|
# | `q` | `(B, Hq, T, D)` | float16, float32 or float64 |
# | `k`, `v` | `(B, Hkv, S, D)` | query head `h` reads KV head `h // (Hq // Hkv)` |
# | `query_positions` | `(T,)` or `(B, T)` | default $S - T,\ S - T + 1, \dots$ |
# | `key_positions` | `(S,)` or `(B, S)` | default $0, 1, \dots$; need not be in order |
# | `tile` | | keys at a time; need not divide $S$ |
#
# Return `(B, Hq, T, D)` in the type of `q`. Compute in float32, or in float64 if `q` is float64. A
# query sees a key if and only if the key's position is at most its own. Never hold a tensor with
# $T \times S$ entries. Raise `ValueError` if `tile < 1`, if `Hq` is not a multiple of `Hkv`, and
# if some row sees no key.
#
# **To help you:** `positions(given, batch, length, start, device)` returns positions as
# `(B, length)`, filling in the default from `start`. `visible(query_positions, key_positions)`
# returns the mask of one tile, `(B, 1, T, N)`. `x.repeat_interleave(n, dim=1)` repeats neighbours.
# `x.amax(-1, keepdim=True)` keeps the last axis, so that shapes broadcast.
#
# **If the check fails,** start with the smallest case that it names. Does one tile work
# (`tile=S`)? Then two. Then a mask. Then the groups.
#
# **The explorer below** you know from lesson 1. Here it holds one row as your function will meet
# it: three of its keys are hidden, and its values are vectors, so $a$ is a row of bars. Run the
# cell and step through it. Tile 1 sees nothing, and 0 stands in for $m$. In tile 4 the maximum
# rises, and one $\alpha$ shrinks every component of $a$. Then take 3 keys in a tile, or 1: the
# maximum rises elsewhere, and $O$ is the same. Your state does this in every row at once, and each
# row has its maximum rise in tiles of its own.

# %%
from flashkit.widgets.explorers import tile_explorer

scores = [-math.inf, -math.inf, 0, 1, 1, -math.inf, 3, 2]
values = [[2, 0], [4, 1], [1, 3], [3, -1], [2, 2], [0, 1], [1, 0], [2, -2]]
tile_explorer(scores, values, tile=2)


# %% nbgrader={"grade_id": "online_attention", "solution": true}
def online_attention(q, k, v, query_positions=None, key_positions=None, tile=16):
    """Causal attention, one tile of keys at a time, without a (T, S) matrix.

    q (B, Hq, T, D); k, v (B, Hkv, S, D); positions (T,), (B, T) and (S,), (B, S) or None.
    Returns o (B, Hq, T, D) in q's dtype. Raises ValueError as specified above. About 25 lines.
    """
    ### BEGIN SOLUTION
    batch, q_heads, t, d = q.shape
    kv_heads, s = k.shape[1:3]
    if tile < 1:
        raise ValueError(f"tile must be at least 1, got {tile}")
    if q_heads % kv_heads:
        raise ValueError(f"Hq must be a multiple of Hkv, got {q_heads} and {kv_heads}")
    work = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.to(work).repeat_interleave(q_heads // kv_heads, dim=1) for x in (k, v))
    qp = positions(query_positions, batch, t, s - t, q.device)
    kp = positions(key_positions, batch, s, 0, q.device)
    m = torch.full((batch, q_heads, t, 1), -math.inf, dtype=work, device=q.device)
    l, a = torch.zeros_like(m), m.new_zeros(batch, q_heads, t, v.shape[-1])
    for start in range(0, s, tile):
        keys = slice(start, start + tile)
        scores = q.to(work) @ k[:, :, keys].transpose(-2, -1) / math.sqrt(d)
        scores = scores.masked_fill(~visible(qp, kp[:, keys]), -math.inf)
        m_new = torch.maximum(m, scores.amax(-1, keepdim=True))
        reference = torch.where(m_new == -math.inf, 0.0, m_new)  # rows that saw nothing yet
        alpha, p = torch.exp(m - reference), torch.exp(scores - reference)
        m, l, a = m_new, alpha * l + p.sum(-1, keepdim=True), alpha * a + p @ v[:, :, keys]
    if (l == 0).any():
        raise ValueError("a query row has no visible key")
    return (a / l).to(q.dtype)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-online_attention", "grade": true, "points": 8}
check("online_attention")
q, k = torch.ones(1, 1, 1, 1), torch.tensor([0.0, 1.0, 2.0, -1.0]).reshape(1, 1, 4, 1)
v = torch.tensor([2.0, 4.0, 1.0, 3.0]).reshape(1, 1, 4, 1)
assert abs(online_attention(q, k, v, tile=2).item() - 1.8619) < 1e-4  # the worked example

# %% [markdown]
# ## What it saves: memory
#
# `flashkit.memory.peak_bytes(fn, *args)` calls `fn` and returns the most bytes of *new* tensors
# that were alive at once: what the function needs on top of its inputs. Here are both versions,
# for one head of 64, while the text doubles.

# %% tags=["nbval-check-output"]
from flashkit.memory import peak_bytes
from flashkit.online import online_attention as tiled
from flashkit.reference import causal_attention as exact
from flashkit.runtime import device

rows = []
for t in [512, 1024, 2048, 4096]:
    q, k, v = torch.ones(3, 1, 1, t, 64, device=device())
    rows.append((t, peak_bytes(exact, q, k, v), peak_bytes(tiled, q, k, v, tile=64)))
for t, exact_bytes, online_bytes in rows:
    print(
        f"T = {t:5d}: exact {exact_bytes / 2**20:6.1f} MiB, online {online_bytes / 2**20:5.1f} MiB"
    )
growth = [b / a for a, b in zip(rows[-2], rows[-1], strict=True)]
print(f"T x {growth[0]:.0f}: exact x {growth[1]:.0f}, online x {growth[2]:.0f}")

# %%
from flashkit.widgets import figures

figures.peak_memory(rows)

# %% [markdown]
# Twice the tokens cost the exact version four times the memory, and the online version twice.
# The first grows like $T^2$; the second like $T$.
#
# **In the picture above**, on logarithmic axes, those are two straight lines. The solid one with
# squares is the exact version, and it is twice as steep as the dashed one with circles. The gap
# opens with every doubling.
#
# ## ★ Your turn: measure it
#
# *3 points, about 15 minutes.* Trust no table that you have not measured yourself.
#
# **The formula** to compare your numbers with: one tensor of $T \times T$ float32 is $4T^2$ bytes,
# and the exact version needs a few of them at once. **The picture** is the one above.
#
# **Specification.** `memory_saved(t)` makes `q`, `k` and `v` of shape `(1, 1, t, 64)`, float32, on
# `device()`, with any contents. It returns two integers, `(exact_bytes, online_bytes)`: the peak
# bytes of flashkit's `causal_attention`, and of its `online_attention` with `tile=64`. Import both
# inside the function, so that you measure flashkit's version and not your own.


# %% nbgrader={"grade_id": "memory_saved", "solution": true}
def memory_saved(t):
    """Return (exact_bytes, online_bytes) for t tokens, two ints. About 7 lines."""
    ### BEGIN SOLUTION
    from flashkit.memory import peak_bytes
    from flashkit.online import online_attention
    from flashkit.reference import causal_attention
    from flashkit.runtime import device

    q, k, v = (torch.randn(1, 1, t, 64, device=device()) for _ in "qkv")
    return peak_bytes(causal_attention, q, k, v), peak_bytes(online_attention, q, k, v, tile=64)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-memory_saved", "grade": true, "points": 3}
check("memory_saved")
assert memory_saved(512)[0] > 4 * 512 * 512  # more than one T x T matrix of float32

# %% [markdown]
# ## What it does not save: time
#
# You now have FlashAttention's memory, and not yet its speed. Each tile is still a matrix product,
# a mask, a maximum, two exponentials, two sums, each one an operation of its own, started one by
# one from a Python loop. On a GPU each is a separate kernel, with a trip to HBM and back in
# between.
#
# The cell below counts the operations that PyTorch starts in one call on 512 tokens.

# %%
from torch.utils._python_dispatch import TorchDispatchMode

from flashkit.online import online_attention as tiled


class Count(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += not func.is_view  # a view moves no numbers
        return func(*args, **(kwargs or {}))


q, k, v = torch.ones(3, 1, 1, 512, 64)
for tile in [512, 128, 32]:
    with Count() as count:
        tiled(q, k, v, tile=tile)
    print(f"tiles of {tile:3d} keys: {512 // tile:2d} tiles, {count.operations:4d} operations")

# %% [markdown]
# The smaller the tile, the more operations. Speed comes when a *whole tile's* work is done inside
# one kernel while the tile stays on chip. That kernel is lesson 3.
#
# ## The same recurrence in C++ and Rust
#
# A compiled language starts nothing: a tile is a loop. Below, `flashkit.native` prints the same
# recurrence for one query and one head, first in C++, then in Rust. Read `update` in both, and
# find in each the five things that you wrote: the new maximum, the safe reference, $\alpha$, $p$,
# and $\alpha$ times the old sums plus the tile's own.

# %%
from flashkit import native

print(native.source("cpp"))

# %%
from flashkit import native

print(native.source("rust"))

# %% [markdown]
# Two things there you did not write. `larger` is a maximum that lets a NaN through:
# `std::max` and `f32::max` would lose it, and a broken score would go unseen. And a hidden key's
# value is skipped, since $0 \cdot \text{NaN}$ is NaN; in `flashkit.online` that is the work of
# `weigh`.
#
# The next cell builds both with this machine's compilers, which takes a few seconds the first
# time, and runs the worked example of lesson 1 in all three languages. If a compiler is missing,
# the cell says how to get it. Nothing else needs it.

# %%
from flashkit import native

q, k = torch.tensor([1.0]), torch.tensor([[0.0], [1.0], [2.0], [-1.0]])
v = torch.tensor([[2.0], [4.0], [1.0], [3.0]])
print("language  tile       m       l       a")
for language in ["python", "cpp", "rust"]:
    try:
        o, trace = native.online_attention(q, k, v, tile=2, language=language)
    except native.BuildError as error:
        print(error)
        continue
    for tile, (m, l, a) in enumerate(zip(*trace, strict=True), start=1):
        print(f"{language:8}  {tile:4}  {m:6.4f}  {l:6.4f}  {a.item():6.4f}")
    print(f"{language:8}   a/l  {o.item():22.4f}")

# %% [markdown]
# Every $m$, $\ell$ and $a$ is the same, tile by tile. How far does that go? Between neighbouring
# float32 numbers lies one *ulp*, a unit in the last place. `native.ulps` counts how many of them
# two results are apart. The scores below are whole numbers, so that nothing is rounded before the
# softmax begins.

# %%
from flashkit import native

generator = torch.Generator().manual_seed(7)
q, k = (torch.randint(-2, 3, shape, generator=generator).float() for shape in [(64,), (300, 64)])
v = torch.rand(300, 8, generator=generator)
_, python = native.online_attention(q, k, v, language="python")
twins = {}
for language in [name for name in native.languages() if name != "cuda"]:
    _, twins[language] = native.online_attention(q, k, v, language=language)
    m, l, a = (native.ulps(x, y) for x, y in zip(twins[language], python, strict=True))
    print(f"{language:4}: m is {m}, l at most {l}, a at most {a} ulp from Python's")
if len(twins) == 2:
    same = all(torch.equal(x, y) for x, y in zip(*twins.values(), strict=True))
    print("C++ and Rust give the same bits:", same)

# %% [markdown]
# C++ and Rust do not differ at all: the same operations in the same order give the same bits, as
# long as no compiler may reorder sums (`-ffast-math`) or fuse a product with a sum. PyTorch adds
# up in another order, and its own exponential may round the last bit differently. That is all the
# difference there is.
#
# ## A look ahead: states can be merged
#
# Nothing in the recurrence says that the keys must be taken from left to right. Take one state
# from the first five keys and, independently, another from the last seven. The same rescaling
# joins them. Lesson 4 builds on this.

# %% tags=["nbval-check-output"]
from flashkit.online import EMPTY, finish, merge, update

generator = torch.Generator().manual_seed(0)
scores = torch.randn(5, 12, generator=generator, dtype=torch.float64)
values = torch.randn(12, 3, generator=generator, dtype=torch.float64)
first = update(EMPTY, scores[:, :5], values[:5])
last = update(EMPTY, scores[:, 5:], values[5:])
joined = finish(merge(first, last))
whole = torch.softmax(scores, dim=-1) @ values
print("two halves, merged, equal the whole:", bool((joined - whole).abs().max() < 1e-12))

# %% [markdown]
# ## What FlashAttention changes, and what it does not
#
# It changes what is *kept* and what is *moved*. The state of a row is $2 + d$ numbers, however
# long the text. It does not change the result, and it does not change the arithmetic: every query
# still meets every visible key, at $4d$ operations a pair.

# %% tags=["nbval-check-output"]
from flashkit.cost import flops, score_bytes

d = 128
print("tokens   arithmetic     S and P    m, l and a   (one head, causal, FP32)")
for t in [8192, 16384, 32768]:
    work, matrices = flops(t, t, d) / 1e9, 2 * score_bytes(t, t) / 2**20
    print(f"{t:6d}  {work:6.0f} GFLOP  {matrices:6.0f} MiB  {4 * t * (2 + d) / 2**20:6.1f} MiB")

# %% [markdown]
# Read the columns downwards. With every doubling of the text, the arithmetic grows four times,
# with FlashAttention or without it. $S$ and $P$ grow four times, and are no longer stored. The
# state doubles. At very long contexts the arithmetic itself becomes the limit. That takes a
# different model, not a better kernel.
#
# ## Check your understanding
#
# *1 point. Return one letter. The check only records it; it is marked when you hand in.*
#
# **Question 3.** Which complexity does FlashAttention reduce: arithmetic, intermediate memory, or
# both?
#
# - **a.** Intermediate memory: from $O(T^2)$ to $O(T)$. The arithmetic remains $O(T^2 d)$.
# - **b.** Both: scores that are not stored need not be computed, so the arithmetic also falls,
#   from $O(T^2 d)$ to $O(T d)$.
# - **c.** Arithmetic: the rescaling replaces most exponentials by one multiplication a tile. The
#   memory remains $O(T^2)$, only in faster, on-chip memory.
# - **d.** Neither: both remain $O(T^2)$. The gain in time comes only from moving the same numbers
#   in larger blocks.


# %% nbgrader={"grade_id": "question_3", "solution": true}
def answer_3():
    """Return "a", "b", "c" or "d"."""
    ### BEGIN SOLUTION
    return "a"
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-question_3", "grade": true, "points": 1}
check("question_3")
assert answer_3() in ("a", "b", "c", "d")

# %% [markdown]
# ## In short
#
# - All rows run the recurrence at once. The state is $m$ and $\ell$ of shape `(B, Hq, T)` and $a$
#   of shape `(B, Hq, T, D)`, in float32.
# - Mask by absolute position. The default offset is $S - T$, so that the last query sees every
#   key.
# - A row that has seen nothing yet is measured against 0. A row that never sees a key is an error.
# - The tile size is free. Query head $h$ reads KV head $h$ // group.
# - Memory falls from $O(T^2)$ to $O(T)$. The arithmetic stays. Time is not saved yet.
#
# **Next**, lesson 3: one program on the GPU takes a block of queries and does a whole tile's work
# on chip. You will write it in Triton, beginning with the bounds of its loop. Save this notebook
# before you go on.
