"""Noisy filters: local differential privacy for every record, before or after any row-wise filter.

Hamm 2017, Noisy Minimax Filters. `noisy_filter` is the fitted map, `mechanism` its noise and what
that promises. `fit_noisy` learns filter, mean and threshold from public records, `change_shards`
lets one learn from noisy records. The filter is a row of the table of methods, known by its name.

Start reading at `mechanism`, then `noisy_filter`.
"""
