"""Erasers of others, written from their papers: what `bench_peers` compares the methods with.

Each is a function of standardised training records, target and confidential classes and a seed; it
gives back a function of records. The iterated ones go on while ``seconds`` of processor time are
left; without, they take the steps of their papers. None is a method of the package, and none
promises more than its paper does. Kept libraries of these need PyTorch, or have none of them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.linalg as sl
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from privpipe.protocols import FloatArray, IntArray

Release = Callable[[FloatArray], FloatArray]

HIDDEN = 64
"""Units of the hidden layer of networks."""
N_FEATURES = 600
"""Random Fourier features of a Gaussian kernel."""


def code(labels: IntArray) -> FloatArray:
    """Centred indicators of classes."""
    indicators = np.eye(int(labels.max()) + 1)[labels]
    centred: FloatArray = indicators - indicators.mean(axis=0)
    return centred


def _whiten(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Root of the pseudo-inverse of the covariance, and its own pseudo-inverse."""
    values, vectors = sl.eigh(x.T @ x / len(x))
    kept = values > 1e-9 * values[-1]
    root = np.sqrt(values[kept])
    return (vectors[:, kept] / root) @ vectors[:, kept].T, (vectors[:, kept] * root) @ vectors[
        :, kept
    ].T


def _span(columns: FloatArray) -> FloatArray:
    """Orthonormal basis of the columns that are more than rounding."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    basis: FloatArray = left[:, sizes > 1e-6 * max(float(sizes[0]), 1e-300)]
    return basis


def fit_leace(x: FloatArray, y: IntArray, s: IntArray, seed: int) -> Release:
    """LEACE (Belrose et al. 2023): the least change after which nothing linear is left."""
    return _project(x, s, None)


def fit_splince(x: FloatArray, y: IntArray, s: IntArray, seed: int) -> Release:
    """SPLINCE (Holstege et al. 2025): the same, and the covariance with the target stays."""
    return _project(x, s, y)


def _project(x: FloatArray, s: IntArray, y: IntArray | None) -> Release:
    """Oblique projection along the whitened covariance with s; y's stays in its range."""
    whiten, back = _whiten(x)
    away = _span(whiten @ (x.T @ code(s)) / len(x))
    rest = sl.null_space(away.T)
    image = rest
    if y is not None:
        target = _span(whiten @ (x.T @ code(y)) / len(x))
        # What of the target's directions is not erased itself, then what is orthogonal to both.
        target = target[:, np.linalg.norm(rest.T @ target, axis=0) > 1e-3]
        image = np.column_stack([target, sl.null_space(np.column_stack([away, target]).T)])
    oblique = image @ np.linalg.pinv(rest.T @ image) @ rest.T
    matrix = back @ oblique @ whiten
    return lambda records: records @ matrix.T


def fit_inlp(x: FloatArray, y: IntArray, s: IntArray, seed: int, rounds: int = 10) -> Release:
    """INLP (Ravfogel et al. 2020): classifiers of s are trained and projected away in turn."""
    basis = np.zeros((x.shape[1], 0))
    for _ in range(rounds):
        left = x - (x @ basis) @ basis.T
        weights = _classify(left, s).coef_.T
        weights = weights - basis @ (basis.T @ weights)
        if np.linalg.norm(weights) < 1e-8 or basis.shape[1] + weights.shape[1] > x.shape[1] - 1:
            break
        basis = np.column_stack([basis, _span(weights)])
    return lambda records: records - (records @ basis) @ basis.T


def _count_up(least: int, seconds: float) -> Iterator[int]:
    """Numbers of steps: so many at least, and more while processor time is left."""
    began = time.process_time()
    step = 0
    while step < least or time.process_time() - began < seconds:
        yield step
        step += 1


def fit_rlace(
    x: FloatArray, y: IntArray, s: IntArray, seed: int, rank: int = 1, seconds: float = 0.0
) -> Release:
    """R-LACE (Ravfogel et al. 2022): a projection of low rank against the best linear classifier.

    Ascent on the relaxed projection in the Fantope, as in the paper; the classifier is solved anew
    at every step, not by a step of its own.
    """
    relaxed = np.eye(x.shape[1]) * rank / x.shape[1]
    mean = np.zeros_like(relaxed)
    onehot = np.eye(int(s.max()) + 1)[s]
    for step in _count_up(30, seconds):
        left = x - x @ relaxed
        model = _classify(left, s)
        chances = model.predict_proba(left)
        weights = model.coef_ if len(model.coef_) > 1 else np.vstack([-model.coef_, model.coef_])
        # Of the cross-entropy by the projection: what is projected away is subtracted.
        slope = -x.T @ ((chances - onehot) @ weights) / len(x)
        slope = (slope + slope.T) / 2
        moved = relaxed + slope / max(float(np.abs(slope).max()), 1e-12) / np.sqrt(step + 1)
        relaxed = _to_fantope(moved, rank)
        mean += (relaxed - mean) / (step + 1)
    basis = sl.eigh(mean)[1][:, -rank:]
    return lambda records: records - (records @ basis) @ basis.T


def _to_fantope(matrix: FloatArray, rank: int) -> FloatArray:
    """Nearest matrix with eigenvalues in [0, 1] that sum to the rank (bisection on the shift)."""
    values, vectors = sl.eigh(matrix)
    low, high = values.min() - 1, values.max()
    for _ in range(60):
        shift = (low + high) / 2
        low, high = (shift, high) if np.clip(values - shift, 0, 1).sum() > rank else (low, shift)
    projected: FloatArray = (vectors * np.clip(values - low, 0, 1)) @ vectors.T
    return projected


def _classify(x: FloatArray, labels: IntArray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early is good enough a step
        return LogisticRegression(C=1.0, max_iter=100).fit(x, labels)


def fit_hsic(
    x: FloatArray,
    y: IntArray,
    s: IntArray,
    seed: int,
    width: int = 5,
    weight: float = 0.9,
    seconds: float = 0.0,
) -> Release:
    """Kernel erasure by HSIC, in the manner of Obliviator: directions in a space of features of a
    Gaussian kernel that depend on y and not on s; the best are the top of one eigenproblem
    (Sadeghi and Boddeti 2019). Repeated on its own output, as Obliviator does. Twice as many
    features are drawn while processor time is left.
    """
    for turn in _count_up(1, seconds):
        release = _erase_dependence(x, (y, s), seed, width, weight, N_FEATURES * 2**turn)
        if N_FEATURES * 2**turn >= len(x):
            break
    return release


def _erase_dependence(
    x: FloatArray,
    labels: tuple[IntArray, IntArray],
    seed: int,
    width: int,
    weight: float,
    n_features: int,
) -> Release:
    steps: list[Release] = []
    current = x
    for turn in range(2):
        lift = _draw_kernel(current, seed + turn, n_features)
        lifted = lift(current)
        centre = lifted.mean(axis=0)
        rows = lifted - centre
        cross_y, cross_s = (rows.T @ code(one) / len(rows) for one in labels)
        gain = (1 - weight) * _unit(cross_y @ cross_y.T) - weight * _unit(cross_s @ cross_s.T)
        gram = rows.T @ rows / len(rows) + 1e-3 * np.eye(len(centre))
        directions = sl.eigh(gain, gram, subset_by_index=(len(gain) - width, len(gain) - 1))[1]
        steps.append(_compose(lift, centre, directions))
        current = steps[-1](current)
    return lambda records: steps[1](steps[0](records))


def _unit(matrix: FloatArray) -> FloatArray:
    scaled: FloatArray = matrix / max(float(np.trace(matrix)), 1e-300)
    return scaled


def _compose(lift: Release, centre: FloatArray, directions: FloatArray) -> Release:
    return lambda records: (lift(records) - centre) @ directions


def _draw_kernel(x: FloatArray, seed: int, n_features: int) -> Release:
    """Features of a Gaussian kernel, its width the median distance of some records."""
    rng = np.random.default_rng(seed)
    some = x[rng.choice(len(x), min(len(x), 300), replace=False)]
    squares = (some**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * some @ some.T
    scale = np.sqrt(max(float(np.median(distances)), 1e-12))
    weights = rng.normal(size=(x.shape[1], n_features)) / scale
    phase = rng.uniform(0, 2 * np.pi, n_features)
    return lambda records: np.cos(records @ weights + phase) * np.sqrt(2 / n_features)


def fit_reversal(
    x: FloatArray,
    y: IntArray,
    s: IntArray,
    seed: int,
    width: int = 5,
    weight: float = 1.0,
    seconds: float = 0.0,
) -> Release:
    """Gradient reversal (Ganin and Lempitsky 2015): an encoder of one hidden layer, a head for y
    and one for s, whose gradient reaches the encoder with its sign turned.
    """

    def find_slopes(layers: list[FloatArray], rows: IntArray) -> list[FloatArray]:
        inner = np.tanh(x[rows] @ layers[0])
        z = inner @ layers[1]
        errors = [_miss(z @ layers[2], y[rows]), _miss(z @ layers[3], s[rows])]
        back = errors[0] @ layers[2].T - weight * errors[1] @ layers[3].T
        deeper = (back @ layers[1].T) * (1 - inner**2)
        return [x[rows].T @ deeper, inner.T @ back, z.T @ errors[0], z.T @ errors[1]]

    sizes = [(x.shape[1], HIDDEN), (HIDDEN, width), (width, y.max() + 1), (width, s.max() + 1)]
    layers = _descend(sizes, find_slopes, len(x), seed, seconds)
    return lambda records: np.tanh(records @ layers[0]) @ layers[1]


def fit_debiased(
    x: FloatArray, y: IntArray, s: IntArray, seed: int, weight: float = 1.0, seconds: float = 0.0
) -> Release:
    """Adversarial debiasing (Zhang, Lemoine and Mitchell 2018), as fairlearn has it: a predictor
    whose scores are released, and an adversary on them. What would help the adversary is taken out
    of each step of the predictor, before the adversary's gradient is subtracted.
    """

    def find_slopes(layers: list[FloatArray], rows: IntArray) -> list[FloatArray]:
        inner = np.tanh(x[rows] @ layers[0])
        z = inner @ layers[1]
        errors = [_miss(z, y[rows]), _miss(z @ layers[2], s[rows])]
        bent = 1 - inner**2
        backs = (errors[0], errors[1] @ layers[2].T)
        slopes = [[x[rows].T @ (back @ layers[1].T * bent), inner.T @ back] for back in backs]
        steps = []
        for mine, theirs in zip(*slopes, strict=True):
            unit = theirs / (np.linalg.norm(theirs) + 1e-12)
            steps.append(mine - (mine * unit).sum() * unit - weight * theirs)
        return [*steps, z.T @ errors[1]]

    sizes = [(x.shape[1], HIDDEN), (HIDDEN, y.max() + 1), (y.max() + 1, s.max() + 1)]
    layers = _descend(sizes, find_slopes, len(x), seed, seconds)
    return lambda records: np.tanh(records @ layers[0]) @ layers[1]


def _descend(
    sizes: list[tuple[int, int]],
    find_slopes: Callable[[list[FloatArray], IntArray], list[FloatArray]],
    n_records: int,
    seed: int,
    spent: float,
) -> list[FloatArray]:
    """Layers of these sizes after at least 60 epochs of Adam, 128 records a step; more
    until this processor time is spent.
    """
    rng = np.random.default_rng(seed)
    layers = [rng.normal(size=size) / np.sqrt(size[0]) for size in sizes]
    firsts, seconds = ([np.zeros_like(one) for one in layers] for _ in range(2))
    count = 0
    for _ in _count_up(60, spent):
        for rows in np.array_split(rng.permutation(n_records), max(n_records // 128, 1)):
            count += 1
            slopes = find_slopes(layers, rows)
            for layer, slope, first, second in zip(layers, slopes, firsts, seconds, strict=True):
                first += 0.1 * (slope - first)
                second += 0.001 * (slope**2 - second)
                size = np.sqrt(second / (1 - 0.999**count)) + 1e-8
                layer -= 1e-3 * first / (1 - 0.9**count) / size
    return layers


def _miss(logits: FloatArray, labels: IntArray) -> FloatArray:
    """Gradient of the mean cross-entropy by the logits."""
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    slopes: FloatArray = chances / len(labels)
    return slopes
