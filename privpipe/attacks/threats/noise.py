"""Noise of equal utility: what plain Laplace noise would hide at the same loss of utility."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privpipe.attacks.adversaries.problem import Problem, measure_tuning
from privpipe.attacks.adversaries.ridges import fit_least_squares
from privpipe.attacks.statistics.splits import draw_split
from privpipe.errors import InputError, OptionError
from privpipe.protocols import BoolArray, Column, FloatArray

_SCALES = (1e-3, 1e3)
_STEPS = 24


def measure_utility_cost(raw: FloatArray, released: FloatArray, predictor: FloatArray) -> float:
    """Mean over records of the squared change of the desired predictions.

    Parameters
    ----------
    raw, released : (n_records, n_features)
        Records before and after, in the same columns.
    predictor : (n_features, n_desired)
        Slope of the desired predictions.

    Returns
    -------
    float
        In squared units of the desired prediction; Xu et al. 2017, e_utility.
    """
    change = (np.asarray(released, np.float64) - raw) @ predictor
    return float(np.mean((change**2).sum(axis=1)))


def draw_noise_at_budget(
    raw: FloatArray, predictor: FloatArray, budget: float, *, seed: int = 0
) -> FloatArray:
    """Add Laplace noise that costs `budget` of utility in expectation.

    Every feature gets independent Laplace noise of mean 0 and the same scale
    ``sqrt(budget / (2 |A_d|_F^2))``, so that the expected squared change of the desired
    predictions is `budget`.

    Parameters
    ----------
    raw : (n_records, n_features)
        Records.
    predictor : (n_features, n_desired)
        Slope A_d of the desired predictions.
    budget
        Expected squared change, in squared units of the desired prediction.
    seed
        Seed of the noise. This noise is for comparison and protects nobody: it comes from a
        generator that is not cryptographic.

    Raises
    ------
    OptionError
        If `budget` is negative or not finite.
    InputError
        If the predictor is zero, so that no noise costs any utility.

    References
    ----------
    Xu et al. 2017, Figure 7 (comparison with the Laplace mechanism).

    Examples
    --------
    >>> x = np.zeros((20_000, 2))
    >>> noisy = draw_noise_at_budget(x, np.array([[3.0], [4.0]]), budget=0.5)
    >>> abs(measure_utility_cost(x, noisy, np.array([[3.0], [4.0]])) - 0.5) < 0.05
    True
    """
    if not (np.isfinite(budget) and budget >= 0):
        raise OptionError(f"budget is {budget}.", remedy="Use a finite number, 0 or more.")
    size = float((predictor**2).sum())
    if size == 0:
        raise InputError(
            "The desired predictor is zero: noise of any size keeps its utility.",
            remedy="Fit a predictor that uses the features.",
        )
    scale = float(np.sqrt(budget / (2 * size)))
    return raw + np.random.default_rng(seed).laplace(0.0, scale, raw.shape)


def draw_noise_at_score(
    raw: FloatArray,
    desired: FloatArray,
    score: float,
    *,
    n_classes: int | None,
    max_records: int = 5_000,
    seed: int = 0,
) -> FloatArray:
    """Add Laplace noise so large that the desired variable is predicted `score` well.

    For releases whose utility is no distance to the raw records, such as filters. The scale,
    in units of each column's standard deviation, is found by bisection with the same noise
    at every step; a score that no scale reaches gives the nearest end.

    Parameters
    ----------
    raw : (n_records, n_features)
        Records.
    desired : (n_records,)
        Codes of the desired classes, or numbers.
    score
        Share of hits (classes) or R squared (numbers) of least squares on held-out records.
    n_classes
        Number of classes; None for numbers.
    max_records
        Records the search uses.
    seed
        Seed of noise, sample and split.

    Returns
    -------
    noisy : (n_records, n_features)
        All records with noise of the scale found.
    """
    random = np.random.default_rng(seed)
    noise = random.laplace(0.0, 1.0, raw.shape) * raw.std(axis=0)
    rows = np.sort(random.permutation(len(raw))[:max_records])
    low, high = np.log(_SCALES[0]), np.log(_SCALES[1])
    for _ in range(_STEPS):
        middle = (low + high) / 2
        reached = _score(raw[rows] + np.exp(middle) * noise[rows], desired[rows], n_classes, seed)
        low, high = (middle, high) if reached > score else (low, middle)
    return np.asarray(raw + np.exp((low + high) / 2) * noise)


def make_equal_noise(
    raw: FloatArray,
    released: FloatArray,
    desired: FloatArray,
    columns: Sequence[Column],
    *,
    rows: BoolArray,
    seed: int = 0,
) -> FloatArray | None:
    """The records with Laplace noise under which the first wanted answer is read as well.

    Parameters
    ----------
    raw, released : (n_records, any)
        Records before and after.
    desired : (n_records, n_desired)
        True wanted answers; NaN where missing.
    columns
        Their kinds.
    rows : (n_records,)
        Records that the release holds; the others say nothing of its utility.

    Returns
    -------
    noisy : (n_records, n_features) or None
        None where nothing is wanted, or the answer does not vary.
    """
    if not columns:
        return None
    truth = desired[:, 0]
    known = np.flatnonzero(~np.isnan(truth) & rows)[:5_000]
    if len(known) < 40 or np.ptp(truth[known]) == 0:
        return None
    n_classes = columns[0].n_categories
    kept = _score(np.asarray(released[known], np.float64), truth[known], n_classes, seed)
    x = np.asarray(raw, np.float64)
    noise = draw_noise_at_score(x[known], truth[known], kept, n_classes=n_classes, seed=seed)
    spread = x[known].std(axis=0)
    varies = spread > 0
    if not varies.any():
        return None
    # The scale that was found, in units of each column's deviation, for all records.
    ratio = (noise - x[known])[:, varies].std(axis=0) / spread[varies]
    scale = float(np.median(ratio)) / np.sqrt(2)
    drawn = np.random.default_rng(seed + 1).laplace(0.0, 1.0, x.shape)
    return np.asarray(x + scale * spread * drawn)


def _score(x: FloatArray, y: FloatArray, n_classes: int | None, seed: int) -> float:
    spread = x.std(axis=0)
    z = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    target = y.astype(np.float64) if n_classes else (y - y.mean()) / y.std()
    codes = target.astype(np.int64) if n_classes else None
    split = draw_split(np.arange(len(z)), classes=codes, seed=seed)
    tune = (z[split.tune], target[split.tune])
    problem = Problem(z[split.train], target[split.train], *tune, n_classes, seed)
    decision = fit_least_squares(problem).decide(z[split.test])
    if n_classes:
        return float(np.mean(np.argmax(decision, axis=1) == target[split.test]))
    test = Problem(z, target, z[split.test], target[split.test], None, seed)
    return measure_tuning(test, decision)
