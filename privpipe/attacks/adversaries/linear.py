"""Linear adversaries, and the quadratic one: logistic regression, margins, Gaussian classes.

Each tries several strengths of regularisation, and iterative ones several lengths of
training, and keeps what does best on the tuning records. A fully converged adversary with weak
regularisation is weaker than an early stopped one. Erasers and filters that are blind beyond means
leave differences between classes in their covariances; the quadratic adversary reads them there.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC, LinearSVR

from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.problem import Features, Fitted, Problem
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


def train_logistic(
    problem: Problem,
    choice: tuple[float, int] | None,
    ridges: Sequence[float] = LOGISTIC_RIDGES,
    stops: Sequence[int] = LOGISTIC_STOPS,
) -> Iterator[Fitted]:
    """Multinomial logistic regression with each ridge and stop, or with one of each.

    References
    ----------
    Hamm 2017 (logistic regression with factor 1e-6, trained to convergence).
    """
    for ridge in ridges if choice is None else choice[:1]:
        # scikit-learn weighs the summed loss; the ridges here are against the mean loss, as the
        # papers'.
        model = LogisticRegression(C=1 / (ridge * len(problem.x_train)), warm_start=True)
        done = 0
        for stop in stops if choice is None else choice[1:]:
            # A warm start leads from stop to stop in one training: L-BFGS begins its memory anew
            # each time.
            model.set_params(max_iter=stop - done)
            problems.fit_quietly(model, problem)
            settings = f"ridge {ridge:g}, {stop} iterations"
            linear = freeze_linear(model.coef_.T, model.intercept_, settings, problem.n_classes)
            yield Fitted(problems.rank_by_probability(linear.decide), settings, (ridge, stop))
            if model.n_iter_[0] < stop - done:  # converged: further stops would be the same
                break
            done = stop


def train_margins(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    """Linear support vector machine (squared hinge, one against the rest) or regression."""
    for margin in MARGINS if choice is None else (choice,):
        # C weighs the summed loss: divided by the records a strength means the same at any number.
        strength = margin * 1000 / len(problem.x_train)
        if problem.n_classes is None:
            fit = LinearSVR(C=strength, epsilon=0.1, loss="squared_epsilon_insensitive", dual=False)
        else:
            fit = LinearSVC(C=strength, dual=False)
        problems.fit_quietly(fit, problem)
        slope = np.atleast_2d(fit.coef_).T
        yield freeze_linear(slope, fit.intercept_, f"C {strength:.3g}", problem.n_classes, margin)


def train_naive_bayes(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    """Gaussian naive Bayes with the smoothing that does best; classes only."""
    # One fit for all smoothings, which are added to the variances afterwards.
    plain = GaussianNB(var_smoothing=0.0).fit(problem.x_train, problem.y_train)
    for smoothing in SMOOTHINGS if choice is None else (choice,):
        model = copy(plain)
        # Inputs have variance 1, so that this is relative; scikit-learn's own smoothing is
        # relative to the largest variance, which is 0 for a constant release.
        model.var_ = plain.var_ + smoothing
        decide = problems.rank_by_probability(model.predict_joint_log_proba)
        yield Fitted(decide, f"smoothing {smoothing:g}", smoothing)


def train_products(problem: Problem, choice: tuple[int, Any] | None) -> Iterator[Fitted]:
    """Logistic regression, or ridge regression of numbers, on inputs and their products.

    Products are taken of all pairs of few columns; of many, of the directions of largest
    variance, best of `PRODUCT_DIRECTIONS`.
    """
    most = sorted({min(most, problem.x_train.shape[1]) for most in PRODUCT_DIRECTIONS})
    for n_axes in most if choice is None else choice[:1]:
        # Of single precision a step of logistic regression takes half the time.
        dtype = problem.x_train.dtype if problem.n_classes is None else np.dtype(np.float32)
        expand = _find_products(problem.x_train, n_axes, dtype)
        mapped, inner = problem.read(expand), None if choice is None else choice[1]
        candidates = (
            train_ridges(mapped, inner)
            if problem.n_classes is None
            else train_logistic(mapped, inner, PRODUCT_RIDGES, PRODUCT_STOPS)
        )
        best = problems.choose_best(mapped, candidates)
        yield best.after(expand, f"products of {n_axes} directions, ", (n_axes, best.choice))


def _find_products(x: FloatArray, n_directions: int, dtype: np.dtype[Any]) -> Features:
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
    return lambda rows: np.hstack([rows, (multiply(rows) - centre) / spread]).astype(
        dtype, copy=False
    )


SHRINKAGES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
"""Share of the common covariance in that of each class."""

WHITENING_RIDGES = (1e-6, 1e-2)
"""Added to the eigenvalues before whitening, in units of their mean."""

LEAST_VARIANCE = 1e-12
"""Of classes that do not vary at all; inputs have variance 1."""

MOST_DIRECTIONS = 400
"""Directions of largest variance that the quadratic discriminant reads; it costs their cube."""


def train_quadratic(problem: Problem, given: tuple[float | None, float] | None) -> Iterator[Fitted]:
    """Gaussian classes, each covariance shrunk towards the common one; classes only.

    Records are read in three frames. In one they are as they are, and the common covariance is
    taken as a multiple of the identity. In two they are whitened by the covariance within classes
    with a little or more of a ridge, and it is the identity. There is one eigendecomposition per
    class and frame, whatever the number of `SHRINKAGES`.

    References
    ----------
    Friedman 1989, Regularized Discriminant Analysis.
    """
    for ridge in (None, *WHITENING_RIDGES) if given is None else given[:1]:
        turn = _find_frame(problem, ridge)
        classes = _fit_gaussians(problem, turn(problem.x_train))
        shrinkage = _choose_shrinkage(problem, turn, classes) if given is None else given[1]
        frame = "as it is" if ridge is None else f"whitened with ridge {ridge:g}"
        decide = problems.rank_by_probability(_judge(turn, classes, float(shrinkage)))
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
    # Of standardised columns the mean variance within classes is below 1; 0 would end in a
    # logarithm.
    common = max(sum(float((part**2).sum()) for part in centred) / z.size, LEAST_VARIANCE)
    with np.errstate(divide="ignore"):
        priors = np.log([len(part) / len(z) for part in parts])
    each = zip(priors, means, centred, strict=True)
    return [_Gaussian(float(prior), mean, *_find_axes(z), common) for prior, mean, z in each]


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
    pairs = zip(SHRINKAGES, tables, strict=True)
    candidates = (Fitted.known(log_softmax(table, axis=1), "", one) for one, table in pairs)
    return float(problems.choose_best(problem, candidates).choice)


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
