"""From noisy second moments to surrogates: a repaired covariance, shrunk coefficients, rows.

All of it is post-processing: nothing here sees a record. Coefficients are the mean of their
posterior under the noise, direction by direction of the noisy spectrum. The variance of the prior
is the one that makes the noisy moments likeliest (empirical Bayes, Morris 1983). AdaSSP (Wang 2018)
adds one ridge to all directions instead, of a size that holds in the worst case.
"""

from dataclasses import dataclass

import numpy as np

from privpipe.protocols import FloatArray

PRIOR_VARIANCES = np.logspace(-6, 4, 201)
"""Tried for the coefficients, in squared units of the scaled responses."""


@dataclass(frozen=True, eq=False)
class RepairedMoments:
    """Moments that records can have, whose regression is the shrunk one.

    Parameters
    ----------
    mean : (n_features + n_responses,)
    root : (n_features, n_features)
        Symmetric root of the covariance of the features.
    coefficients : (n_features, n_responses)
    residual_root : (n_responses, n_responses)
        Of the covariance of the responses about their prediction.
    """

    mean: FloatArray
    root: FloatArray
    coefficients: FloatArray
    residual_root: FloatArray


def repair_moments(moments: FloatArray, spreads: FloatArray, n_responses: int) -> RepairedMoments:
    """Repair noisy sums of products of ``[features, 1, responses]``.

    Parameters
    ----------
    moments : (p, p)
        With noise; the count, which is positive, follows the features.
    spreads : (p, p)
        Standard deviation of the noise of each.
    n_responses
    """
    q = len(moments) - 1 - n_responses
    count = moments[q, q]
    columns = [*range(q), *range(q + 1, len(moments))]
    mean = moments[q, columns] / count
    covariance = moments[np.ix_(columns, columns)] / count - np.outer(mean, mean)
    scale = spreads[np.ix_(columns, columns)] / count
    # A feature with the next one; of one feature alone, what its square has.
    of_features = float(scale[0, min(1, q - 1)])
    values, vectors = np.linalg.eigh(covariance[:q, :q])
    cross = covariance[:q, q:]
    columns = [
        _shrink(values, vectors.T @ cross[:, j], of_features, float(scale[0, q + j]))
        for j in range(n_responses)
    ]
    coefficients = vectors @ np.column_stack(columns)
    # What is below one deviation of the noise is not known to vary at all; it gets no coefficient.
    raised = np.maximum(values, max(of_features, 1e-12))
    explained = coefficients.T @ cross
    left = covariance[q:, q:] - explained - explained.T
    left += coefficients.T @ covariance[:q, :q] @ coefficients
    root = (vectors * np.sqrt(raised)) @ vectors.T
    return RepairedMoments(mean, root, coefficients, _root((left + left.T) / 2))


def _shrink(values: FloatArray, cross: FloatArray, of_features: float, noise: float) -> FloatArray:
    """Coefficients by direction: ``cross`` is ``values * beta`` with noise of both.

    The noise of the covariance turns beta into noise of ``cross`` of variance
    ``of_features^2 |beta|^2``, whose expectation the prior gives.
    """
    known = np.maximum(values, 0.0)
    prior = PRIOR_VARIANCES[:, None]
    spread = known**2 * prior + (noise**2 + of_features**2 * len(values) * prior)
    likeliest = int(np.argmin(np.sum(np.log(spread) + cross**2 / spread, axis=1)))
    return np.asarray(prior[likeliest] * known * cross / spread[likeliest])


def _root(covariance: FloatArray) -> FloatArray:
    """Symmetric root of the nearest matrix that is a covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def draw_rows(repaired: RepairedMoments, n_rows: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Rows with exactly these moments: features, (n_rows, q), and responses, (n_rows, t).

    Parameters
    ----------
    repaired
    n_rows
        At least the columns and two.
    seed
        No secret: another seed gives other rows with the same moments.
    """
    q, t = repaired.coefficients.shape
    drawn = np.random.default_rng(seed).normal(size=(n_rows, q + t))
    # Orthonormal to one another and to a column of ones: covariance and mean are then exact.
    basis = np.linalg.qr(np.column_stack([np.ones(n_rows), drawn]))[0][:, 1:] * np.sqrt(n_rows)
    centred = basis[:, :q] @ repaired.root
    responses = centred @ repaired.coefficients + basis[:, q:] @ repaired.residual_root
    return centred + repaired.mean[:q], responses + repaired.mean[q:]
