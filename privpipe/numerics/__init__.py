"""Pure arithmetic: ndarrays in, new ndarrays out; a wing per family of methods.

`null_space`, `minimax` and `mapping` hold what the methods of these names compute, and import none
of one another; each has a DESIGN.md. `random` makes keyed draws. `moments` are merged sums, least
squares from them and the target columns of named variables. `tsqr` are triangular factors for
designs that a Gram matrix cannot bear. `logistic` has losses and their curvature. `rounding`,
`finite` and `compiler` serve all.
"""
