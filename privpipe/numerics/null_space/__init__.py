"""Null-space cleaning: a predictor's few coordinates, shrunk within a budget per record.

Xu et al. 2017, Cleaning the Null Space. `factorisation` writes a predictor in low-rank form, and
orders its coordinates by what removing them costs the confidential prediction; `knapsack` shares
out the budget. `prediction_grid` takes of a record its desired prediction on a grid, and nothing
else. `rounding_margin` keeps the promise for what is stored. `cleaning` does a block of records, in
`cleaning_kernel` where it is compiled.

Start reading at `knapsack`, then `cleaning`; DESIGN.md says why it is so.
"""
