"""Minimax filters: target tasks are preserved and private ones spoiled, against the best adversary.

Hamm, JMLR 2017, Minimax Filter. `linear_minimax` descends the trade-off Phi for linear filters,
`neural_minimax` for any differentiable family and the paper's sigmoid network, `custom_filter` for
a class in a file of the user's; `baselines` are the closed forms and what the paper compares with.
`training` turns shards into tasks, moments and rounds; the objective and its descent are in
`privpipe.numerics.minimax`.

Start reading at `linear_minimax`, then `training.shard_oracle`.
"""

from privpipe.sanitizers.minimax import baselines, custom_filter, linear_minimax, neural_minimax

METHODS = (
    *linear_minimax.METHODS,
    *neural_minimax.METHODS,
    *custom_filter.METHODS,
    *baselines.METHODS,
)
"""The rows of this wing."""
