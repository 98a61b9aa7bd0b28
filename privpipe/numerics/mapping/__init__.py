"""Sparse privacy mappings: least mutual information under a budget of distortion, certified.

Salamatian et al., SPPM. `problem` states the convex programme in pairs of symbols, `pricing`
searches all pairs for cheap ones, `dual` maximises the smoothed dual and restricts it to few
pairs by an interior point, `search` puts them together, `certificate` checks the result by code of
its own.

Start reading at `problem.programme`, then `search.mapping_search`; why it is so: DESIGN.md.
"""
