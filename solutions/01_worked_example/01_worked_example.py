# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 1 · The worked example
#
# **When you are done** you can say why the score matrix is the problem, work FlashAttention's
# recurrence through two tiles with a pencil, write it for one row, and tell from a wrong answer
# which step was left out.
#
# **Time:** about 75 minutes, of which 40 are exercises.
#
# **You need:** attention and Python. A little PyTorch helps. You need no GPU, and you need not
# know how one works.
#
# **How to work:** run the cells from top to bottom with Shift+Enter. Where a heading says *Your
# turn*, replace the line `raise NotImplementedError(...)` with your own code, run that cell,
# then run the check below it. The check tells you which case failed and why. You may try as
# often as you like. Five exercises, 12 points.

# %% nbgrader={"grade_id": "imports"}
import math

import torch

from flashkit.exercises import check

# %% [markdown]
# ## The score matrix is the problem
#
# Attention for one head is three steps. With $T$ tokens and head dimension $d$, the tensors $Q$,
# $K$ and $V$ are $T \times d$ each:
#
# $$S = \frac{QK^\top}{\sqrt d}, \qquad P = \operatorname{softmax}(S), \qquad O = PV .$$
#
# What goes in is $T \times d$. What comes out is $T \times d$. But $S$ and $P$, in between, have
# one entry for every *pair* of tokens. (In this lesson every query may look at every key. Causal
# masks come in lesson 2.)

# %% tags=["nbval-check-output"]
from flashkit.cost import score_bytes, score_entries

entries = score_entries(8192, 8192)
one_head = score_bytes(8192, 8192, itemsize=4)  # FP32: 4 bytes a number
all_heads = score_bytes(8192, 8192, batch=8, heads=32, itemsize=4)

print(f"entries of S, one head, T = 8,192:  {entries:,} ({entries / 1e6:.0f} million)")
print(f"bytes of S, one head, FP32:         {one_head / 2**20:.0f} MiB")
print(f"bytes of S, 32 heads, batch 8:      {all_heads / 2**30:.0f} GiB")
print(f"bytes of the output O, one head:    {8192 * 64 * 4 / 2**20:.0f} MiB (d = 64)")

# %% [markdown]
# So one head needs 256 MiB for the scores behind a 2 MiB answer, and a batch of 8 with 32 heads
# needs 64 GiB. $P$ is as large again.
#
# **Run the cell below and move the slider.** Each step to the right doubles $T$. $Q$, $K$, $V$
# and $O$ double with it; $S$ and $P$ grow by a factor of four. The level line is all the memory
# of the GPU: at which $T$ do $S$ and $P$ pass it? Then change the number of heads, the dtype and
# the device. See how little it helps: a quarter of the heads buys a single step of the slider.

# %%
from flashkit.widgets.explorers import score_matrix_explorer

score_matrix_explorer(about="memory", heads=32, batch=8)

# %% [markdown]
# ## Even when it fits, the traffic is slow
#
# Two facts about a GPU are enough for this lesson.
#
# - It has a large **main memory**, called HBM, and a very small **on-chip memory** beside each
#   group of arithmetic units. Arithmetic happens on chip. A number in HBM must travel there
#   first.
# - A program that the GPU runs is called a **kernel**. When a kernel ends, what it held on chip
#   is gone. Whatever the next kernel needs must be written to HBM and read back.
#
# Standard attention, one kernel a step, is called *unfused*. It moves $T^2$ numbers four times.

# %% tags=["nbval-check-output"]
from flashkit.cost import score_bytes, unfused_bytes

one_pass = score_bytes(8192, 8192, itemsize=4)
for step in ["write S", "read S (softmax)", "write P", "read P (times V)"]:
    print(f"{step:18s} {one_pass / 2**20:5.0f} MiB")

total = unfused_bytes(8192, 8192, 64, itemsize=4)
print(f"{'all four':18s} {4 * one_pass / 2**20:5.0f} MiB")
print(f"{'and Q, K, V, O':18s} {(total - 4 * one_pass) / 2**20:5.0f} MiB")

# %% [markdown]
# One GiB goes back and forth. The inputs and the output, which are all that anybody asked for,
# are 8 MiB.
#
# **Run the cell below.** In its first picture, the four equal bars are the passes over the
# scores. The last bar is a tiled kernel, which moves no score at all. It pays by reading $K$ and
# $V$ more than once, namely once for every `BLOCK_M` queries, and still moves far less. Change
# `BLOCK_M` and see what that costs. How a kernel can do without the scores is what this course is
# about. The second picture, the times, belongs to the next section: come back to it then.

# %%
from flashkit.widgets.explorers import score_matrix_explorer

score_matrix_explorer(about="traffic", heads=1, batch=1)

# %% [markdown]
# ### Which limit binds?
#
# A GPU calculates and moves numbers at the same time, so a step takes *at least* as long as the
# slower of the two. That is the **roofline**:
#
# $$\text{time} \;\ge\; \max\left(\frac{\text{operations}}{\text{operations per second}},\;
# \frac{\text{bytes}}{\text{bytes per second}}\right).$$
#
# If the second term is the larger one, we call the work **memory-bound**: the arithmetic units
# wait for data. Attention does a great deal of arithmetic, $4T^2d$ operations for its two matrix
# products. Is that enough to keep them busy? Take one head in FP16 (2 bytes a number), and three
# GPUs as their data sheets describe them; 1 us is a millionth of a second.

# %% tags=["nbval-check-output"]
from flashkit.cost import DEVICES, flops, unfused_bytes

work = flops(8192, 8192, 64, causal=False)
moved = unfused_bytes(8192, 8192, 64, itemsize=2)
for name in ["H200", "A100", "T4"]:
    device = DEVICES[name]
    compute, memory = work / device.flops, moved / device.bandwidth
    bound = "memory-bound" if memory > compute else "compute-bound"
    print(
        f"{name:5s} arithmetic {compute * 1e6:6.0f} us   memory {memory * 1e6:6.0f} us   {bound}"
    )

# %% [markdown]
# On all three, moving the scores takes longer than computing with them. Fusing the steps does
# not change the arithmetic. It removes bytes. Go back to the times in the explorer above, with
# float16: raise `BLOCK_M` until the bytes of the tiled kernel sink below the line.
#
# ### The same output, not an approximation
#
# **FlashAttention** (Dao et al., 2022) never stores $S$ or $P$ in HBM. It brings in one *tile*
# of keys and values at a time, uses it, and lets it go. The output is the same as before, up to
# rounding.
#
# Do not confuse it with sparse or linear attention. Those save work by computing something
# *else*. Below, float64 shows the difference: the tiled version agrees to the last digits, and a
# window of 16 keys, which is a sparse pattern, does not agree at all. (All three are causal.)

# %% tags=["nbval-check-output"]
from flashkit.online import online_attention
from flashkit.reference import causal_attention

generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, 2, 64, 32, generator=generator, dtype=torch.float64) for _ in "qkv")
exact = causal_attention(q, k, v)
tiled = online_attention(q, k, v, tile=16)
sparse = causal_attention(q, k, v, window=16)

print("tiled  differs by less than 1e-12:", bool((tiled - exact).abs().max() < 1e-12))
print("window differs by more than 0.1:  ", bool((sparse - exact).abs().max() > 0.1))

# %% [markdown]
# ## The obstacle: softmax needs the whole row
#
# A matrix product is easy to tile. A dot product is a sum, and a sum can be done in pieces: take
# some of the terms now, add the rest later.
#
# A softmax weight, $P_j = e^{s_j} / \sum_k e^{s_k}$, is harder, for two reasons.
#
# - Its denominator needs *every* score of the row. Taking a softmax of each tile by itself does
#   not help, as you will see in a moment.
# - $e^{s}$ overflows for large scores, so in practice one first subtracts the row's **maximum**.
#   The result is the same, because the factor cancels, and no exponent is above 0. But the
#   maximum, too, is only known at the end of the row.
#
# From here on we use one tiny example. One query has the scores $[0, 1, 2, -1]$; the four values
# are the plain numbers $[2, 4, 1, 3]$. We cut them into two tiles of two.

# %% tags=["nbval-check-output"]
scores = torch.tensor([0.0, 1.0, 2.0, -1.0])
values = torch.tensor([2.0, 4.0, 1.0, 3.0])
first = torch.softmax(scores[:2], 0) @ values[:2]
second = torch.softmax(scores[2:], 0) @ values[2:]

print(f"softmax of each tile: {first:.4f} and {second:.4f}")
print(f"their sum, their mean: {first + second:.4f}, {(first + second) / 2:.4f}")
print(f"the right answer:     {torch.softmax(scores, 0) @ values:.4f}")
print("exp(scores + 100):   ", torch.exp(scores + 100).tolist())
print("the same, max removed:", [f"{x:.4f}" for x in torch.exp(scores - scores.max()).tolist()])

# %% [markdown]
# Neither the sum nor the mean is right. Each softmax gave its own tile a total weight of exactly
# 1, so nothing is left to say that the second tile, with its score of 2, should count for more.
# And without the maximum, scores around 100 are already too much for FP32.
#
# ## The idea: keep a running answer, and repair it
#
# Milakov and Gimelshein (2018) found the way round. Do not wait for the end of the row. Keep an
# answer that is right for the scores seen *so far*, and repair it when more arrive. Three things
# are kept for each query row:
#
# | name | meaning | shape |
# |---|---|---|
# | $m$ | the largest score so far | one number |
# | $\ell$ | the sum of $e^{s_j - m}$ over the scores so far | one number |
# | $a$ | the sum of $e^{s_j - m}\, v_j$ over the scores so far | $d$ numbers |
#
# The answer so far is $a / \ell$. So why does anything need repair? Both sums were measured
# against the maximum *of that moment*. Say it was $m_\text{old}$, and a new tile raises it to
# $m_\text{new}$. Take one old term and split its exponent:
#
# $$e^{s_j - m_\text{new}}
#   = e^{(s_j - m_\text{old}) + (m_\text{old} - m_\text{new})}
#   = e^{s_j - m_\text{old}} \cdot
#     \underbrace{e^{m_\text{old} - m_\text{new}}}_{\textstyle\alpha} .$$
#
# There is no $j$ in $\alpha$. It is the same for every old term, so it can be taken out of the
# sum: **one multiplication repairs the whole of $\ell$, and one repairs the whole of $a$**. The
# old scores are not needed again.

# %% tags=["nbval-check-output"]
m_old, m_new = 1.0, 2.0  # the maximum rises from 1 to 2
alpha = math.exp(m_old - m_new)

print(f"alpha = {alpha:.4f}")
for s in [0.0, 1.0]:
    wanted, repaired = math.exp(s - m_new), math.exp(s - m_old) * alpha
    print(f"score {s:.0f}: wanted {wanted:.4f}, old term times alpha {repaired:.4f}")

# %% [markdown]
# That is all the mathematics there is. A tile with scores $s$ and values $V_\text{tile}$ changes
# the state like this:
#
# $$
# \begin{aligned}
# m_\text{new} &= \max\bigl(m_\text{old},\ \max(s)\bigr) &
# \alpha &= e^{m_\text{old} - m_\text{new}} &
# p &= e^{s - m_\text{new}} \\
# \ell_\text{new} &= \alpha\,\ell_\text{old} + \textstyle\sum p &
# a_\text{new} &= \alpha\, a_\text{old} + p\,V_\text{tile}
# \end{aligned}
# $$
#
# and after the last tile $O = a / \ell$. At the start $m = -\infty$, $\ell = 0$ and $a = 0$.
#
# ## Two tiles by hand
#
# **Tile 1** has the scores $[0, 1]$ and the values $[2, 4]$. Nothing has been seen before it, so
# there is nothing to repair. Before you run its cell, say aloud what $m$ will be.
#
# **Tile 2** has the scores $[2, -1]$ and the values $[1, 3]$. The maximum rises from 1 to 2, so
# the old $\ell$ and $a$ are multiplied by $\alpha$ before the new terms are added. (The first
# two lines of its cell restate tile 1, so that you can run it as often as you like.)
#
# **Then** `flashkit.trace` runs the same recurrence and writes down every step. Check your
# pencil against it. The cell after it holds an **explorer**: run it, press *Next*, and watch the
# same numbers move.

# %% tags=["nbval-check-output"]
m = max(0.0, 1.0)
p = [math.exp(0.0 - m), math.exp(1.0 - m)]
l = p[0] + p[1]
a = p[0] * 2 + p[1] * 4

print(f"m = {m:.0f}")
print(f"p = [{p[0]:.4f}, {p[1]:.4f}]")
print(f"l = {l:.4f}")
print(f"a = {a:.4f}")

# %% tags=["nbval-check-output"]
m1, l1 = 1.0, math.exp(-1) + 1
a1 = math.exp(-1) * 2 + 1 * 4

m2 = max(m1, 2.0, -1.0)
alpha = math.exp(m1 - m2)
p = [math.exp(2.0 - m2), math.exp(-1.0 - m2)]
l2 = alpha * l1 + p[0] + p[1]
a2 = alpha * a1 + p[0] * 1 + p[1] * 3

print(f"m = {m2:.0f}, alpha = {alpha:.4f}, p = [{p[0]:.4f}, {p[1]:.4f}]")
print(f"l = {alpha:.4f} * {l1:.4f} + {p[0]:.0f} + {p[1]:.4f} = {l2:.4f}")
print(f"a = {alpha:.4f} * {a1:.4f} + {p[0]:.0f} * 1 + {p[1]:.4f} * 3 = {a2:.4f}")
print(f"O = {a2:.4f} / {l2:.4f} = {a2 / l2:.4f}")

# %% tags=["nbval-check-output"]
from flashkit.trace import trace

tiles = trace([0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0], 2)
for number, tile in enumerate(tiles, start=1):
    p = ", ".join(f"{x:.4f}" for x in tile.p)
    print(
        f"tile {number}: m {tile.m_old:.0f} -> {tile.m_new:.0f}, alpha {tile.alpha:.4f}, p [{p}],"
        f" l {tile.l_new:.4f}, a {tile.a_new[0]:.4f}"
    )
print(f"O = {tiles[-1].a_new[0] / tiles[-1].l_new:.4f}")

# %%
from flashkit.widgets.explorers import tile_explorer

tile_explorer([0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0], tile=2)

# %% [markdown]
# $O = 1.8619$: the number that the softmax of the whole row gave.
#
# **In the explorer above**, move with the buttons, or with the slider and the arrow keys. The
# scores of the current tile are lit, and the line across them is $m$. The bars of $p$ are the
# weights of all keys seen so far, measured against this $m$. Go from tile 1 to tile 2 and back:
# $m$ steps up, and the two old weights shrink together, by the same $\alpha$. For $\ell$ and $a$
# you see what was there *before*, what is *kept* of it, what the tile *added*, and what is there
# *after*. The last step divides, beside the softmax of the whole row.
#
# Then change something. Put the 2 first, so that the scores are `2, 0, 1, -1`: in tile 2 nothing
# is rescaled. Take 1, 3 or 4 keys in a tile: the steps are others, $O$ is the same. Leave
# *forget* alone for now; you will need it further down.
#
# In tile 1, `trace` starts from $m = -\infty$, and so $\alpha = e^{-\infty} = 0$. It multiplies
# an $\ell$ and an $a$ that are still 0, so it does no harm. The first tile needs no special
# case.
#
# ## Your turn: predict the second tile
#
# *3 points, about 10 minutes. Pencil and calculator; one point for each number.*
#
# Another row: scores $[1, 3 \mid 5, 2]$ and values $[2, 1 \mid 3, 5]$, again in two tiles of
# two. Work through both tiles by hand. Tile 1 starts from nothing, tile 2 repairs and adds.
#
# **Write** `predict_second_tile()`. It returns a dictionary with three numbers, as they stand
# after the second tile: `alpha` (the factor that tile 2 used), `l` and `a` (not divided by
# anything). Four decimals are enough.
#
# The explorer above shows what to write down for each tile. It would do the sum for you, too, but
# the pencil teaches more: use it afterwards, to find the line where you went astray.


# %% nbgrader={"grade_id": "predict_second_tile", "solution": true}
def predict_second_tile():
    """Return dict(alpha=..., l=..., a=...) after the second tile, three floats. One line."""
    ### BEGIN SOLUTION
    # tile 1: m = 3, p = [0.1353, 1], l = 1.1353, a = 1.2707
    # tile 2: m = 5, p = [1, 0.0498], and the old sums shrink by e^(3 - 5)
    return {"alpha": 0.1353, "l": 1.2034, "a": 3.4209}
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-predict_second_tile", "grade": true, "points": 3}
check("predict_second_tile")
assert set(predict_second_tile()) == {"alpha", "l", "a"}

# %% [markdown]
# ## Why is $a$ kept unnormalised?
#
# We could divide after every tile and keep the finished average $O = a/\ell$ instead of $a$. It
# is possible. But look at what the repair becomes:
#
# $$O_\text{new} = \frac{\alpha\,\ell_\text{old}\,O_\text{old} + p\,V_\text{tile}}
# {\ell_\text{new}} .$$
#
# The division by $\ell_\text{old}$ has to be undone, only to divide again by a sum which the
# next tile will change once more. The answer is the same; the work is not.

# %% tags=["nbval-check-output"]
from flashkit.trace import trace

tiles = trace([0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0], 2)
values_of = [(2.0, 4.0), (1.0, 3.0)]
o = 0.0
for tile, values in zip(tiles, values_of, strict=True):
    added = sum(p * v for p, v in zip(tile.p, values, strict=True))
    o = (tile.alpha * tile.l_old * o + added) / tile.l_new  # undo, add, divide again
    print(f"divided after this tile: {o:.4f}")
print(f"divided once at the end: {tiles[-1].a_new[0] / tiles[-1].l_new:.4f}")

# %% [markdown]
# Left unnormalised, $\ell$ and $a$ are two sums of the same kind. They share one reference, $m$,
# so the same $\alpha$ repairs both, and one division per row, at the very end, is enough.
#
# ## Your turn: the update for one row
#
# *4 points, about 15 minutes.* Now write in PyTorch what you did with the pencil.
#
# **The formula** is the one that stands before "Two tiles by hand": $m_\text{new}$, $\alpha$ and
# $p$, then $\ell$ and $a$.
#
# **Specification.** `online_update(m, l, a, scores, values)` takes the state and one tile, and
# returns the new state `(m, l, a)`.
#
# | argument | shape | |
# |---|---|---|
# | `m`, `l` | `()` | 0-dimensional tensors; before the first tile $-\infty$ and 0 |
# | `a` | `(D,)` | not normalised; before the first tile zeros |
# | `scores` | `(N,)` | a hidden key has the score $-\infty$: its weight is $e^{-\infty} = 0$ |
# | `values` | `(N, D)` | |
#
# Do not change the tensors you are given. **One trap:** a tile may be all $-\infty$ while
# nothing has been seen yet. Then $m_\text{new} = -\infty$ too, and $-\infty - (-\infty)$ is NaN,
# not a number. The right state after such a tile is still "nothing seen": $m = -\infty$,
# $\ell = 0$, $a = 0$. Which number could you subtract in place of $m_\text{new}$ so that every
# exponential comes out as 0?
#
# **In the explorer below** is a longer row, eight scores in tiles of two. Run the cell, step
# through it, and compare the bars *before* and *kept*. In tile 3 the maximum does not rise, so
# $\alpha = 1$ and all of the old sum is kept. In tile 4 it rises a lot, and little is.

# %%
from flashkit.widgets.explorers import tile_explorer

scores, values = [0, 1, 3, 2, 2, 1, 5, 4], [2, 4, 1, 3, 2, 2, 0, 1]
tile_explorer(scores, values, tile=2, name="A longer row, tile by tile")


# %% nbgrader={"grade_id": "online_update", "solution": true}
def online_update(m, l, a, scores, values):
    """Add one tile to the state of one row.

    m, l 0-dimensional; a (D,); scores (N,); values (N, D), all of one dtype.
    Returns the new (m, l, a), of the same shapes. About 6 lines.
    """
    ### BEGIN SOLUTION
    m_new = torch.maximum(m, scores.max())
    reference = torch.where(m_new == -math.inf, 0.0, m_new)  # -inf - -inf would be NaN
    alpha = torch.exp(m - reference)
    p = torch.exp(scores - reference)
    return m_new, alpha * l + p.sum(), alpha * a + p @ values
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-online_update", "grade": true, "points": 4}
check("online_update")
nothing = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(1)
_, l, _ = online_update(*nothing, torch.tensor([0.0, 1.0]), torch.tensor([[2.0], [4.0]]))
assert abs(float(l) - 1.3679) < 1e-4  # tile 1 of the worked example

# %% [markdown]
# ## Your turn: which rescale was forgotten?
#
# *3 points, about 10 minutes; one point for each answer.*
#
# Both $\ell$ and $a$ must be multiplied by $\alpha$. Whoever forgets one of them adds up terms
# that were measured against different maxima. It is the classic bug of this algorithm, and it is
# hard to see, because the result looks like any other number.
#
# Three programs ran the worked example. Each has this bug in its own way: one leaves out
# $\alpha$ on $\ell$, one on $a$, one on both. The cell below prints what each returned. The
# right output is 1.8619.
#
# **The formula:** $\ell = \alpha\,\ell_\text{old} + \sum p$,
# $\;a = \alpha\,a_\text{old} + p\,V_\text{tile}$, $\;O = a/\ell$. Cross out an $\alpha$, put in
# the numbers of tile 2, and compare.
#
# **Before you calculate**, think: a forgotten $\alpha$ leaves a sum too *large*. What does that
# do to $O$ if it is the sum above the line? Below the line?
#
# **Write** `forgotten_rescale()`. It returns a list of three strings, one for each program in
# the order printed. Each is `"l"`, `"a"` or `"both"`: what was *not* rescaled.
#
# With numbers rounded to four decimals, your last digit may differ from the one printed.
#
# **When you have an answer**, go back to the explorer of the worked example and set *forget* to
# each of the three. It stops calling the numbers right at the tile where they go wrong, and puts
# the right one beside each.

# %% tags=["nbval-check-output"]
from flashkit.exercises.lesson1 import wrong_outputs

for number, output in enumerate(wrong_outputs(), start=1):
    print(f"program {number}: O = {output:.4f}")


# %% nbgrader={"grade_id": "forgotten_rescale", "solution": true}
def forgotten_rescale():
    """Return a list of three strings, each "l", "a" or "both". One line."""
    ### BEGIN SOLUTION
    # 5.8852 / 1.5530, 5.8852 / 2.4177, 2.8915 / 2.4177
    return ["a", "both", "l"]
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-forgotten_rescale", "grade": true, "points": 3}
check("forgotten_rescale")
assert len(forgotten_rescale()) == 3

# %% [markdown]
# ## Check your understanding
#
# *1 point each. Return one letter. The check only records it; it is marked when you hand in.*
#
# **Question 1.** Why is $a$ kept unnormalised until the very end?
#
# - **a.** Because each division by $\ell$ in low precision loses digits, and rescaling by
#   $\alpha$ would double that loss at every tile.
# - **b.** Because $\ell$ is not final before the last tile; as plain sums against the same $m$,
#   $\ell$ and $a$ are repaired by one factor, and one division at the end suffices.
# - **c.** Because a normalised $a$ would no longer depend on $m$, so there would be no way to
#   rescale it when a later tile raises the maximum.
# - **d.** Because the weights of a tile are not known until the row's maximum is known, so $a$
#   is a sum of plain values to which the weights are applied at the end.
#
# **Question 2.** Why is it wrong to apply an ordinary softmax to each tile by itself?
#
# - **a.** Because a tile's scores may overflow the exponential unless the maximum of the whole
#   row is subtracted from them first.
# - **b.** Because tiles can hold different numbers of keys, so their results must be averaged
#   with the tile sizes as weights.
# - **c.** Because every tile's weights then add up to 1, whatever its scores; how much one tile
#   should count against another is lost.
# - **d.** Because the exponential is not linear, so a softmax can only be computed with all
#   scores of the row in memory at the same time.


# %% nbgrader={"grade_id": "question_1", "solution": true}
def answer_1():
    """Return "a", "b", "c" or "d"."""
    ### BEGIN SOLUTION
    return "b"
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-question_1", "grade": true, "points": 1}
check("question_1")
assert answer_1() in ("a", "b", "c", "d")


# %% nbgrader={"grade_id": "question_2", "solution": true}
def answer_2():
    """Return "a", "b", "c" or "d"."""
    ### BEGIN SOLUTION
    return "c"
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-question_2", "grade": true, "points": 1}
check("question_2")
assert answer_2() in ("a", "b", "c", "d")

# %% [markdown]
# ## In short
#
# - $S$ and $P$ have $T^2$ entries a head. Unfused attention moves them through HBM four times,
#   and that traffic is what it waits for.
# - Softmax seems to need the whole row: for its denominator, and for its maximum.
# - Keep $m$, $\ell$ and $a$. When the maximum rises, one factor
#   $\alpha = e^{m_\text{old} - m_\text{new}}$ repairs both sums. Divide once, at the end.
# - The result is exact. Nothing was approximated.
#
# **Next**, lesson 2: the same recurrence for every row, head and batch at once, with causal
# masks, and the two edge cases that break most first attempts. Save this notebook before you go
# on.
