"""Sparse privacy mappings: least mutual information under a budget of distortion, certified.

Salamatian et al., SPPM. `problem` states the convex programme in pairs of symbols, prices all pairs
and maximises the smoothed dual. `search` holds the searches, and `mapping_search` chooses among
them. `certificate` checks the result by code of its own. The other modules bound what is learned
about the law behind the counts.

Start reading at `problem.programme`, then `mapping_search`; why it is so: DESIGN.md.
"""
