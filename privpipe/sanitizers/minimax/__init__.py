"""Minimax filters: target tasks are preserved and private ones spoiled, against the best adversary.

Hamm, JMLR 2017, Minimax Filter. `linear_minimax` descends the trade-off Phi for linear filters,
`neural_minimax` for any differentiable family and the paper's sigmoid network. `custom_filter` does
so for a class in a file of the user's. `baselines` are the closed forms and what the paper compares
with. `training` turns shards into tasks, moments and rounds; the objective and its descent are in
`privpipe.numerics.minimax`.

Start reading at `linear_minimax`, then `training.shard_oracle`.
"""

from collections.abc import Callable
from typing import Any

from privpipe.protocols import Method, RecordMap
from privpipe.sanitizers.minimax import baselines, linear_minimax
from privpipe.sanitizers.minimax import custom_filter as custom
from privpipe.sanitizers.minimax import neural_minimax as neural
from privpipe.sanitizers.minimax.linear_filter import LinearFilter, MinimaxFilter
from privpipe.sanitizers.minimax.training.labelled_moments import LABEL_STATISTICS

EMPIRICAL = "none in advance: measured against named adversaries"
"""What a filter promises, for a table."""


def as_method(
    options: type[Any], fit: Callable[..., RecordMap], made: type[RecordMap] = LinearFilter
) -> Method:
    """A row of the table of methods, for a filter that promises nothing in advance.

    Parameters
    ----------
    options, fit
        As of `Method`; the options have its name, its source and its check.
    made
        Class of the maps that `fit` returns.
    """
    return Method(
        options=options,
        fit=fit,
        source=options.source,
        maps=(made,),
        check=options.check,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    )


METHODS = (
    as_method(linear_minimax.MinimaxOptions, linear_minimax.fit_minimax_filter, MinimaxFilter),
    as_method(neural.MinimaxNeuralOptions, neural.fit_minimax_neural_filter, neural.NeuralFilter),
    as_method(custom.MinimaxCustomOptions, custom.fit_minimax_custom_filter, custom.CustomFilter),
    as_method(baselines.LeastSquaresOptions, baselines.fit_least_squares_filter),
    as_method(baselines.PrivacyLdsOptions, baselines.fit_privacy_lds_filter),
    as_method(baselines.PcaOptions, baselines.fit_pca_filter),
    as_method(baselines.RandOptions, baselines.fit_rand_filter),
)
"""The rows of this wing."""
