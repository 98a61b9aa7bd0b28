"""Linear adversaries: logistic regression, support vectors, naive Bayes.

Each tries several strengths of regularisation, and iterative ones several lengths of
training, and keeps what does best on the tuning records: a fully converged adversary with
weak regularisation is weaker than an early stopped one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy

import numpy as np
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC, LinearSVR

from privpipe.attacks.adversaries.problem import Fitted, Problem, fit_quietly, fit_tuned
from privpipe.attacks.adversaries.ridges import freeze_linear
from privpipe.protocols import FloatArray

LOGISTIC_RIDGES = (1.0, 1e-2, 1e-4, 1e-6)
"""Weight of half the squared norm against the mean loss (the papers use 1e-6)."""

LOGISTIC_STOPS = (3, 10, 30, 100, 300)
"""Iterations after which training may stop."""

MARGINS = (1.0, 1e-1, 1e-2, 1e-3)

SMOOTHINGS = (1e-9, 1e-3, 1e-1)


def fit_logistic(problem: Problem) -> Fitted:
    """Multinomial logistic regression, best over `LOGISTIC_RIDGES` and `LOGISTIC_STOPS`.

    References
    ----------
    Hamm 2017 (logistic regression with factor 1e-6, trained to convergence).
    """
    return fit_tuned(problem, train_logistic)


def train_logistic(
    problem: Problem,
    choice: tuple[float, int] | None,
    ridges: Sequence[float] = LOGISTIC_RIDGES,
    stops: Sequence[int] = LOGISTIC_STOPS,
) -> Iterator[Fitted]:
    """Multinomial logistic regression with each ridge and stop, or with one of each."""
    for ridge in ridges if choice is None else choice[:1]:
        model = LogisticRegression(C=1 / (ridge * len(problem.x_train)), warm_start=True)
        done = 0
        for stop in stops if choice is None else choice[1:]:
            model.set_params(max_iter=stop - done)
            fit_quietly(model, problem)
            settings = f"ridge {ridge:g}, {stop} iterations"
            linear = freeze_linear(model.coef_.T, model.intercept_, settings, problem.n_classes)
            yield Fitted(rank_by_probability(linear.decide), settings, (ridge, stop))
            if model.n_iter_[0] < stop - done:
                break
            done = stop


def fit_linear_svm(problem: Problem) -> Fitted:
    """Linear support vector machine (squared hinge, one against the rest) or regression."""
    return fit_tuned(problem, _train_margins)


def _train_margins(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    for margin in MARGINS if choice is None else (choice,):
        strength = margin * 1000 / len(problem.x_train)
        if problem.n_classes is None:
            model = LinearSVR(
                C=strength, epsilon=0.1, loss="squared_epsilon_insensitive", dual=False
            )
        else:
            model = LinearSVC(C=strength, dual=False)
        fit_quietly(model, problem)
        slope = np.atleast_2d(model.coef_).T
        yield freeze_linear(slope, model.intercept_, f"C {strength:.3g}", problem.n_classes, margin)


def fit_naive_bayes(problem: Problem) -> Fitted:
    """Gaussian naive Bayes with the smoothing that does best; classes only."""
    return fit_tuned(problem, _train_naive_bayes)


def _train_naive_bayes(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    plain = GaussianNB(var_smoothing=0.0).fit(problem.x_train, problem.y_train)
    for smoothing in SMOOTHINGS if choice is None else (choice,):
        model = copy(plain)
        # Inputs have variance 1, so that this is relative; scikit-learn's own smoothing is
        # relative to the largest variance, which is 0 for a constant release.
        model.var_ = plain.var_ + smoothing
        decide = rank_by_probability(model.predict_joint_log_proba)
        yield Fitted(decide, f"smoothing {smoothing:g}", smoothing)


def rank_by_probability(decide: Callable[[FloatArray], FloatArray]) -> Callable[..., FloatArray]:
    """Log-probabilities of classes: what a record adds to all classes alike ranks no record."""
    return lambda x: np.asarray(special.log_softmax(decide(x), axis=1))
