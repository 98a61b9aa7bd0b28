"""Null-space cleaning: a predictor's few coordinates, shrunk within a budget per record.

Xu et al. 2017, Cleaning the Null Space. `factorisation` writes a predictor in low-rank form,
`knapsack` and `shrinkage` share out the budget, `pencil` orders coordinates by what removing them
costs the confidential prediction. `grid` takes of a record its desired prediction on a grid, and
nothing else; `rounding_bounds` keep the promise for what is stored; `cleaning` does a block of
records, in `cleaning_kernel` where it is compiled. `erasure` is LEACE in closed form.

Start reading at `knapsack`, then `cleaning`; why it is so stands in DESIGN.md.
"""
