"""The kernel adversary: radial basis functions on landmarks, weighed by ridge regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.kernel_approximation import Nystroem

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


def fit_rbf(problem: Problem) -> Fitted:
    """Ridge regression on Nystroem features of a Gaussian kernel, best width and ridge.

    References
    ----------
    Williams and Seeger 2001, Using the Nystroem Method to Speed Up Kernel Machines.
    """
    return fit_tuned(problem, _train_kernels)


def _train_kernels(problem: Problem, choice: tuple[float, float] | None) -> Iterator[Fitted]:
    unit = measure_width(problem.x_train, problem.seed)
    for width in WIDTHS if choice is None else choice[:1]:
        features = Nystroem(
            gamma=width * unit,
            n_components=min(LANDMARKS, len(problem.x_train)),
            random_state=problem.seed,
        ).fit(problem.x_train)
        mapped = replace(
            problem,
            x_train=features.transform(problem.x_train),
            x_tune=features.transform(problem.x_tune),
        )
        ridge = choose_best(mapped, train_ridges(mapped, None if choice is None else choice[1]))
        settings = f"width {width:g}, {ridge.settings}"
        yield Fitted(_compose(features, ridge), settings, (width, ridge.choice))


def measure_width(x: FloatArray, seed: int) -> float:
    """One over the median squared distance of a sample: the unit of kernel exponents."""
    random = np.random.default_rng(seed)
    some = random.choice(len(x), min(1000, len(x)), replace=False)
    distance = float(np.median(pdist(x[some], "sqeuclidean")))
    return 1 / distance if distance > 0 else 1.0


def _compose(features: Nystroem, ridge: Fitted) -> Callable[[FloatArray], FloatArray]:
    return lambda x: ridge.decide(features.transform(x))
