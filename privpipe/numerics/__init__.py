"""Pure arithmetic: ndarrays in, new ndarrays out; a wing per family of methods.

`null_space`, `minimax` and `mapping` hold what the methods of these names compute, and import
none of one another; each has a DESIGN.md. `random` makes keyed draws, `regression` fits linear
heads from merged sums. `spectra`, `rounding`, `finite` and `compiler` serve all.
"""
