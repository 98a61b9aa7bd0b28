"""What a surrogate release keeps of a regression, and what its model tells of hidden variables.

A learner fits ridge regression to the surrogates; it is judged on raw records that no surrogate was
made of, beside the same regression fitted to the raw records themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privpipe.attacks.statistics.intervals import Interval
from privpipe.numerics.regression.moments import CoMoments, code_targets
from privpipe.protocols import FloatArray, Shard, ShardSchema

CompleteRecords = Callable[[Shard], tuple[FloatArray, FloatArray]]
"""Features with the bias, and responses, of the records of a shard; NaN where they are missing."""

RIDGE = 1e-6
"""Of the learner, relative to the mean square of each feature."""


@dataclass(frozen=True)
class SurrogateUtility:
    """How near the model of the surrogates is to that of the raw records.

    Parameters
    ----------
    responses, hidden
        Names.
    eta
        ``|W_m - W_s| / max(|W_m|, |W_s|)`` in Frobenius norm (Yi et al. 2014), all responses.
    rmse_masked, rmse_raw
        Of each response on held-out raw records.
    ratio
        Of the two, with limits, per response.
    explained
        Share of the variance of each hidden variable that the predicted responses explain.
    n_records
        Held-out records.
    """

    responses: tuple[str, ...]
    hidden: tuple[str, ...]
    eta: float
    rmse_masked: tuple[float, ...]
    rmse_raw: tuple[float, ...]
    ratio: tuple[Interval, ...]
    explained: tuple[Interval, ...]
    n_records: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


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
    found: FloatArray = np.linalg.solve(scaled, cross / scale[:, None]) / scale[:, None]
    return found


def summarise_pairs(shard: Shard, *, complete: CompleteRecords) -> CoMoments:
    """Co-moments of [features, responses] of records that hold both, completed."""
    features, responses = complete(shard)
    rows = np.hstack([features[:, :-1], responses])
    return CoMoments.of(rows[np.isfinite(rows).all(axis=1)])


def summarise_tests(
    shard: Shard,
    *,
    schema: ShardSchema,
    complete: CompleteRecords,
    masked: FloatArray,
    raw: FloatArray,
) -> CoMoments:
    """Co-moments of squared errors of both models, predictions, and hidden variables."""
    x, responses = complete(shard)
    hidden = code_targets(shard.confidential, schema.confidential, "zero_one")
    known = np.isfinite(np.hstack([x, responses, hidden])).all(axis=1)
    x, responses, hidden = x[known], responses[known], hidden[known]
    predicted = x @ masked
    errors = [(predicted - responses) ** 2, (x @ raw - responses) ** 2]
    return CoMoments.of(np.hstack([*errors, predicted, hidden]))


def report_utility(
    tests: CoMoments,
    masked: FloatArray,
    raw: FloatArray,
    responses: Sequence[str],
    hidden: Sequence[str],
    *,
    level: float,
) -> SurrogateUtility:
    """Figures with limits, from the co-moments of `summarise_tests`."""
    t, n = len(responses), max(2.0, tests.count)
    covariance = tests.scatter / n
    ratios = []
    for j in range(t):
        one, other = float(tests.mean[j]), float(tests.mean[t + j])
        picked = covariance[np.ix_([j, t + j], [j, t + j])]
        slopes = np.array([1 / max(one, 1e-300), -1 / max(other, 1e-300)])
        error = math.sqrt(max(0.0, float(slopes @ picked @ slopes)) / n) / 2
        middle = math.sqrt(one / max(other, 1e-300))
        ratios.append(_spread(middle, middle * error, level))
    difference = float(np.linalg.norm(masked - raw))
    return SurrogateUtility(
        tuple(responses),
        tuple(hidden),
        difference / max(float(np.linalg.norm(masked)), float(np.linalg.norm(raw))),
        tuple(float(v) for v in np.sqrt(tests.mean[:t])),
        tuple(float(v) for v in np.sqrt(tests.mean[t : 2 * t])),
        tuple(ratios),
        tuple(_explain(covariance, t, 3 * t + k, n, level) for k in range(len(hidden))),
        int(tests.count),
    )


def _explain(
    covariance: FloatArray, n_responses: int, column: int, n: float, level: float
) -> Interval:
    """Multiple R^2 of a hidden variable on the predictions, less what chance explains."""
    predicted = slice(2 * n_responses, 3 * n_responses)
    total = float(covariance[column, column])
    if total <= 0:
        return _spread(0.0, 0.0, level)
    cross = covariance[predicted, column]
    share = float(cross @ np.linalg.pinv(covariance[predicted, predicted], 1e-10) @ cross) / total
    share = max(0.0, 1 - (1 - min(1.0, share)) * (n - 1) / max(1.0, n - 1 - n_responses))
    error = 2 * math.sqrt(share) * (1 - share) / math.sqrt(n)
    return _spread(share, error, level)


def _spread(estimate: float, error: float, level: float) -> Interval:
    from scipy.stats import norm

    reach = float(norm.ppf(0.5 + level / 2)) * error
    return Interval(estimate, max(0.0, estimate - reach), estimate + reach, level, "delta")
