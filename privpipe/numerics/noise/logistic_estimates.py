"""Logistic regression on noisy features: the score that noise of a known law leaves unbiased.

Noise changes a smooth function of a sum ``z @ slopes``. That is undone where the characteristic
function of the smooth one is divided by that of the noise (Stefanski 1989, Comm. Statist. Theory
Methods 18; Nakamura 1990, Biometrika 77). Of normal noise there is no such function. Of Laplace
noise and of the K-norm one there is, since these fall with a power and the logistic one falls
exponentially.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from scipy.interpolate import CubicSpline

from privpipe.errors import InputError
from privpipe.numerics.noise import estimates
from privpipe.numerics.noise.estimates import Blocks, Estimate
from privpipe.protocols import FloatArray

FARTHEST, STEP = 40.0, 0.1
"""Log odds beyond which a share is 0 or 1, and between the knots of a spline."""

KNOTS = np.arange(0, FARTHEST + STEP / 2, STEP)

FREQUENCY = 0.04
"""Between those that functions are added up of; 500 of them."""

MOST_ROUNDS, SMALL = 40, 1e-4
"""Of Newton's method; of a difference that is taken for a derivative."""


@cache
def _list_waves() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Frequencies, and their sines and cosines over the log odds."""
    frequencies = (np.arange(500) + 0.5) * FREQUENCY
    angles = np.outer(KNOTS, frequencies)
    return frequencies, np.sin(angles), np.cos(angles)


def _tabulate(slopes: FloatArray, noise: FloatArray, joint: bool) -> CubicSpline:
    """By log odds with noise, from 0: the share less a half, and what the loss has by each slope.

    The first is odd, the others are even. Refused where slopes are far beyond all that is known.
    """
    frequencies, sines, cosines = _list_waves()
    squares, n = frequencies[:, None] ** 2, len(slopes)
    with np.errstate(all="ignore"):
        if joint:
            inside = 1 + squares * (noise / (n + 1) @ slopes**2)
            divisor = inside[:, 0] ** ((n + 1) / 2)
        else:
            inside = 1 + squares * (noise * slopes**2 / 2)
            divisor = inside.prod(axis=1)
        weights = divisor * FREQUENCY / np.sinh(np.pi * frequencies)
        turn = noise * slopes * squares / inside * (weights / frequencies)[:, None]
        table = np.column_stack([sines @ weights, -cosines @ turn])
    estimates.check_determined(bool(np.isfinite(table).all()), estimates.LEVEL)
    return CubicSpline(KNOTS, table)


def _score(block: FloatArray, point: FloatArray, spline: CubicSpline) -> FloatArray:
    """Of each record, (n_records, n_features + 1), the level last."""
    odds = block[:, :-1] @ point[:-1] + point[-1]
    found = spline(np.minimum(np.abs(odds), FARTHEST))
    rest = (0.5 + np.sign(odds) * found[:, 0])[:, None] - block[:, -1:]
    return np.column_stack([block[:, :-1] * rest + found[:, 1:], rest])


def estimate_logistic(
    blocks: Blocks, names: Sequence[str], noise: FloatArray, *, joint: bool
) -> list[Estimate]:
    """Log odds of the last column, 0 or 1, by the others; last the intercept.

    Parameters
    ----------
    blocks, names
    noise : (n_features,)
        Variances of the noise of each.
    joint
        Whether it is of the K-norm law, of all features together; else Laplace, of each.

    Raises
    ------
    InputError
        If the response has one value, or the noise leaves the slopes undetermined.

    Notes
    -----
    Errors are those of the score (a sandwich). Limits are those that it does not reject along the
    line on which the other coefficients fit best; see `Estimate.find_limits`.
    """
    n, mean, covariance = estimates.sum_up(blocks)
    d = len(names) - 1
    if not 0 < mean[d] < 1:
        raise InputError("All records have one category.", remedy="Name a response that varies.")
    estimates.check_spread(covariance[:d, :d] - np.diag(noise))
    centre, freedom = np.append(mean[:d], 0.0), n - d - 1
    units = np.append(np.sqrt(np.diag(covariance)[:d]), 1.0)

    def score_all(points: FloatArray) -> Iterator[list[FloatArray]]:
        splines = [_tabulate(point[:-1], noise / units[:d] ** 2, joint) for point in points]
        for block in blocks():
            moved = (block - centre) / units
            yield [_score(moved, *each) for each in zip(points, splines, strict=True)]

    point, nearby = np.zeros(d + 1), np.vstack([np.zeros(d + 1), SMALL * np.eye(d + 1)])
    for _ in range(MOST_ROUNDS):
        sums = np.zeros((d + 2, d + 1))
        for scores in score_all(point + nearby):
            sums += [one.sum(axis=0) for one in scores]
        curvature = (sums[1:] - sums[0]).T / SMALL / n
        move = np.linalg.solve(curvature, sums[0] / n)
        point = point - move * min(1.0, 2 / float(np.linalg.norm(move)))
        if np.abs(move).max() < 1e-9:
            break
    # The loss may bend the other way where noise is all there is.
    bends = np.linalg.eigvalsh(curvature + curvature.T)[0] > 0
    estimates.check_determined(bool(bends and np.abs(move).max() < 1e-6), estimates.LEVEL)
    # In the units of the features: the intercept is where they are zero.
    back = np.diag(1 / units)
    back[d, :d] = -mean[:d] / units[:d]
    influence = back @ np.linalg.inv(curvature)
    errors = np.zeros((d + 1, d + 1))
    for (one,) in score_all(point[None]):
        errors += influence @ (one.T @ one) @ influence.T / n / freedom
    lines = np.linalg.solve(back, estimates.find_lines(errors).T).T
    lengths = SMALL / np.linalg.norm(lines, axis=1)
    moved = point + np.vstack([np.zeros(d + 1), lines * lengths[:, None]])
    lean, growth = np.zeros(d + 1), np.zeros(d + 1)
    for first, *others in score_all(moved):
        for j, other in enumerate(others):
            along = (other - first) @ influence[j] / lengths[j] - 1
            growth[j] += along @ along / n / freedom
            lean[j] += along @ (first @ influence[j]) / n / freedom
    found = [*names[:d], "intercept"], back @ point, np.diag(errors), lean, growth, 0 * lean
    return estimates.list_estimates(*found, freedom=freedom)
