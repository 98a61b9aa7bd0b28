"""Null-space cleaning: from each record, what a known linear predictor does not need is removed.

Xu et al. 2017, Cleaning the Null Space: A Privacy Mechanism for Predictors. Of the two `algorithms`
the first keeps what the desired prediction needs, the second is aimed at a known confidential
predictor. Both fit their `predictors`
in one pass over the shards and freeze them into a `linear_cleaner` in low-rank form. That releases
records or, factored, their coordinates. `leace` erases where no desired predictor is known. The
arithmetic is in `privpipe.numerics.null_space`.

Start reading at `algorithms`, then `linear_cleaner`.
"""

from privpipe.sanitizers.null_space import algorithms, leace, target_only

METHODS = (algorithms.NULL_SPACE, algorithms.NULL_SPACE_TARGETED, leace.METHOD, target_only.METHOD)
"""The rows of this wing."""
