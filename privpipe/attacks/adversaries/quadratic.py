"""The quadratic adversary: a regularised discriminant of Gaussian classes.

Erasers and filters that are blind beyond means leave differences between classes in their
covariances; it reads them there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import linalg

from privpipe.attacks.adversaries.problem import (
    Features,
    Fitted,
    Problem,
    choose_best,
    fit_tuned,
    rank_by_probability,
)
from privpipe.protocols import FloatArray

SHRINKAGES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
"""Share of the common covariance in that of each class."""

WHITENING_RIDGES = (1e-6, 1e-2)
"""Added to the eigenvalues before whitening, in units of their mean."""

LEAST_VARIANCE = 1e-12
"""Of classes that do not vary at all; inputs have variance 1."""

MOST_DIRECTIONS = 400
"""Directions of largest variance that the quadratic discriminant reads; it costs their cube."""


def fit_quadratic(problem: Problem) -> Fitted:
    """Gaussian classes, each covariance shrunk towards the common one; classes only.

    Records are read in three frames: as they are, where the common covariance is taken as a
    multiple of the identity, and whitened by the covariance within classes with a little or
    more of a ridge, where it is the identity; there is one eigendecomposition per class and
    frame, whatever the number of `SHRINKAGES`.

    References
    ----------
    Friedman 1989, Regularized Discriminant Analysis.
    """
    return fit_tuned(problem, _train_quadratic)


def _train_quadratic(
    problem: Problem, choice: tuple[float | None, float] | None
) -> Iterator[Fitted]:
    for ridge in (None, *WHITENING_RIDGES) if choice is None else choice[:1]:
        turn = _find_frame(problem, ridge)
        classes = _fit_gaussians(problem, turn(problem.x_train))
        shrinkage = _choose_shrinkage(problem, turn, classes) if choice is None else choice[1]
        frame = "as it is" if ridge is None else f"whitened with ridge {ridge:g}"
        decide = rank_by_probability(_judge(turn, classes, float(shrinkage)))
        yield Fitted(decide, f"{frame}, shrinkage {shrinkage:g}", (ridge, shrinkage))


def _find_frame(problem: Problem, ridge: float | None) -> Features:
    """Map to directions of large variance; with a ridge, of variance 1 within classes or less.

    Directions of next to no variance, such as those of rounding, are damped by the ridge.
    """
    x = problem.x_train.astype(np.float64)
    if ridge is None and x.shape[1] <= MOST_DIRECTIONS:
        return lambda z: z.astype(np.float64)
    # Within classes: whitened by the whole covariance, classes that lie far apart would hide the
    # rest.
    for k in range(problem.n_classes or 0):
        mine = problem.y_train == k
        x[mine] -= x[mine].mean(axis=0) if mine.any() else 0.0
    values, vectors = linalg.eigh(x.T @ x / len(x))
    values, vectors = values[-MOST_DIRECTIONS:], vectors[:, -MOST_DIRECTIONS:]
    if ridge is not None:
        # All eigenvalues may be zero of a constant release; the least float keeps the root finite.
        floor = max(ridge * float(values.mean()), np.finfo(float).tiny)
        vectors = vectors / np.sqrt(np.maximum(values, 0.0) + floor)
    return lambda z: z.astype(np.float64) @ vectors


@dataclass(frozen=True, eq=False)
class _Gaussian:
    """One class in a frame.

    Parameters
    ----------
    log_prior
        Log of its share of the records; minus infinity where there is none.
    mean : (n_directions,)
    axes : (n_directions, rank), variances : (rank,)
        Eigenvectors and eigenvalues of its covariance, as many as its records span.
    common
        Mean variance within classes, over all directions.
    """

    log_prior: float
    mean: FloatArray
    axes: FloatArray
    variances: FloatArray
    common: float


def _fit_gaussians(problem: Problem, z: FloatArray) -> list[_Gaussian]:
    parts = [z[problem.y_train == k] for k in range(problem.n_classes or 0)]
    means = [part.mean(axis=0) if len(part) else np.zeros(z.shape[1]) for part in parts]
    centred = [part - mean for part, mean in zip(parts, means, strict=True)]
    scatter = sum(float((part**2).sum()) for part in centred)
    # Of standardised columns the mean variance within classes is below 1; 0 would end in a
    # logarithm.
    common = max(scatter / z.size, LEAST_VARIANCE)
    with np.errstate(divide="ignore"):
        priors = np.log([len(part) / len(z) for part in parts])
    return [
        _Gaussian(float(prior), mean, *_find_axes(part), common)
        for prior, mean, part in zip(priors, means, centred, strict=True)
    ]


def _find_axes(centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvectors and eigenvalues of the covariance of (n_records, n_directions) deviations."""
    n, width = centred.shape
    if n <= width:  # the covariance itself would have more directions than records
        _, sizes, axes = linalg.svd(centred, full_matrices=False)
        return axes.T, sizes**2 / max(n, 1)
    values, axes = linalg.eigh(centred.T @ centred / n)
    return axes, np.maximum(values, 0.0)


def _judge(turn: Features, classes: Sequence[_Gaussian], shrinkage: float) -> Features:
    return lambda x: _measure_likelihoods(turn(x), classes, (shrinkage,))[0]


def _choose_shrinkage(problem: Problem, turn: Features, classes: Sequence[_Gaussian]) -> float:
    """The best in one frame; all share the projections of the tuning records."""
    tables = _measure_likelihoods(turn(problem.x_tune), classes, SHRINKAGES)
    candidates = (
        Fitted(rank_by_probability(partial(_look_up, table)), "", shrinkage)
        for shrinkage, table in zip(SHRINKAGES, tables, strict=True)
    )
    return float(choose_best(problem, candidates).choice)


def _look_up(table: FloatArray, _: FloatArray) -> FloatArray:
    return table


def _measure_likelihoods(
    z: FloatArray, classes: Sequence[_Gaussian], shrinkages: Sequence[float]
) -> FloatArray:
    """Joint log-likelihood of record and class, (n_shrinkages, n_records, n_classes)."""
    found = np.empty((len(shrinkages), len(z), len(classes)))
    for k, one in enumerate(classes):
        deviation = z - one.mean
        squares = (deviation @ one.axes) ** 2
        # Outside the span of its records a class has its share of the common variance alone.
        rest = np.maximum((deviation**2).sum(axis=1) - squares.sum(axis=1), 0.0)
        n_rest = z.shape[1] - len(one.variances)
        for i, share in enumerate(shrinkages):
            shrunk = (1 - share) * one.variances + share * one.common
            distance = squares @ (1 / shrunk) + rest / (share * one.common)
            # The determinant of the shrunk covariance: the share of each direction, inside the span
            # and out.
            volume = np.log(shrunk).sum() + n_rest * np.log(share * one.common)
            found[i, :, k] = one.log_prior - (distance + volume) / 2
    # A class that trained on no record stays finite, and behind all others.
    return np.maximum(found, -1e300)
