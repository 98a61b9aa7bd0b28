"""Noise of equal utility: what plain Laplace noise would hide at the same loss of utility.

For releases whose utility is no distance to the raw records, such as filters.
"""

from collections.abc import Sequence

import numpy as np

from privpipe.attacks.adversaries.problem import Problem, measure_tuning
from privpipe.attacks.adversaries.ridges import fit_least_squares
from privpipe.attacks.statistics.splits import draw_split
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray

SCALES = (1e-3, 1e3)
"""Of the noise, in standard deviations of each column: a score beyond both gets the nearest."""

STEPS = 24
"""Bisections, of logarithms: the scale is found to a part in a million."""

MOST_RECORDS = 5_000
"""Records by which the scale is found."""


def make_equal_noise(
    raw: FloatArray,
    released: FloatArray,
    desired: FloatArray,
    columns: Sequence[Column],
    *,
    rows: BoolArray,
    seed: int = 0,
) -> FloatArray | None:
    """The records with Laplace noise under which the first desired variable is predicted as well.

    Parameters
    ----------
    raw, released : (n_records, any)
        Records before and after.
    desired : (n_records, n_desired)
        True desired variables; NaN where missing.
    columns
        Their kinds.
    rows : (n_records,)
        Records that the release holds; the others say nothing of its utility.

    Returns
    -------
    noisy : (n_records, n_features) or None
        None where there is no desired variable, or it does not vary.
    """
    if not columns:
        return None
    truth = desired[:, 0]
    known = np.flatnonzero(~np.isnan(truth) & rows)[:MOST_RECORDS]
    if len(known) < 40 or np.ptp(truth[known]) == 0:
        return None
    x, y, n_classes = np.asarray(raw, np.float64), truth[known], columns[0].n_categories
    spread = x[known].std(axis=0)
    if not spread.any():
        return None
    score = score_least_squares(np.asarray(released[known], np.float64), y, n_classes, seed)
    # The same noise at every step, so that the score falls with its scale alone.
    noise = np.random.default_rng(seed).laplace(0.0, 1.0, (len(known), x.shape[1])) * spread
    low, high = np.log(SCALES)
    for _ in range(STEPS):
        middle = (low + high) / 2
        better = score_least_squares(x[known] + np.exp(middle) * noise, y, n_classes, seed) > score
        low, high = (middle, high) if better else (low, middle)
    # Other noise than that which found the scale, which was fitted to labels.
    drawn = np.random.default_rng(seed + 1).laplace(0.0, 1.0, x.shape)
    return np.asarray(x + np.exp((low + high) / 2) * spread * drawn)


def score_least_squares(
    x: FloatArray, y: FloatArray, n_classes: int | None, seed: int, groups: IntArray | None = None
) -> float:
    """Share of hits, or R squared, of least squares on held-out records; whole groups are."""
    spread = x.std(axis=0)
    z = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    target = y.astype(np.float64) if n_classes else (y - y.mean()) / y.std()
    codes = target.astype(np.int64) if n_classes else None
    split = draw_split(np.arange(len(z)), classes=codes, groups=groups, seed=seed)
    tune = (z[split.tune], target[split.tune])
    problem = Problem(z[split.train], target[split.train], *tune, n_classes, seed)
    decision = fit_least_squares(problem).decide(z[split.test])
    if n_classes:
        return float(np.mean(np.argmax(decision, axis=1) == target[split.test]))
    test = Problem(z, target, z[split.test], target[split.test], None, seed)
    return measure_tuning(test, decision)


def score_model(weights: FloatArray, x: FloatArray, y: FloatArray, n_classes: int | None) -> float:
    """Share of hits, or R squared, of a linear model whose last row is the intercept.

    Parameters
    ----------
    weights : (n_features + 1, n_responses)
        Of the first responses: an indicator per class, or of two classes that of the second.
    x : (n_records, n_features)
    y : (n_records,)
    """
    found = x @ weights[:-1] + weights[-1]
    if not n_classes:
        return float(1 - np.mean((found[:, 0] - y) ** 2) / np.var(y))
    codes = found[:, 0] > 0.5 if n_classes == 2 else np.argmax(found[:, :n_classes], axis=1)
    return float(np.mean(codes == y))
