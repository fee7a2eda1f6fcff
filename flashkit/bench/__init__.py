"""How fast the calls are, beside their peers, on one GPU: `flashkit bench`.

What is measured is data: `shapes`, `implementations`, `modes`, `targets`. How: `runner` makes the
inputs, `timing` and `gpu` take the times, `check` compares with float64, `rows` keeps the results.
"""
