"""The kernel adversary: radial basis functions on landmarks, weighed by ridge regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from scipy import linalg
from scipy.spatial.distance import pdist
from sklearn.metrics.pairwise import rbf_kernel

from privpipe.attacks.adversaries.linear_adversaries import train_ridges
from privpipe.attacks.adversaries.problem import (
    Fitted,
    Problem,
    choose_best,
    fit_tuned,
)
from privpipe.protocols import FloatArray

__all__ = ["LANDMARKS", "WIDTHS", "fit_rbf", "measure_width"]

WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Kernel exponents, in units of one over the median squared distance."""

LANDMARKS = 500

Features = Callable[[FloatArray], FloatArray]


JITTER = 1e-10
"""Added to the landmarks' own kernel, whose diagonal is 1: equal landmarks leave it singular."""


def fit_rbf(problem: Problem) -> Fitted:
    """Ridge regression on Nystroem features of a Gaussian kernel, best width and ridge.

    References
    ----------
    Williams and Seeger 2001, Using the Nystroem Method to Speed Up Kernel Machines.
    """
    return fit_tuned(problem, _train_kernels)


def _train_kernels(problem: Problem, choice: tuple[float, float] | None) -> Iterator[Fitted]:
    unit = measure_width(problem.x_train, problem.seed)
    random = np.random.default_rng(problem.seed)
    n_train = len(problem.x_train)
    landmarks = problem.x_train[random.choice(n_train, min(LANDMARKS, n_train), replace=False)]
    for width in WIDTHS if choice is None else choice[:1]:
        find = _find_features(landmarks, width * unit)
        mapped = replace(problem, x_train=find(problem.x_train), x_tune=find(problem.x_tune))
        ridge = choose_best(mapped, train_ridges(mapped, None if choice is None else choice[1]))
        settings = f"width {width:g}, {ridge.settings}"
        yield Fitted(_compose(find, ridge), settings, (width, ridge.choice))


def _find_features(landmarks: FloatArray, exponent: float) -> Features:
    """Features whose inner products are the kernel, as far as landmarks span it.

    Any root of the landmarks' kernel will do, for a ridge does not see how it is turned: the
    triangular one costs a tenth of the symmetric one.
    """
    own = rbf_kernel(landmarks, gamma=exponent).astype(np.float64)
    own.flat[:: len(own) + 1] += JITTER
    root = linalg.cholesky(own, lower=True)

    def find(x: FloatArray) -> FloatArray:
        kernel = rbf_kernel(landmarks, x, gamma=exponent)
        features = linalg.solve_triangular(root.astype(kernel.dtype), kernel, lower=True)
        return np.asarray(features.T)

    return find


def measure_width(x: FloatArray, seed: int) -> float:
    """One over the median squared distance of a sample: the unit of kernel exponents."""
    random = np.random.default_rng(seed)
    some = random.choice(len(x), min(1000, len(x)), replace=False)
    distance = float(np.median(pdist(x[some], "sqeuclidean")))
    return 1 / distance if distance > 0 else 1.0


def _compose(find: Features, ridge: Fitted) -> Features:
    return lambda x: ridge.decide(find(x))
