"""The frozen maps of null-space cleaning: all are a `linear_cleaner` in low-rank form.

`null_space_cleaner` is algorithm 1, `targeted_cleaner` algorithm 2, `verbatim_cleaner` algorithm 2
to the letter of the paper, for reproductions; `factored_cleaner` releases coordinates instead of
records.
"""
