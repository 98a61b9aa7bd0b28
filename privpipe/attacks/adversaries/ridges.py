"""Ridge regression of several strengths, on the inputs or on features of a kernel.

Apart from the other linear adversaries because it needs no scikit-learn. That takes longer to load
than linkage and reconstruction of a small release take together.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import scipy
from scipy import linalg

from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.problem import Features, Fitted, Problem
from privpipe.protocols import FloatArray

RIDGES = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Ridge per record, in units of the mean eigenvalue of the inputs' second moment."""

WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Kernel exponents, in units of one over the median squared distance."""

LANDMARKS = 350

LEAST_WIDTH = 1e-6
"""Of a kernel, in units of the mean squared distance."""

KERNEL_ROWS = 4096
"""Records whose distances are held in float64 at a time."""

JITTERS = (1e-10, 1e-7, 1e-4, 1e-1)
"""Added to the landmarks' kernel, whose diagonal is 1. Equal landmarks leave it singular. Those of
classes that lie far apart for their width leave it indefinite by rounding. The least that helps."""


def fit_least_squares(problem: Problem) -> Fitted:
    """Ridge regression on numbers or on indicators of the classes, best of `RIDGES`.

    Stopping a descent early filters the same spectrum as a ridge does, so the ridges serve for
    both.
    """
    return problems.fit_tuned(problem, train_ridges)


def train_ridges(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    """Ridge regression of the problem's targets on its inputs, for each of `RIDGES` or for one."""
    y = problem.y_train
    y = y[:, None] if problem.n_classes is None else problems.one_hot(y, problem.n_classes)
    ridges = RIDGES if choice is None else (choice,)
    for ridge, slope, offset in solve_ridges(problem.x_train, y, ridges):
        yield freeze_linear(slope, offset, f"ridge {ridge:g}", problem.n_classes, ridge)


def solve_ridges(
    x: FloatArray, y: FloatArray, ridges: Sequence[float] = RIDGES
) -> Iterator[tuple[float, FloatArray, FloatArray]]:
    """Yield each ridge with its slope and offset, from one eigendecomposition.

    Parameters
    ----------
    x : (n_records, n_features)
        Inputs; products keep their dtype.
    y : (n_records, n_outputs)
        What to predict.
    ridges
        See `RIDGES`.

    Yields
    ------
    ridge, slope : (n_features, n_outputs), offset : (n_outputs,)
        So that ``x @ slope + offset`` predicts `y`.
    """
    centre, middle = x.mean(axis=0, dtype=np.float64), y.mean(axis=0)
    z, t = x - centre.astype(x.dtype), (y - middle).astype(x.dtype)
    # Of more features than records the smaller of both matrices of products has the same spectrum.
    wide = z.shape[1] > len(z)
    values, vectors = linalg.eigh((z @ z.T if wide else z.T @ z).astype(np.float64) / len(z))
    size = max(float(values.sum()) / z.shape[1], np.finfo(float).tiny)
    turned = vectors.T @ (t if wide else z.T @ t) / len(z)
    for ridge in ridges:
        # Eigenvalues below zero are rounding: with the least ridge they would turn a direction.
        slope = vectors @ (turned / (np.maximum(values, 0.0) + ridge * size)[:, None])
        slope = z.T @ slope if wide else slope
        yield ridge, slope, middle - centre @ slope


def choose_ridge(
    x: FloatArray, y: FloatArray, x_tune: FloatArray, y_tune: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Mean squared error on tuning records, slope and offset, of each output by its best ridge.

    One ridge for all would shrink an exact copy that is among outputs of noise.
    """
    least, slope, offset = np.full(y.shape[1], np.inf), np.empty((x.shape[1], y.shape[1])), y[0]
    for _, one, shift in solve_ridges(x, y):
        error = np.mean((y_tune - x_tune @ one - shift) ** 2, axis=0)
        slope, offset = (np.where(error < least, *w) for w in ((one, slope), (shift, offset)))
        least = np.minimum(error, least)
    return float(least.mean()), slope, offset


def freeze_linear(
    slope: FloatArray, offset: FloatArray, settings: str, k: int | None, choice: float | None = None
) -> Fitted:
    """A linear decision; a copy, so that further training leaves it alone."""
    coefficients, offsets = slope.copy(), np.atleast_1d(offset).copy()

    def decide(x: FloatArray) -> FloatArray:
        decision = x @ coefficients.astype(x.dtype) + offsets
        if k is None:
            return np.asarray(decision[:, 0])
        if decision.shape[1] == 1:  # two classes, one margin
            decision = np.column_stack([np.zeros(len(decision)), decision[:, 0]])
        return np.asarray(decision)

    return Fitted(decide, settings, choice)


def fit_rbf(problem: Problem) -> Fitted:
    """Ridge regression on Nystroem features of a Gaussian kernel, best width and ridge.

    References
    ----------
    Williams and Seeger 2001, Using the Nystroem Method to Speed Up Kernel Machines.
    """
    return problems.fit_tuned(problem, _train_kernels)


def _train_kernels(problem: Problem, choice: tuple[float, float] | None) -> Iterator[Fitted]:
    # The scale of distances is the data's; widths are tried around it.
    unit = measure_width(problem.x_train, problem.seed)
    random = np.random.default_rng(problem.seed)
    n_train = len(problem.x_train)
    landmarks = problem.x_train[random.choice(n_train, min(LANDMARKS, n_train), replace=False)]
    for width in WIDTHS if choice is None else choice[:1]:
        features = find_features(landmarks, width * unit)
        seen = problem.read(features)
        best = problems.choose_best(seen, train_ridges(seen, None if choice is None else choice[1]))
        yield best.after(features, f"width {width:g}, ", (width, best.choice))


def find_features(landmarks: FloatArray, exponent: float) -> Features:
    """Features whose inner products are the kernel, as far as landmarks span it.

    Any root of the landmarks' kernel will do, for a ridge does not see how it is turned. The
    triangular one costs a tenth of the symmetric one.
    """
    root = _find_root(measure_kernel(landmarks, landmarks.astype(np.float64), exponent))

    def find(x: FloatArray) -> FloatArray:
        kernel = measure_kernel(landmarks, x, exponent)
        # Of landmarks L and root R with R R' = K(L, L), R^-1 K(L, x) has the kernel as inner
        # products.
        return np.asarray(linalg.solve_triangular(root.astype(kernel.dtype), kernel, lower=True).T)

    return find


def _find_root(kernel: FloatArray) -> FloatArray:
    """Triangular root of the landmarks' kernel."""
    for jitter in JITTERS[:-1]:
        with suppress(linalg.LinAlgError):
            return np.asarray(linalg.cholesky(kernel + jitter * np.eye(len(kernel)), lower=True))
    return np.asarray(linalg.cholesky(kernel + JITTERS[-1] * np.eye(len(kernel)), lower=True))


def measure_kernel(x: FloatArray, y: FloatArray, exponent: float) -> FloatArray:
    """Gaussian kernel ``exp(-exponent * |x_i - y_j|**2)``.

    Parameters
    ----------
    x, y : (n_x, n_coordinates), (n_y, n_coordinates)
    exponent
        In units of one over a squared distance.

    Returns
    -------
    kernel : (n_x, n_y)
        In the dtype of `y`; distances are of float64, block by block, for differences of squares
        lose digits.
    """
    # Features of single precision stay so: they are the largest array of an attack.
    kernel = np.empty((len(x), len(y)), y.dtype)
    left = x.astype(np.float64)
    squares = np.einsum("ij,ij->i", left, left)[:, None]
    for start in range(0, len(y), KERNEL_ROWS):
        right = y[start : start + KERNEL_ROWS].astype(np.float64)
        block = squares - 2 * left @ right.T + np.einsum("ij,ij->i", right, right)
        kernel[:, start : start + KERNEL_ROWS] = np.exp(-exponent * np.maximum(block, 0))
    return kernel


def measure_width(x: FloatArray, seed: int) -> float:
    """One over the median squared distance of a sample: the unit of kernel exponents."""
    some = np.random.default_rng(seed).choice(len(x), min(1000, len(x)), replace=False)
    apart = scipy.spatial.distance.pdist(x[some], "sqeuclidean")
    # Most records of one class may lie nearer than distances are known by.
    distance = max(float(np.median(apart)), LEAST_WIDTH * float(apart.mean()))
    return 1 / distance if distance > 0 else 1.0
