"""A small network as adversary: one hidden layer, stopped where it does best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from sklearn.neural_network import MLPClassifier, MLPRegressor

from privpipe.attacks.adversaries.problem import Fitted, Problem, fit_quietly, fit_tuned
from privpipe.protocols import FloatArray

HIDDEN = 100
"""Units of the hidden layer."""

PENALTIES = (1e-4, 1.0)
"""Ridge of the weights, as scikit-learn takes it: divided by the records of a step."""

EPOCHS = (5, 20, 60)
"""Passes over the training records after which training may stop."""


def fit_network(problem: Problem) -> Fitted:
    """Rectified units, Adam; best of `PENALTIES` and `EPOCHS`.

    References
    ----------
    Kingma and Ba 2015, Adam: A Method for Stochastic Optimization.
    """
    return fit_tuned(problem, _train_networks)


def _train_networks(problem: Problem, choice: tuple[float, int] | None) -> Iterator[Fitted]:
    kind = MLPRegressor if problem.n_classes is None else MLPClassifier
    for penalty in PENALTIES if choice is None else choice[:1]:
        model = kind(
            hidden_layer_sizes=(HIDDEN,),
            alpha=penalty,
            random_state=problem.seed,
            warm_start=True,  # each stop goes on from the one before, with Adam's sums begun anew
            n_iter_no_change=max(EPOCHS),
        )
        done = 0
        for stop in EPOCHS if choice is None else choice[1:]:
            model.set_params(max_iter=stop - done)
            fit_quietly(model, problem)
            done = stop
            settings = f"penalty {penalty:g}, {stop} epochs"
            yield Fitted(_freeze(model, problem), settings, (penalty, stop))


def _freeze(model: Any, problem: Problem) -> Callable[[FloatArray], FloatArray]:
    """Its decision; a copy, so that further training leaves it alone."""
    frozen = deepcopy(model)
    decide = frozen.predict if problem.n_classes is None else frozen.predict_proba
    return lambda x: np.asarray(decide(x), np.float64)
