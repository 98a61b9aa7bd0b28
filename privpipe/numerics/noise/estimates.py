"""What readers of noisy numbers may say of the records: values without bias, and their errors.

Records are a sample; a release adds noise of a known law. Means, covariances and coefficients are
corrected for it and get the standard error of both. Regression on noisy features is that of
corrected scores (Fuller 1987, Measurement Error Models, section 2.2), with a sandwich for its
error; of noisy moments the error is that of the first order.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.protocols import FloatArray

Blocks = Callable[[], Iterable[FloatArray]]
"""Reads all records again, some at a time, (n_records, n_columns)."""

Quantity = Literal["means", "covariances", "regression"]


@dataclass(frozen=True)
class Estimate:
    """A number of the population that the records come from.

    Parameters
    ----------
    name
        What it is of.
    value
        Unbiased, of the first order in the noise.
    error
        Standard error, of sample and noise.
    """

    name: str
    value: float
    error: float

    def find_limits(self, level: float) -> tuple[float, float]:
        """Interval that holds the number with this probability.

        >>> low, high = Estimate("x", 1.0, 0.5).find_limits(0.95)
        >>> round(low, 2), round(high, 2)
        (0.02, 1.98)
        """
        half = NormalDist().inv_cdf(0.5 + level / 2) * self.error
        return self.value - half, self.value + half


def _list(names: Sequence[str], values: FloatArray, variances: FloatArray) -> list[Estimate]:
    return [
        Estimate(name, float(value), math.sqrt(max(float(variance), 0.0)))
        for name, value, variance in zip(names, values, variances, strict=True)
    ]


def _sum_up(blocks: Blocks) -> tuple[int, FloatArray, FloatArray]:
    """How many records, their mean, and their covariance; about a block's mean, for the digits."""
    n, anchor, total, products = 0, None, None, None
    for block in blocks():
        anchor = block.mean(axis=0) if anchor is None else anchor
        moved = block - anchor
        n += len(block)
        total = moved.sum(axis=0) + (0.0 if total is None else total)
        products = moved.T @ moved + (0.0 if products is None else products)
    if anchor is None or total is None or products is None or n <= len(anchor) + 1:
        raise InputError(
            f"{n} records are too few to estimate anything of.",
            remedy="Use a release of more records than columns.",
            code="few-records",
        )
    shift = total / n
    return n, anchor + shift, products / n - np.outer(shift, shift)


def estimate_means(blocks: Blocks, names: Sequence[str]) -> list[Estimate]:
    """Means of columns whose noise has mean 0: its spread is in that of the records."""
    n, mean, covariance = _sum_up(blocks)
    return _list(names, mean, np.diag(covariance) / n)


def estimate_covariances(blocks: Blocks, names: Sequence[str], noise: FloatArray) -> list[Estimate]:
    """Covariances of all pairs of columns.

    Parameters
    ----------
    blocks, names
    noise : (n_columns,)
        Variances of the noise of each, which is not correlated.
    """
    n, mean, covariance = _sum_up(blocks)
    squares = np.zeros_like(covariance)
    for block in blocks():
        # The mean of squared products of deviations, pair by pair, is one product of squares.
        squares += np.square(block - mean).T @ np.square(block - mean) / n
    rows, columns = np.triu_indices(len(names))
    variances = (squares - covariance**2)[rows, columns] / n
    values = (covariance - np.diag(noise))[rows, columns] * n / (n - 1)
    pairs = [f"{names[i]}, {names[j]}" for i, j in np.transpose([rows, columns]).tolist()]
    return _list(pairs, values, variances)


LEAST_SPREAD = 4.0
"""Standard errors that the least variance of the features must be above, to divide by it."""


def estimate_regression(blocks: Blocks, names: Sequence[str], noise: FloatArray) -> list[Estimate]:
    """Coefficients of the last column on the others, last the intercept: corrected scores.

    Parameters
    ----------
    blocks, names
    noise : (n_columns,)
        Variances of the noise of each, which is not correlated.

    Raises
    ------
    InputError
        If the features hardly vary beside the noise.
    """
    n, mean, covariance = _sum_up(blocks)
    d = len(names) - 1
    inner = covariance[:d, :d] - np.diag(noise[:d])
    values, vectors = np.linalg.eigh(inner)
    # Of the variance along the least direction, roughly that of a normal variable.
    error = float(vectors[:, 0] @ covariance[:d, :d] @ vectors[:, 0]) * math.sqrt(2 / n)
    _check_spread(float(values[0]), error)
    slopes = np.linalg.solve(inner, covariance[:d, d])
    scores = np.zeros((d + 1, d + 1))
    for block in blocks():
        moved = block - mean
        residual = moved[:, d] - moved[:, :d] @ slopes
        # What the noise of the features adds to their product with the residual is taken back.
        each = np.column_stack([moved[:, :d] * residual[:, None] + noise[:d] * slopes, residual])
        scores += each.T @ each / n
    spread = np.eye(d + 1)
    spread[:d, :d] = np.linalg.inv(inner)
    # The intercept is the mean of the response less that of the features times the slopes.
    spread[d, :d] = -mean[:d] @ spread[:d, :d]
    variances = np.diag(spread @ scores @ spread.T) / n
    found = np.append(slopes, mean[d] - mean[:d] @ slopes)
    return _list([*names[:d], "intercept"], found, variances)


def _check_spread(least: float, error: float) -> None:
    if not least > LEAST_SPREAD * error:
        raise InputError(
            "The features hardly vary in some direction beside the noise: nothing is determined.",
            remedy="Use fewer features, a release with a larger epsilon, or more records.",
            code="not-determined",
        )


def estimate_moment_means(
    moments: FloatArray, deviations: FloatArray, names: Sequence[str], one: int
) -> list[Estimate]:
    """Means, of noisy sums of products in which column `one` is 1 in every record."""
    count = moments[one, one]
    places = [j for j in range(len(moments)) if j != one]
    mean = moments[one, places] / count
    spread = np.diag(moments)[places] / count - mean**2
    # The count has noise as well, by which each mean is divided.
    noise = (deviations[one, places] ** 2 + (mean * deviations[one, one]) ** 2) / count**2
    return _list(names, mean, np.maximum(spread, 0.0) / count + noise)


def estimate_moment_regression(
    moments: FloatArray, deviations: FloatArray, names: Sequence[str], one: int, response: int
) -> list[Estimate]:
    """Least squares of one response on the columns before `one` and on it, of noisy sums.

    Its sampling error is that of residuals of one variance, as fourth moments are not released.

    Raises
    ------
    InputError
        If the features hardly vary beside the noise.
    """
    count, q = moments[one, one], one
    inner = moments[: q + 1, : q + 1]
    mean = inner[one, :q] / count
    centred = inner[:q, :q] / count - np.outer(mean, mean)
    # The noise of all entries moves an eigenvalue by at most its spectral norm, 2 sqrt(q) or less.
    noise = 2 * math.sqrt(q) * float(deviations[0, min(1, q)]) / count
    _check_spread(float(np.linalg.eigvalsh(centred)[0]), noise)
    found = np.linalg.solve(inner, moments[: q + 1, response])
    contrast = np.zeros(len(moments))
    contrast[: q + 1], contrast[response] = found, -1.0
    residual = max(float(contrast @ moments @ contrast), 0.0) / count
    # Of noise N, symmetric, the covariance of N @ contrast in the rows of the features.
    squares = np.square(deviations)
    scores = squares * np.outer(contrast, contrast)
    np.fill_diagonal(scores, squares @ contrast**2)
    inverse = np.linalg.inv(inner)
    spread = inverse @ (scores[: q + 1, : q + 1] + residual * inner) @ inverse
    return _list([*names[:q], "intercept"], found, np.diag(spread))


def choose_response(response: str | None, names: Sequence[str]) -> int:
    """Place of a response among names; of a single one it need not be named."""
    if response is None and len(names) == 1:
        return 0
    if response not in names:
        raise OptionError(
            f"The response {response!r} is none of the release.",
            remedy=f"Choose one of: {', '.join(names) or 'those of [release] include'}.",
            code="estimate",
        )
    return names.index(response)
