# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # FlashAttention, step by step
#
# Attention compares every token with every other, and a long text has very many pairs of tokens.
# FlashAttention gives the same answer without ever storing the table of pairs. In these lessons
# you find out why that is possible, and then build it: first with a pencil, then in PyTorch, then
# as a kernel that runs on a GPU, then for the way language models are really used, one new token
# at a time, and then backwards, for training. The last lesson runs what others added to it.

# %% [markdown]
# | lesson | you write | time | you need |
# |---|---|---|---|
# | [1 · The worked example][1] | two tiles by hand; the update for one row | 75 min | attention |
# | [2 · Online softmax for every row][2] | attention in tiles | 100 min | lesson 1, PyTorch |
# | [3 · The Triton kernel][3] | a kernel and its launcher | 150 min | lessons 1, 2; Linux |
# | [4 · Flash-decoding][4] | split the keys, merge the parts | 120 min | lessons 1 to 3; Linux |
# | [5 · The backward pass][5] | its parts, then all by tiles | 150 min | lessons 1, 2; Linux |
# | [6 · Beyond][6] | read a paged cache, and a roofline | 120 min | lessons 1, 2, 4; Linux |
#
# [1]: 01_worked_example/01_worked_example.ipynb
# [2]: 02_online_softmax/02_online_softmax.ipynb
# [3]: 03_triton_kernel/03_triton_kernel.ipynb
# [4]: 04_flash_decoding/04_flash_decoding.ipynb
# [5]: 05_backward/05_backward.ipynb
# [6]: 06_beyond/06_beyond.ipynb
#
# No lesson needs a GPU. Without one, Triton's interpreter runs your kernels: slowly, and with the
# same answers.

# %% [markdown]
# ## How to work
#
# - Run the cells from top to bottom with **Shift+Enter**.
# - Where a heading asks you for something, replace the line `raise NotImplementedError(...)` by
#   your own code and run that cell. Keep helpers in the same cell: only these cells are handed in.
# - Then run the check below it. It says which case failed, what was wanted and what it got, and
#   often which bug that is. Try as often as you like.
# - Save with **Ctrl+S**. The file itself is what you hand in.

# %% [markdown]
# ## Is this machine ready?
#
# Run the next cell once. It lists the versions, tells whether kernels run on a GPU or in the
# interpreter, and runs a tiny one. A line that needs something from you says what to do.

# %%
from flashkit import doctor

print(doctor.render(doctor.examine()))
