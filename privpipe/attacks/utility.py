"""What a release loses of utility: of every record that is promised a budget, and of a regression.

The loss of a record is the squared change of its desired prediction (Xu et al. 2017, e_utility). It
is computed from raw record, released record and predictor without a line of the cleaning's code.

To surrogates, which belong to no record, a learner fits ridge regression. It is judged on raw
records that no surrogate was made of, as is the same regression fitted to the raw records.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy

from privpipe.attacks.statistics.intervals import Interval
from privpipe.capabilities import AddsUp, UtilityPromise
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.numerics.moments import CoMoments, code_targets
from privpipe.protocols import FloatArray, Names, Shard, ShardSchema

IN_CACHE = 1024
"""Records that are measured at once: their changes stay near the processor."""

AT_BUDGET = 1e-3
"""A record counts as at its budget when it spent all but this share of it."""

CompleteRecords = Callable[[Shard], tuple[FloatArray, FloatArray]]
"""Features with the bias, and responses, of the records of a shard; NaN where they are missing."""

Models = tuple[FloatArray, FloatArray]
"""The models of the surrogates and of the raw records, (n_features, n_responses) each."""

RIDGE = 1e-6
"""Of the learner, relative to the mean square of each feature."""


@dataclass(frozen=True)
class UtilityLosses(AddsUp):
    """Losses of some records, in squared units of the desired prediction.

    Parameters
    ----------
    n_records
        Records whose raw and released features are finite; withheld ones are not.
    total, largest
        Sum and largest of their losses.
    n_at_budget, n_above
        How many spent the budget but for a thousandth, and more than the budget.
    """

    n_records: int
    total: float
    largest: float
    n_at_budget: int
    n_above: int

    def describe(self, budget: float) -> dict[str, Any]:
        """JSON-ready: n_records, budget, mean, largest, share_at_budget, n_above_budget."""
        n = max(self.n_records, 1)
        return {
            "n_records": self.n_records,
            "budget": budget,
            "mean": self.total / n,
            "largest": self.largest,
            "share_at_budget": self.n_at_budget / n,
            "n_above_budget": self.n_above,
        }


def measure_losses(shard: Shard, *, promise: UtilityPromise) -> UtilityLosses:
    """Losses of a shard, from the difference of the records: large predictions cost no digit.

    Released records may have a column of ones that raw ones lack.
    """
    raw, released = shard.features, shard.released
    # Augmented cleaners release the bias as a column.
    if raw.shape[1] < released.shape[1]:
        raw = np.hstack([raw, np.ones((len(raw), 1))])
    # Whole chunks would leave the cache between the difference and its product.
    slices = [slice(first, first + IN_CACHE) for first in range(0, len(raw), IN_CACHE)]
    found = [_lose(raw[some], released[some], promise) for some in slices]
    loss = np.concatenate([np.empty(0), *found])
    budget = promise.utility_budget
    counts = int(np.sum(loss >= budget * (1 - AT_BUDGET))), int(np.sum(loss > budget))
    return UtilityLosses(len(loss), float(loss.sum()), float(loss.max(initial=0.0)), *counts)


def _lose(raw: FloatArray, released: FloatArray, promise: UtilityPromise) -> FloatArray:
    """Losses of those records whose change is known: of a withheld one the row is NaN."""
    # The difference first: predictions of large records would lose the digits of a small change.
    change = np.subtract(released, raw, dtype=np.float64)
    change = keep_rows(change, find_finite_rows(change))
    return np.asarray(((change @ promise.predictor) ** 2).sum(axis=1))


def learn(gram: FloatArray, n_features: int) -> FloatArray:
    """Ridge regression of the last columns on the first, (n_features, n_responses).

    Parameters
    ----------
    gram
        Sum of products of [features with the bias, responses].
    n_features
        With the bias.
    """
    inner, cross = gram[:n_features, :n_features], gram[:n_features, n_features:]
    size = np.diag(inner)
    scale = np.sqrt(np.where(size > 0, size, np.inf))  # a feature that is never seen gets a zero
    scaled = inner / np.outer(scale, scale) + RIDGE * np.eye(n_features)
    return np.asarray(np.linalg.solve(scaled, cross / scale[:, None]) / scale[:, None])


def summarise_completed(shard: Shard, *, complete: CompleteRecords) -> CoMoments:
    """Co-moments of [features, responses] of records that hold both, completed."""
    features, responses = complete(shard)
    rows = np.hstack([features[:, :-1], responses])
    return CoMoments.of(rows[np.isfinite(rows).all(axis=1)])


def summarise_tests(
    shard: Shard, *, schema: ShardSchema, complete: CompleteRecords, models: Models
) -> CoMoments:
    """Co-moments of squared errors of both models, predictions, and confidential targets."""
    x, responses = complete(shard)
    targets = code_targets(shard.confidential, schema.confidential, "zero_one")
    known = np.isfinite(np.hstack([x, responses, targets])).all(axis=1)
    x, responses, targets = x[known], responses[known], targets[known]
    predictions = [x @ model for model in models]
    errors = [(predicted - responses) ** 2 for predicted in predictions]
    return CoMoments.of(np.hstack([*errors, predictions[0], targets]))


def report_utility(
    tests: CoMoments, models: Models, responses: Names, confidential: Names, *, level: float
) -> dict[str, Any]:
    """How near the model of the surrogates is to that of the raw records, JSON-ready.

    Parameters
    ----------
    tests
        Of `summarise_tests`.
    models
        The two models.
    responses, confidential
        Names.
    level
        Of the limits.

    Returns
    -------
    found
        By name:

        - ``responses`` and ``hidden``: the names
        - ``eta``: ``|W_m - W_s| / max(|W_m|, |W_s|)`` in Frobenius norm (Yi et al. 2014) over all
          responses
        - ``rmse_masked`` and ``rmse_raw``: of each response on held-out raw records, with their
          ``ratio``
        - ``explained``: the share of the variance of each confidential target that the predicted
          responses explain
        - ``n_records``
    """
    t, n = len(responses), max(2.0, tests.count)
    covariance = tests.scatter / n
    ratios = []
    for j in range(t):
        one, other = float(tests.mean[j]), float(tests.mean[t + j])
        # The delta method for half the difference of the logarithms of two dependent means.
        picked = covariance[np.ix_([j, t + j], [j, t + j])]
        slopes = np.array([1 / max(one, 1e-300), -1 / max(other, 1e-300)])
        error = math.sqrt(max(0.0, float(slopes @ picked @ slopes)) / n) / 2
        middle = math.sqrt(one / max(other, 1e-300))
        ratios.append(_spread(middle, middle * error, level))
    norms, apart = [float(np.linalg.norm(model)) for model in models], models[0] - models[1]
    explained = [_explain(covariance, t, 3 * t + k, n, level) for k in range(len(confidential))]
    return {
        "responses": list(responses),
        "hidden": list(confidential),
        "eta": float(np.linalg.norm(apart)) / max(norms),
        "rmse_masked": np.sqrt(tests.mean[:t]).tolist(),
        "rmse_raw": np.sqrt(tests.mean[t : 2 * t]).tolist(),
        "ratio": [asdict(one) for one in ratios],
        "explained": [asdict(one) for one in explained],
        "n_records": int(tests.count),
    }


def _explain(covariance: FloatArray, n_responses: int, j: int, n: float, level: float) -> Interval:
    """Multiple R^2 of a confidential target on the predictions, less what chance explains."""
    predicted = slice(2 * n_responses, 3 * n_responses)
    total = float(covariance[j, j])
    if total <= 0:
        return _spread(0.0, 0.0, level)
    cross = covariance[predicted, j]
    share = float(cross @ np.linalg.pinv(covariance[predicted, predicted], 1e-10) @ cross) / total
    # Adjusted for the predictors, of which each explains 1 / n by chance.
    share = max(0.0, 1 - (1 - min(1.0, share)) * (n - 1) / max(1.0, n - 1 - n_responses))
    return _spread(share, 2 * math.sqrt(share) * (1 - share) / math.sqrt(n), level)


def _spread(estimate: float, error: float, level: float) -> Interval:
    half = float(scipy.stats.norm.ppf(0.5 + level / 2)) * error
    return Interval(estimate, max(0.0, estimate - half), estimate + half, level, "delta")
