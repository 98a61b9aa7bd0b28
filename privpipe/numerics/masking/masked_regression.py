"""From the moments of records to what their surrogates are multiplied by; the model stays exact.

Yi et al. 2014, problem (3), solved on Gram matrices with the expectation of the surrogates' own:
``E[P P^T] = I``, so that nothing has to be drawn before the fit.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.masking import completion
from privpipe.protocols import FloatArray

Solver = Literal["scaled", "literal"]

RESPONSE_SCALE = 0.005
"""Of responses beside features in the scaled problem: their energy must not fill the row space."""

SURROGATE_SCALE = 0.5
"""Of surrogates beside records in the scaled problem."""

SCALED_OPTIONS = completion.FixedPointOptions(tolerance=1e-8)
"""Of the scaled problem, of which the subspace is taken and the coefficients are refitted: mixing
and coefficients stay within 1e-9 of what 1e-12 gives. With next to no penalty the responses, scaled
down so far, never change by less than 1e-12: five hundred iterations of rounding errors."""

LEAST_PENALTY = 1e-9
"""Of the spectral norm, where no noise is found: the problem needs some penalty."""


@dataclass(frozen=True, eq=False)
class MaskedRegression:
    """What ``X P`` is multiplied by.

    Parameters
    ----------
    mixing : (n_features, n_features)
        Surrogate features are ``mixing @ (X P)``, X with features as rows.
    coefficients : (n_responses, n_features)
        Surrogate responses are ``coefficients @`` surrogate features, exactly.
    rank
        Dimensions of the features that were retained.
    noise, penalty
        Found or given, in the units of the Gram matrix; the penalty it leads to.
    completion
        How the solve went.
    """

    mixing: FloatArray
    coefficients: FloatArray
    rank: int
    noise: float
    penalty: float
    completion: completion.Completion


def solve_masked_regression(
    gram: FloatArray,
    n_responses: int,
    n_records: float,
    n_surrogates: int,
    *,
    noise: float | None = None,
    solver: Solver = "scaled",
    surrogate_gram: FloatArray | None = None,
) -> MaskedRegression:
    """Solve problem (3) from the moments of responses and features.

    Parameters
    ----------
    gram : (n_responses + n_features, n_responses + n_features)
        Sum over records of the products of [responses, features], the bias feature included.
    n_responses
        How many of the columns are responses; at least 1.
    n_records, n_surrogates
        How many records the sums are of, and how many surrogates are requested.
    noise
        Standard deviation of the features' noise; read off the spectrum when not given.
    solver
        "scaled": responses and surrogates are scaled down before, and the coefficients refitted
        on the subspace found. "literal": the problem as the paper states it.
    surrogate_gram : (n_features, n_features), optional
        ``(X P) (X P)^T`` where it is known; its expectation otherwise.

    Returns
    -------
    MaskedRegression

    Raises
    ------
    InputError
        If moments are not finite, or nothing is left above the penalty.

    Notes
    -----
    Departure: the literal problem does not preserve the model when responses are large: where
    energies of Y in the column space and of A in the row space sum to more than one, coefficients
    shrink (relative error .75 at ``|Y| / |X| = 4``). The scaled one does.

    References
    ----------
    Yi et al. 2014, problem (3), with equal weights per entry.
    """
    t = n_responses
    features = gram[t:, t:]
    inner = features if surrogate_gram is None else surrogate_gram
    if noise is None:
        values, vectors = np.linalg.eigh(features / n_records)
        cross = (gram[:t, t:] / n_records) @ vectors
        sizes = np.maximum(np.diag(gram)[:t] / n_records, 1e-300)[:, None]
        explained = np.max(cross**2 / sizes, axis=0) / np.maximum(values, 1e-300)
        noise = completion.measure_noise(values, n_records, explained)
    response, surrogate = (RESPONSE_SCALE, SURROGATE_SCALE) if solver == "scaled" else (1.0, 1.0)
    scale = np.concatenate([np.full(t, response), np.ones(len(features))])
    # Responses scaled down: the literal problem lets large ones fill the row space (error .75 of
    # the coefficients at |Y| / |X| = 4).
    scaled = gram * np.outer(scale, scale)
    masked = np.zeros_like(gram)
    masked[t:, t:] = surrogate**2 * inner
    # Responses of surrogates are what is completed: nothing of them is observed.
    observed = np.concatenate([np.zeros(t), np.ones(len(features))])
    blocks = (
        completion.WeightedBlock(scaled, np.ones(len(gram))),
        completion.WeightedBlock(masked, observed),
    )
    least = LEAST_PENALTY * math.sqrt(max(0.0, float(np.linalg.eigvalsh(scaled + masked)[-1])))
    # Records and surrogates are columns of one matrix.
    penalty = max(completion.set_penalty(noise, len(gram), n_records + n_surrogates), least)
    found = completion.solve_completion(
        blocks, penalty, SCALED_OPTIONS if solver == "scaled" else None
    )
    basis = _span_features(found.directions[t:])
    if not basis.shape[1]:
        raise InputError(
            "Nothing of the features is above the noise level.",
            remedy="Give a smaller noise_level.",
            code="noise",
        )
    mixing = _project(found.factors[1][t:, t:], basis)
    if solver == "scaled":
        coefficients = keep_model(gram, t, basis)
    else:
        coefficients = _divide(found.directions[:t], found.directions[t:])
    return MaskedRegression(mixing, coefficients, basis.shape[1], noise, penalty, found)


def keep_model(gram: FloatArray, n_responses: int, basis: FloatArray) -> FloatArray:
    """Least squares of the responses on the features within a subspace.

    Parameters
    ----------
    gram
        As in `solve_masked_regression`.
    n_responses
    basis : (n_features, rank)
        Orthonormal columns.

    Returns
    -------
    coefficients : (n_responses, n_features)
        Zero across the subspace.
    """
    inner = basis.T @ gram[n_responses:, n_responses:] @ basis
    cross = gram[:n_responses, n_responses:] @ basis
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    retained = values > len(values) * 1e-13 * values[-1]
    inverse = (vectors[:, retained] / values[retained]) @ vectors[:, retained].T
    coefficients: FloatArray = cross @ inverse @ basis.T
    return coefficients


def _span_features(directions: FloatArray) -> FloatArray:
    """Orthonormal basis of what the directions say of the features."""
    vectors, values, _ = np.linalg.svd(directions, full_matrices=False)
    return vectors[:, values > 1e-6 * max(float(values.max(initial=0.0)), 1e-300)]


def _project(mixing: FloatArray, basis: FloatArray) -> FloatArray:
    """The same to rounding, with its range within the basis: what the coefficients are about."""
    projected: FloatArray = basis @ (basis.T @ mixing)
    return projected


def _divide(responses: FloatArray, features: FloatArray) -> FloatArray:
    """Coefficients by which the responses of every direction follow from its features."""
    solution: FloatArray = np.linalg.lstsq(features.T, responses.T, rcond=1e-6)[0].T
    return solution
