"""Linear adversaries: logistic regression, of products too, support vectors, naive Bayes.

Each tries several strengths of regularisation, and iterative ones several lengths of
training, and keeps what does best on the tuning records: a fully converged adversary with
weak regularisation is weaker than an early stopped one.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC, LinearSVR

from privpipe.attacks.adversaries.problem import (
    Features,
    Fitted,
    Problem,
    choose_best,
    fit_quietly,
    fit_tuned,
    rank_by_probability,
)
from privpipe.attacks.adversaries.ridges import freeze_linear, train_ridges
from privpipe.protocols import FloatArray

LOGISTIC_RIDGES = (1.0, 1e-2, 1e-4, 1e-6)
"""Weight of half the squared norm against the mean loss (the papers use 1e-6)."""

LOGISTIC_STOPS = (3, 10, 30, 100, 300)
"""Iterations after which training may stop."""

MARGINS = (1.0, 1e-1, 1e-2, 1e-3)

SMOOTHINGS = (1e-9, 1e-3, 1e-1)

PRODUCT_DIRECTIONS = (12, 45)
"""Columns, or where there are more directions of largest variance, whose products are taken."""

PRODUCT_RIDGES = (1.0, 1e-1, 1e-2, 1e-4)
PRODUCT_STOPS = (10, 40, 150)


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
        # scikit-learn weighs the summed loss; the ridges here are against the mean loss, as the
        # papers'.
        model = LogisticRegression(C=1 / (ridge * len(problem.x_train)), warm_start=True)
        done = 0
        for stop in stops if choice is None else choice[1:]:
            # A warm start leads from stop to stop in one training: L-BFGS begins its memory anew
            # each time.
            model.set_params(max_iter=stop - done)
            fit_quietly(model, problem)
            settings = f"ridge {ridge:g}, {stop} iterations"
            linear = freeze_linear(model.coef_.T, model.intercept_, settings, problem.n_classes)
            yield Fitted(rank_by_probability(linear.decide), settings, (ridge, stop))
            if model.n_iter_[0] < stop - done:  # converged: further stops would be the same
                break
            done = stop


def fit_linear_svm(problem: Problem) -> Fitted:
    """Linear support vector machine (squared hinge, one against the rest) or regression."""
    return fit_tuned(problem, _train_margins)


def _train_margins(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    for margin in MARGINS if choice is None else (choice,):
        # C weighs the summed loss: divided by the records a strength means the same at any number.
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
    # One fit for all smoothings, which are added to the variances afterwards.
    plain = GaussianNB(var_smoothing=0.0).fit(problem.x_train, problem.y_train)
    for smoothing in SMOOTHINGS if choice is None else (choice,):
        model = copy(plain)
        # Inputs have variance 1, so that this is relative; scikit-learn's own smoothing is
        # relative to the largest variance, which is 0 for a constant release.
        model.var_ = plain.var_ + smoothing
        decide = rank_by_probability(model.predict_joint_log_proba)
        yield Fitted(decide, f"smoothing {smoothing:g}", smoothing)


def fit_polynomial(problem: Problem) -> Fitted:
    """Logistic regression, or ridge regression of numbers, on inputs and their products.

    Products are taken of all pairs of few columns; of many, of the directions of largest
    variance, best of `PRODUCT_DIRECTIONS`.
    """
    return fit_tuned(problem, _train_products)


def _train_products(problem: Problem, choice: tuple[int, Any] | None) -> Iterator[Fitted]:
    width = problem.x_train.shape[1]
    most = sorted({min(most, width) for most in PRODUCT_DIRECTIONS})
    for n_directions in most if choice is None else choice[:1]:
        expand = _find_products(problem.x_train, n_directions)
        mapped, inner = problem.read(expand), None if choice is None else choice[1]
        candidates = (
            train_ridges(mapped, inner)
            if problem.n_classes is None
            else train_logistic(mapped, inner, PRODUCT_RIDGES, PRODUCT_STOPS)
        )
        best = choose_best(mapped, candidates)
        yield best.after(
            expand, f"products of {n_directions} directions, ", (n_directions, best.choice)
        )


def _find_products(x: FloatArray, n_directions: int) -> Features:
    """All columns, then the products of pairs of columns or directions, of variance 1."""
    turn = np.eye(x.shape[1])
    if n_directions < x.shape[1]:
        # Few directions of largest variance: products of all columns would be their square in
        # number.
        values, vectors = linalg.eigh((x.T @ x).astype(np.float64) / len(x))
        floor = max(1e-9 * float(values[-1]), np.finfo(float).tiny)
        turn = (vectors / np.sqrt(np.maximum(values, floor)))[:, -n_directions:]
    one, other = np.triu_indices(n_directions)

    def multiply(rows: FloatArray) -> FloatArray:
        z = rows @ turn.astype(rows.dtype)
        return z[:, one] * z[:, other]

    products = multiply(x)
    # Of variance 1, as the columns are: else the ridge would weigh products otherwise.
    centre, spread = products.mean(axis=0), products.std(axis=0)
    spread[spread <= 1e-9] = 1.0  # squares of indicators that are the same in every record
    return lambda rows: np.hstack([rows, (multiply(rows) - centre) / spread])
