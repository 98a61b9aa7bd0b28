"""Null-space cleaning: from each record, what a known linear predictor does not need is removed.

Xu et al. 2017, Cleaning the Null Space: A Privacy Mechanism for Predictors. `algorithm_1` keeps
what the desired prediction needs; `algorithm_2` is aimed at a known confidential predictor.
Both fit their `predictors` by `least_squares` in one pass over the shards and freeze them into one
of the maps, all of which are a `linear_cleaner` in low-rank form: `null_space_cleaner` is algorithm
1, `targeted_cleaner` algorithm 2, `verbatim_cleaner` algorithm 2 to the letter of the paper, for
reproductions; `factored_cleaner` releases coordinates instead of records. `leace` erases where no
desired predictor is known, `laplace` is noise of the same utility; both are there to compare with.
The arithmetic is in `privpipe.numerics.null_space`.

Start reading at `algorithm_1`, then `linear_cleaner`.
"""

from privpipe.sanitizers.null_space import algorithm_1, algorithm_2, leace, target_only

METHODS = (algorithm_1.METHOD, algorithm_2.METHOD, leace.METHOD, target_only.METHOD)
"""The rows of this wing."""
