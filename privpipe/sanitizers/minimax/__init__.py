"""Minimax filters: wanted tasks are kept and private ones spoiled, against the best adversary.

Hamm, JMLR 2017, Minimax Filter. `linear_minimax` descends the trade-off Phi for linear filters,
`neural_minimax` for the paper's sigmoid network, `own` for any differentiable family and for a
class in a file of the user's;
`baselines` are the closed forms, PCA and random projections, `ppls` and `ddd` what the paper
compares with. `training` turns shards into tasks, moments and rounds; the objective and its
descent are in `privpipe.numerics.minimax`.

Start reading at `linear_minimax`, then `training.shard_oracle`.
"""

from __future__ import annotations

from privpipe.sanitizers.minimax import (
    baselines,
    custom_filter,
    ddd,
    linear_minimax,
    neural_minimax,
    ppls,
)

METHODS = (
    *linear_minimax.METHODS,
    *neural_minimax.METHODS,
    *custom_filter.METHODS,
    *baselines.METHODS,
    *ppls.METHODS,
    *ddd.METHODS,
)
"""The rows of this wing."""
