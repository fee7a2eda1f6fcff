# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 5 · The backward pass
#
# So far a model could only be *used*. To train it, every matmul has to run backwards too: from
# the gradient of the output to the gradients of Q, K and V. Written in the usual way, that needs
# the whole matrix of weights again, the one thing that FlashAttention never stores. In this
# lesson you find out why one number a row is enough in its place, and write the backward pass.
#
# **Afterwards you can**
#
# - say what a forward pass has to leave behind, and what it would cost to leave more;
# - derive the gradient of attention in five small steps, and check each of them;
# - write it tile by tile, for grouped heads, offsets and windows, in memory linear in $T$;
# - say why a GPU does it with one kernel or with two, and what each choice costs.
#
# **Time:** about 150 minutes: 60 to read and run, 90 for the exercises.
#
# **You need** lessons 1 and 2 and the chain rule. Lesson 3 helps to see what the kernels do. No
# GPU: the exercises are in PyTorch.

# %% nbgrader={"grade_id": "imports"}
import math

import torch

from flashkit.exercises import check

# %% [markdown]
# ## What it would cost to keep the weights
#
# Backward needs to know what forward did. PyTorch's own attention, written as three lines, keeps
# the weights $P$, one number for each pair of query and key. Below is what that is for a layer of
# 32 heads, and what FlashAttention keeps: Q, K, V, O, and one number a row, the *log-sum-exp*.

# %% tags=["nbval-check-output"]
from flashkit.cost import saved_bytes

print("       T   with P      without P")
for t in [2048, 8192, 32768, 131072]:
    layer = {"q_heads": 32, "kv_heads": 8}
    with_p = saved_bytes(t, t, 128, store_p=True, **layer) / 2**30
    without = saved_bytes(t, t, 128, **layer) / 2**30
    print(f"{t:8,} {with_p:8,.1f} GiB {without:8.3f} GiB   {with_p / without:6.0f} times")

# %% [markdown]
# And that is one layer, one text, and 16 bits a number. A model has dozens of layers, and all of
# them wait for backward at the same time. What is linear in $T$ can be kept. $P$ cannot.
#
# ## What one number a row is good for
#
# It is the logarithm of the softmax's denominator (lesson 4 merges with it). For a row with
# scores $s_j$,
#
# $$ L = \ln \sum_j e^{s_j} = m + \ln \ell . $$
#
# Maximum and denominator in one number. With it, any weight can be had again *on its own*,
# without a second look at the rest of its row:
#
# $$ p_j = \frac{e^{s_j}}{\sum_i e^{s_i}} = e^{s_j - L} . $$
#
# No running maximum, no rescaling, no division, nothing that must wait: backward may take the
# tiles in any order it likes. And nothing can overflow, for $s_j \le L$.

# %% tags=["nbval-check-output"]
import torch

torch.manual_seed(0)
scores = 30 * torch.randn(4, 12)
lse = torch.logsumexp(scores, dim=-1)
weights = scores.softmax(-1)
corner = torch.exp(scores[1:3, 8:] - lse[1:3, None])  # four keys of two rows, nothing else
print("one tile of P, from its scores and lse alone:", corner.shape)
print("largest difference below 1e-5:", bool((corner - weights[1:3, 8:]).abs().max() < 1e-5))
print("largest weight:", f"{torch.exp(scores - lse[:, None]).max():.4f}")

# %% [markdown]
# ## One row, backwards
#
# Take the worked example again: scores $[0, 1, 2, -1]$, values $[2, 4, 1, 3]$, output
# $O = 1.8619$. Suppose a larger output is a larger loss: its gradient is $dO = 1$. (In this
# lesson $dX$ is always the gradient of the loss with respect to $X$, so it has $X$'s shape.)
#
# **Run the cell and press *Next*.** Each press makes one part. Before the fifth, look at the
# line: which scores should *rise* to make the output larger? The last press checks with a nudge
# of each score, up and down, without any formula. Then set *forget* to *delta*, and see what the
# nudge says. Set *do* to 2, or to −1: which parts change?

# %%
from flashkit.widgets.explorers import gradient_explorer

gradient_explorer("0, 1, 2, -1", "2, 4, 1, 3", do=1.0)

# %% [markdown]
# **What the explorer showed.** A key's score should rise if its value lies *above the average*
# $O$, and by more, the more weight it has. It cannot just rise because its value is positive: the
# weights of a row add up to 1, so what one key gains the others lose. That is all that the
# strange term *delta* says.
#
# ## The derivation, in five steps
#
# Now all rows. Forward is three formulas (with hidden scores $-\infty$):
#
# $$ S = \text{scale} \cdot Q K^\top, \qquad P = \text{softmax}(S), \qquad O = P V . $$
#
# Backward starts from $dO$ and walks through them from right to left. To check each step, the
# cell below asks PyTorch's autograd for every gradient, in float64. That is what you will be
# compared with, too.

# %% tags=["nbval-check-output"]
import math

import torch

torch.manual_seed(1)
T, S, D = 5, 8, 4
scale = 1 / math.sqrt(D)
q, k, v = (torch.randn(n, D).double().requires_grad_() for n in (T, S, S))
do = torch.randn(T, D).double()
seen = torch.arange(S) <= torch.arange(S - T, S)[:, None]  # bottom right, as in lesson 2

s = scale * q @ k.T
p = s.masked_fill(~seen, -math.inf).softmax(-1)
o = p @ v
grads = torch.autograd.grad(o, (s, p, q, k, v), do)
wanted = dict(zip(("s", "p", "q", "k", "v"), grads, strict=True))
lse = torch.logsumexp(s.masked_fill(~seen, -math.inf), -1).detach()
q, k, v, o = (x.detach() for x in (q, k, v, o))  # from here on, no autograd
print({name: tuple(x.shape) for name, x in wanted.items()})

# %% [markdown]
# **Step 1 · dV.** Output row $i$ is $O_i = \sum_j P_{ij} V_j$. So value $j$ went into each row
# with weight $P_{ij}$, and what comes back to it is
#
# $$ dV_j = \sum_i P_{ij}\, dO_i, \qquad dV = P^\top dO . $$
#
# The weights are there again from $L$, as above.


# %% tags=["nbval-check-output"]
def same(name, x):
    """Whether x is what autograd found."""
    print(f"{name}: {bool((x - wanted[name[1:]]).abs().max() < 1e-12)}")


p = torch.where(seen, torch.exp(scale * q @ k.T - lse[:, None]), 0.0)
dv = p.T @ do
same("dv", dv)

# %% [markdown]
# **Step 2 · dP.** The same formula, looked at from the side of the weights: raise $P_{ij}$, and
# row $i$ gets more of $V_j$. How much the loss cares is a dot product,
#
# $$ dP_{ij} = dO_i \cdot V_j, \qquad dP = dO\, V^\top . $$

# %% tags=["nbval-check-output"]
dp = do @ v.T
same("dp", dp)

# %% [markdown]
# **Step 3 · the row sum.** Back through the softmax, one row at a time. A score moves its own
# weight up and all weights of the row down:
#
# $$ \frac{\partial P_j}{\partial S_i} = P_j\,(\delta_{ij} - P_i)
#    \quad\Rightarrow\quad dS_j = P_j \Big( dP_j - \sum_i P_i\, dP_i \Big) . $$
#
# The sum is the same for the whole row: the average of $dP$ under the row's weights. It looks as
# if it needed the whole row, tile after tile, before anything else can begin. It does not:
#
# $$ \sum_j P_j\, dP_j = \sum_j P_j\, (dO \cdot V_j) = dO \cdot \sum_j P_j V_j
#    = dO \cdot O \;=:\; \text{delta} . $$
#
# A sum over $D$ columns of two things that are already there. This is the trick that makes a
# tiled backward pass possible.

# %% tags=["nbval-check-output"]
delta = (do * o).sum(-1)
over_the_keys = (p * dp).sum(-1)
print("delta is the sum over the keys:", bool((delta - over_the_keys).abs().max() < 1e-12))
print("numbers that each needs in a row of T = 8192, D = 128:", 2 * 128, "and", 2 * 8192)

# %% [markdown]
# **Step 4 · dS.**
#
# $$ dS = P \odot (dP - \text{delta}) , $$
#
# with delta once for each row. Each row of $dS$ adds up to 0: shift all scores of a row by the
# same amount, and softmax does not notice. (Which of the classic bugs would break that?)

# %% tags=["nbval-check-output"]
ds = p * (dp - delta[:, None])
same("ds", ds)
print("rows add up to 0:", bool(ds.sum(-1).abs().max() < 1e-12))

# %% [markdown]
# **Step 5 · dQ and dK.** One matmul each, and each carries the scale once, because $S$ does:
#
# $$ dQ = \text{scale} \cdot dS\, K, \qquad dK = \text{scale} \cdot dS^\top Q . $$

# %% tags=["nbval-check-output"]
dq = scale * ds @ k
dk = scale * ds.T @ q
same("dq", dq)
same("dk", dk)

# %% [markdown]
# Five matmuls in all, where forward has two. Only the first, $Q K^\top$, repeats something that
# was known before. That is the price of not keeping $P$: one matmul in five.

# %% tags=["nbval-check-output"]
from flashkit.cost import BACKWARD_MATMULS, backward_flops, flops

for product in BACKWARD_MATMULS:
    print("   ", product)
T, D = 8192, 128
ratio = backward_flops(T, T, D) / flops(T, T, D)
print(f"backward does {ratio:.1f} times the arithmetic of forward")

# %% [markdown]
# ### Exercise 1 · `backward_parts` (6 points, about 20 minutes)
#
# The five steps for one head, in your own words.
#
# **Write** `backward_parts(q, k, v, o, lse, do)`. All are float32: `q`, `o` and `do` are
# `(T, D)`, `k` and `v` are `(S, D)`, `lse` is `(T,)`. Causal, bottom right: row $i$ stands at
# position $S - T + i$; $T \le S$. Return a dict:
#
# ```
# p      (T, S)   the weights, 0 where a key is hidden        from q, k, lse
# dv     (S, D)   P^T dO                                      from p
# delta  (T,)     dO · O                                      from o, do
# ds     (T, S)   P * (dP - delta)                            from p, delta
# dq     (T, D)   scale dS K                                  from ds
# dk     (S, D)   scale dS^T Q                                from ds
# ```
#
# - Each part is a case of its own, and earns its own point. Begin with one: a part that is not in
#   the dict yet is said to be missing, and the others are judged all the same.
# - A part that is wrong only because an earlier one is wrong is told so. Mend the earlier one.
# - Here you may hold a $T \times S$ matrix. Autograd is refused: it does the exercise for you.


# %% nbgrader={"grade_id": "backward_parts", "solution": true}
import math

import torch


def backward_parts(q, k, v, o, lse, do):
    """The parts of the gradient of causal attention, for one head, by name."""
    # About 14 lines.
    ### BEGIN SOLUTION
    t, d = q.shape
    s = k.shape[0]
    scale = 1.0 / math.sqrt(d)
    rows = torch.arange(s - t, s, device=q.device)[:, None]
    seen = torch.arange(s, device=q.device)[None, :] <= rows
    scores = scale * q @ k.T
    p = torch.where(seen, torch.exp(scores - lse[:, None]), 0.0)
    dv = p.T @ do
    delta = (do * o).sum(-1)
    dp = do @ v.T
    ds = p * (dp - delta[:, None])
    dq = scale * ds @ k
    dk = scale * ds.T @ q
    return {"p": p, "dv": dv, "delta": delta, "ds": ds, "dq": dq, "dk": dk}
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-backward_parts", "grade": true, "points": 6}
check("backward_parts")
scores, values = torch.tensor([[0.0, 1.0, 2.0, -1.0]]), torch.tensor([[2.0], [4.0], [1.0], [3.0]])
one, o = torch.ones(1, 1), scores.softmax(-1) @ values
parts = backward_parts(one, scores.T, values, o, scores.logsumexp(-1), one)
assert abs(parts["ds"][0, 2].item() + 0.5550) < 1e-4  # as the explorer says

# %% [markdown]
# ## By tiles
#
# Nothing in the five steps needs a whole row, once delta is there. So take one tile of keys at a
# time, against all queries (or a block of them):
#
# ```
# delta            (T,)        once, before the loop, from do and o
# for each tile of keys:
#     p, dp, ds    (T, tile)   of this tile only, then thrown away
#     dk, dv       (tile, D)   whole: no other tile writes these keys
#     dq           (T, D)      grows: every tile adds its part
# ```
#
# The roles have changed since the forward pass. There each query was finished by walking over
# the keys. Here each *key* is finished by walking over the queries: $dK$ and $dV$ are sums over
# queries. $dQ$ is still a sum over keys.
#
# Below, memory is measured as in lesson 2: what a call needs beyond its inputs. Autograd runs
# through exact attention; `flashkit.backward.attention_backward` is what you will write next.

# %% tags=["nbval-check-output"]
import torch
from flashkit.backward import attention_backward as tiled
from flashkit.memory import peak_bytes
from flashkit.reference import causal_attention
from flashkit.runtime import device


def by_autograd(q, k, v, do):
    """Forward and backward, as PyTorch remembers it."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(causal_attention(*inputs), inputs, do)


rows = []
for t in [256, 512, 1024, 2048]:
    q, k, v, do = torch.randn(4, 1, 1, t, 64, device=device())
    o, lse = causal_attention(q, k, v, return_lse=True)
    stored = peak_bytes(by_autograd, q, k, v, do)
    rows.append((t, stored, peak_bytes(tiled, q, k, v, o, lse, do, tile=64)))
    print(f"T = {t:4d}: with P {stored / 2**20:5.1f} MiB, by tiles {rows[-1][2] / 2**20:4.1f} MiB")
growth = [b / a for a, b in zip(rows[-2], rows[-1], strict=True)]
print(f"T x {growth[0]:.0f}: with P x {growth[1]:.0f}, by tiles x {growth[2]:.0f}")

# %%
from flashkit.widgets import figures

figures.peak_memory(rows)

# %% [markdown]
# **In the picture above**, *exact* is autograd through the whole matrix and *online* the backward
# pass by tiles. Twice the tokens cost the one four times the memory, the other twice.
#
# ## The mask belongs after the exponential
#
# In forward a hidden score is $-\infty$, so that its weight is $e^{-\infty} = 0$. In backward
# this has a hole. A row that saw no key at all has $L = -\infty$, and $-\infty - (-\infty)$ is
# not a number. One NaN in $P$ is enough: $dV = P^\top dO$ adds it to *every* key.
#
# Other habits are worse. Some kernels load the padding of a short last tile as 0 and mask the
# score with 0. The weight is then $e^{0 - L}$: a small leak where $L$ is large, and *infinite*
# where all real scores lie far below 0. Multiplying by the mask afterwards does not help, for
# $\infty \cdot 0$ is not a number either.
#
# One habit has no hole: compute the exponential, whatever comes out, and **choose** 0 where the
# key is hidden or the row saw nothing. `torch.where` chooses; it does not multiply.

# %% tags=["nbval-check-output"]
import torch

inf = torch.inf
rows = {"scores near 0": (0.7, -inf), "all far below 0": (-195.0, 0.0), "saw no key": (-inf, -inf)}
for name, (lse, hidden) in rows.items():
    raw = torch.exp(torch.tensor(hidden) - lse)
    chosen = torch.where(torch.tensor(False), raw, 0.0)
    times_0 = (raw * 0.0).item()
    print(f"{name:16} lse {lse:6}: e^(hidden - lse) = {raw.item():3}, times 0 it is {times_0:3},")
    print(f"{'':16} chosen it is {chosen.item()}")

# %% [markdown]
# ## Where positions matter
#
# The mask is the one of the forward pass, with its offset and its window, or the gradient belongs
# to another function. The classic mistake is the square mask again: with $T = S$ nobody notices.
#
# What comes out for a key that *nobody* sees is exactly 0. Below, 4 queries with a window of 3
# look at 10 keys. The last query stands at the last key.

# %% tags=["nbval-check-output"]
import torch
from flashkit.backward import attention_backward as tiled
from flashkit.online import online_attention as forward

torch.manual_seed(2)
q, do = torch.randn(2, 1, 1, 4, 8).double()
k, v = torch.randn(2, 1, 1, 10, 8).double()
o, lse = forward(q, k, v, window=3, return_lse=True)
dq, dk, dv = tiled(q, k, v, o, lse, do, window=3)
sees = [{j for j in range(10) if 6 + i - 3 < j <= 6 + i} for i in range(4)]
print("keys that some query sees:", sorted(set.union(*sees)))
print("keys with a gradient:     ", dk.abs().sum(-1)[0, 0].nonzero()[:, 0].tolist())

# %% [markdown]
# ## Groups add up
#
# With grouped heads, `group` query heads read one KV head. Reading is copying; backwards, a copy
# becomes a **sum**: the KV head gets what all its query heads send. With `h // group`, these are
# neighbours, so a tensor with `Hq` heads is folded as `(B, Hkv, group, ...)`, and the sum runs
# over the axis in the middle. (Folded as `(B, group, Hkv, ...)` it runs without complaint.)

# %% tags=["nbval-check-output"]
import torch

per_query_head = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])  # what six query heads send
print("group 3, Hkv 2, right:", per_query_head.view(2, 3).sum(1).tolist())
print("the other fold:       ", per_query_head.view(3, 2).sum(0).tolist())

x = torch.tensor([10.0, 20.0], requires_grad=True)  # and what autograd makes of the copies
(x.repeat_interleave(3) * per_query_head).sum().backward()
print("autograd:             ", x.grad.tolist())

# %% [markdown]
# ### Exercise 2 · ★★★ `attention_backward` (12 points, about 60 minutes)
#
# The backward pass of FlashAttention, in PyTorch: batches, grouped heads, offset, window, and
# never more than one tile of the scores.
#
# | argument | shape | |
# |---|---|---|
# | `q`, `o`, `do` | `(B, Hq, T, D)` | float32 or float16; `do` may be one number, expanded |
# | `k`, `v` | `(B, Hkv, S, D)` | query head `h` reads KV head `h // (Hq // Hkv)` |
# | `lse` | `(B, Hq, T)` | float32, natural log; $-\infty$ for a row that saw no key |
# | `query_offset` | | row $i$ stands at position $x$ = `query_offset` $+ i$; None means $S - T$ |
# | `window` | | the row sees key $j$ if $x - W < j \le x$; None: if $j \le x$ |
# | `tile` | | keys at a time; need not divide $S$ |
#
# **Return** `(dq, dk, dv)`, in the shapes and dtypes of `q`, `k` and `v`.
#
# - Compute in float32, cast once at the end. (A sum kept in float16 stops growing: lesson 2.)
# - Rows without a key get gradient 0 and give none; keys without a query get 0. No NaN.
# - Any $T$ and $S$: more queries than keys are allowed, and then the first rows see nothing.
# - Never hold a tensor with $T \times S$ entries. When graded, memory is measured at growing $T$.
# - The report says which of `dq`, `dk` and `dv` are wrong. If all are, begin at $P$ or delta. If
#   `dv` is right and the others are not, begin at delta, $dS$ or the scale.
#
# **If the check fails,** compare with yourself: for one head, `tile=S` must give what
# `backward_parts` gives.


# %% nbgrader={"grade_id": "attention_backward", "solution": true}
import math

import torch


def attention_backward(q, k, v, o, lse, do, query_offset=None, window=None, tile=16):
    """dq, dk, dv of causal attention, one tile of keys at a time. Shapes as in the table."""
    # About 28 lines: float32 and delta first; in the loop the mask, p, dv, ds, dk, and dq +=.
    ### BEGIN SOLUTION
    q_heads, t, d = q.shape[1:]
    kv_heads, s = k.shape[1:3]
    group, scale = q_heads // kv_heads, 1.0 / math.sqrt(d)
    offset = s - t if query_offset is None else query_offset
    rows = offset + torch.arange(t, device=q.device)[:, None]
    lse, queries, grad = lse[..., None], q.float(), do.float()
    delta = (grad * o.float()).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros_like(queries), torch.empty_like(k), torch.empty_like(v)
    for start in range(0, s, tile):
        part = slice(start, min(start + tile, s))
        keys = torch.arange(part.start, part.stop, device=q.device)[None, :]
        seen = keys <= rows
        if window is not None:
            seen = seen & (keys > rows - window)
        k_tile = k[:, :, part].float().repeat_interleave(group, dim=1)
        v_tile = v[:, :, part].float().repeat_interleave(group, dim=1)
        p = torch.exp(scale * queries @ k_tile.mT - lse)
        p = torch.where(seen & (lse > -torch.inf), p, 0.0)
        ds = p * (grad @ v_tile.mT - delta)
        dq += scale * ds @ k_tile
        dk[:, :, part] = (scale * ds.mT @ queries).unflatten(1, (kv_heads, group)).sum(2)
        dv[:, :, part] = (p.mT @ grad).unflatten(1, (kv_heads, group)).sum(2)
    return dq.to(q.dtype), dk, dv
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-attention_backward", "grade": true, "points": 12}
check("attention_backward")
k = torch.tensor([0.0, 1.0, 2.0, -1.0]).view(1, 1, 4, 1)  # the worked example: q and scale are 1
v = torch.tensor([2.0, 4.0, 1.0, 3.0]).view(1, 1, 4, 1)
one, o = torch.ones(1, 1, 1, 1), (k.softmax(2) * v).sum(2, keepdim=True)
dk = attention_backward(one, k, v, o, k.logsumexp(2), one, tile=2)[1]
assert abs(dk[0, 0, 2, 0].item() + 0.5550) < 1e-4  # so dk is ds

# %% [markdown]
# ## One kernel or two
#
# On a GPU the tiles are shared out among programs. In forward that was easy: a program owns a
# block of queries, and nobody else writes its output. Backward has two kinds of output. $dK$ and
# $dV$ want programs that own *keys*; $dQ$ wants programs that own *queries*.
#
# **Two kernels (split).** One walks over queries for a tile of keys and writes $dK$ and $dV$; the
# other walks over keys for a block of queries and writes $dQ$. Each number is summed by one
# program, in a fixed order. But both need $S$ and $dP$, so the work grows from five matmuls to
# seven. In the first kernel the loop also runs over the heads of the group: then the sum of the
# group happens in registers.
#
# **One kernel (fused).** A program owns a tile of keys, keeps $dK$ and $dV$, and *adds* its part
# of $dQ$ to memory, where many programs add at the same time. Five matmuls. But the order of the
# additions is whatever the clock makes it, and float addition is not associative: two runs may
# differ in the last bits.
#
# **Run the cell and step through the programs** of the first kernel: each walks down a column. Why
# do the last ones have less to do? Then choose *dq*, whose programs walk along a row, and
# *fused*. Compare the number of matmuls of *fused* with that of the other two together. Last, set
# a window of 6: now all programs have about the same work.

# %%
from flashkit.widgets.explorers import backward_map_explorer

backward_map_explorer(24, 32, 4)

# %% [markdown]
# The same in numbers, and why a sum that many programs share does not repeat its last bits:

# %% tags=["nbval-check-output"]
import torch
from flashkit.cost import backward_flops, flops

T, D = 8192, 128
for name, split in (("fused", False), ("split", True)):
    times = backward_flops(T, T, D, split=split) / flops(T, T, D)
    print(f"{name}: {times:.1f} times the arithmetic of forward")
a, b, c = torch.tensor([1e8, -1e8, 1.0])
print("added in two orders:", ((a + b) + c).item(), ((b + c) + a).item())

# %% [markdown]
# `flashkit.flash_attention` has both. Where a Hopper GPU is at hand the fused kernel runs; with
# `torch.use_deterministic_algorithms(True)`, and everywhere else, the split one.
#
# ## Training with it
#
# To autograd the whole thing is one operation. It keeps q, k, v, o and lse for backward, and
# nothing else. Below, the kernels run (in the interpreter, if there is no GPU), and their
# gradients are compared with exact attention in float64. Then the backward pass runs three times.

# %% tags=["nbval-check-output"]
import torch
from flashkit import flash_attention
from flashkit.reference import causal_attention
from flashkit.runtime import device

torch.manual_seed(3)
shapes = ((1, 4, 20, 32), (1, 2, 28, 32), (1, 2, 28, 32))
q, k, v = (torch.randn(shape, device=device(), requires_grad=True) for shape in shapes)
do = torch.randn(q.shape, device=device())

kept = []
with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
    o = flash_attention(q, k, v)
print("kept for backward:", sorted(tuple(x.shape) for x in kept))

exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
wanted = torch.autograd.grad(causal_attention(*exact), exact, do.double())
torch.use_deterministic_algorithms(True)
runs = [torch.autograd.grad(o, (q, k, v), do, retain_graph=True) for _ in range(3)]
torch.use_deterministic_algorithms(False)
for name, got, want in zip(("dq", "dk", "dv"), runs[0], wanted, strict=True):
    print(f"{name}: off by less than 1e-5: {bool((got - want).abs().max() < 1e-5)}")
equal = [torch.equal(x, y) for run in runs for x, y in zip(run, runs[0], strict=True)]
print("three runs, the same bits:", all(equal))

# %% [markdown]
# And the memory of a whole step, forward and backward, beyond the inputs: linear in $T$.

# %% tags=["nbval-check-output"]
from itertools import pairwise

import torch
from flashkit import flash_attention
from flashkit.memory import peak_bytes
from flashkit.runtime import device


def step(q, k, v, do):
    """Forward and backward, as a model in training calls them."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(flash_attention(*inputs), inputs, do)


peaks = [peak_bytes(step, *torch.randn(4, 1, 1, t, 64, device=device())) for t in (32, 64, 128)]
print("twice the tokens:", [f"{b / a:.0f} times the memory" for a, b in pairwise(peaks)])

# %% [markdown]
# ## Measured
#
# The rows below were measured on an H200 with `flashkit bench` and are read from the repository's
# `benchmarks/results`. TFLOP/s count the five matmuls of the visible pairs, whatever a kernel
# really executes: a split kernel does seven for the same number.
#
# `hopper` is the fused kernel of flashkit, `triton` the split one, `auto` what `flash_attention`
# chooses, autograd included; `cudnn` and `flash` are PyTorch's. Compare `hopper` with `triton`:
# how much of the distance do seven matmuls in place of five explain? And where heads are narrow?

# %%
from flashkit.bench.results import newest
from flashkit.bench.rows import SEPARATE

found = newest("quick", lambda row: (row.shape.path, row.measure) == ("backward", SEPARATE))
where, _, rows = found or ("Nothing measured here: run flashkit bench on a GPU.", None, [])
speeds = {}
for row in rows:
    speeds.setdefault(row.shape.label, {})[row.implementation] = f"{row.tflops:.0f}"
names = dict.fromkeys(row.implementation for row in rows)
table = {"TFLOP/s": {name: name for name in names}, **speeds} if rows else {}
print(where)
for shape, of in table.items():
    print(f"{shape:28}", *(f"{of.get(name, '-'):>10}" for name in names))

# %% [markdown]
# ### Question 5 (1 point, about 5 minutes)
#
# What does it cost to compute $P$ once more in backward, and why is it done?
#
# - **a** · Nothing: the matmul $Q K^\top$ is needed for $dQ$ and $dK$ in any case.
# - **b** · One matmul more where four are needed anyway. Keeping $P$ would take memory that grows
#   with $T^2$, and writing and reading it takes longer than the matmul.
# - **c** · Accuracy: the weights are only approximate without the running maximum. It is done
#   because the exact weights do not fit on the chip.
# - **d** · Backward has to redo the whole online softmax, with its maximum and rescaling. It is
#   done because autograd cannot differentiate a maximum.
#
# Return one letter.


# %% nbgrader={"grade_id": "question_5", "solution": true}
def answer_5():
    """One of "a", "b", "c", "d"."""
    ### BEGIN SOLUTION
    return "b"
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-question_5", "grade": true, "points": 1}
check("question_5")
assert isinstance(answer_5(), str)

# %% [markdown]
# ## Summary
#
# - Forward leaves q, k, v, o and one number a row, the lse. $P = e^{S - L}$ comes back from it,
#   tile by tile, in any order.
# - $dV = P^\top dO$; $dP = dO\,V^\top$; $dS = P \odot (dP - \text{delta})$; $dQ = \text{scale}
#   \cdot dS\,K$; $dK = \text{scale} \cdot dS^\top Q$.
# - $\text{delta} = dO \cdot O$, once for each row, before the loop.
# - Masks come after the exponential, and choose. Groups add up.
# - Five matmuls, 2.5 times the arithmetic of forward; seven where the order of every sum is to be
#   fixed. Memory stays linear in $T$.
#
# ## Going deeper
#
# - Dao et al., *FlashAttention* (2022), appendix B: the derivation, and Algorithm 4.
# - Dao, *FlashAttention-2* (2023), section 3.1.2: which program owns what, in backward.
# - Shah et al., *FlashAttention-3* (2024): the same on Hopper, with $dQ$ added up in memory.
# - Chen et al., *Training Deep Nets with Sublinear Memory Cost* (2016): to recompute what is too
#   large to keep is older than attention, and works for whole layers.
