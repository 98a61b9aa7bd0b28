"""Ways to release less and less that preserve a target: what is tried where a release is refused.

The order of `METHODS` says nothing of this. DESIGN.md of the pipeline says how they were chosen.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from privpipe.errors import PrivpipeError
from privpipe.protocols import FloatArray, Shards
from privpipe.sanitizers.null_space.algorithms import NullSpaceOptions, fit_null_space
from privpipe.sanitizers.options import make_options

LAST: dict[str, Any] = {"name": "target_only"}
"""The rung that releases the predicted target and nothing else."""


N_BINS = 8
"""Of a number that is released. 2 to 6 % of R squared are lost. School's scores say .07 of the size
of a school instead of .2."""


def list_ladder(records: Shards, features: FloatArray) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each rung as a ``[method]`` table, and whether features are standardised before.

    Parameters
    ----------
    records
        What methods are fitted to; without a target there is no ladder.
    features : (n_records, n_features)
        Others, by which the variance of the target prediction is measured.
    """
    desired = records.schema.desired
    if not desired:
        return
    if (budget := measure_variance(records, features)) > 0:
        yield {"name": "null_space", "utility_budget": float(f"{budget:.3g}"), "ridge": 0.01}, False
    # A filter of one direction preserves one target of two classes, or a number.
    if all((column.n_categories or 2) == 2 for column in desired):
        yield {"name": "minimax_least_squares", "n_filtered": 1}, True
    yield LAST, False
    if records.schema.confidential:
        bins = {} if all(column.is_categorical for column in desired) else {"n_bins": N_BINS}
        yield LAST | bins | {"variant": "equalised_odds"}, False


def identify(method: Mapping[str, Any]) -> tuple[str, str]:
    """By which two rungs differ."""
    return method["name"], method.get("variant", "plain")


def measure_variance(records: Shards, features: FloatArray) -> float:
    """Variance of the target prediction: the budget that is all of it; 0 where none is learned."""
    try:
        named = {"name": "null_space", "utility_budget": 0.0, "ridge": 0.01}
        options = make_options(NullSpaceOptions, named, "null_space")
        predictor = fit_null_space(records, options).predictor
    except PrivpipeError:
        return 0.0
    x = np.asarray(features, np.float64)
    return float(np.var(x @ predictor[: x.shape[1]], axis=0).sum())
