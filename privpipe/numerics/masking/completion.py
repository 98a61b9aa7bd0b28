"""Problem (3) of Yi et al. 2014 from Gram matrices alone: what surrogates are multiplied by.

Nuclear norm completion of blocks of columns, by fixed point continuation (Ma, Goldfarb and Chen
2011). The weights of a block are those of its rows, so every iterate of a block is a p x p matrix
times its data. No iterate of the width of the collection is ever made; see DESIGN.md. The penalty
follows from the noise, which is read off the spectrum of the moments (`measure_noise`).
`solve_masked_regression` solves it with the expectation of the surrogates' own moments,
``E[P P^T] = I``. So nothing has to be drawn before the fit. The model stays exact.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privpipe.errors import InputError
from privpipe.protocols import FloatArray

Stop = Literal["change", "gap", "iterations"]
Solver = Literal["scaled", "literal"]

_ITERATIONS: Stop = "iterations"


@dataclass(frozen=True, eq=False)
class WeightedBlock:
    """Columns whose entries are weighted row by row.

    Parameters
    ----------
    gram : (n_rows, n_rows)
        ``R R^T`` of the observed columns R, zero in rows that are not observed.
    weights : (n_rows,)
        Weight of the squared error of each row; 0 where a row of the block is not observed.
    """

    gram: FloatArray
    weights: FloatArray


@dataclass(frozen=True)
class FixedPointOptions:
    """Steps of the iteration and when it ends.

    Parameters
    ----------
    decrease
        Factor of the penalty from one step of the continuation to the next.
    tolerance
        Relative change of an iterate at which the last step of the continuation ends. The change of
        rows that are not observed is held against their own size. They are what is released, and
        may be small beside the rest.
    gap
        Relative duality gap at which it ends.
    early_tolerance
        Relative change at which the other steps of the continuation end.
    max_iterations
        Most iterations of each step of the continuation.
    """

    decrease: float = 0.25
    tolerance: float = 1e-12
    gap: float = 1e-14
    early_tolerance: float = 1e-4
    max_iterations: int = 500


@dataclass(frozen=True, eq=False)
class Completion:
    """The completed blocks as matrices by which their data are multiplied.

    Parameters
    ----------
    factors
        One (n_rows, n_rows) matrix M per block: the completed block is ``M R``.
    directions : (n_rows, rank)
        Left singular vectors of the completed matrix, strongest first.
    singular_values : (rank,)
    objective, gap
        Value, and by how much it may be above the least one.
    n_iterations
        Of all steps of the continuation.
    stopped
        Why it ended: "change", "gap" or "iterations".
    """

    factors: tuple[FloatArray, ...]
    directions: FloatArray
    singular_values: FloatArray
    objective: float
    gap: float
    n_iterations: int
    stopped: Stop


def solve_completion(
    blocks: Sequence[WeightedBlock], penalty: float, options: FixedPointOptions | None = None
) -> Completion:
    """Minimise ``penalty |Z|_* + sum of weights (Z - R)^2 / 2`` over matrices Z of all columns.

    Parameters
    ----------
    blocks
        Gram matrix and weights of each block of columns.
    penalty
        Weight of the nuclear norm; positive.
    options
        See `FixedPointOptions`.

    Returns
    -------
    Completion

    Raises
    ------
    InputError
        If something is not finite, a weight is negative, or nothing is observed.

    Notes
    -----
    A step is ``Z+ = shrink(Z - D (Z - R) / L)`` with D the weights and L the largest of them. With
    ``Z = M R`` the argument is ``H R``, ``H = (I - D/L) M + D/L``. Singular values are shrunk by
    the eigenvectors of ``sum H G H^T``. Steps are accelerated (Beck and Teboulle 2009) and
    restarted where momentum points uphill. The gap is that of the dual point made of the weighted
    residual, scaled into the ball of the spectral norm.

    References
    ----------
    Yi et al. 2014, problem (3); Ma, Goldfarb and Chen 2011, algorithm FPC.

    Examples
    --------
    >>> found = solve_completion([WeightedBlock(np.diag([9.0, 1.0]), np.ones(2))], 0.5)
    >>> found.singular_values.round(6).tolist()
    [2.5, 0.5]
    """
    options = options or FixedPointOptions()
    _check(blocks, penalty)
    problem = _Problem(blocks)
    found = np.zeros_like(problem.observed)
    n_iterations, stopped = 0, _ITERATIONS
    # Above the spectral norm of the weighted observations the solution is zero.
    for level in _lower(problem.measure_norm(problem.observed), penalty, options.decrease):
        found, spent, stopped = _descend(problem, found, level, level == penalty, options)
        n_iterations += spent
    # What is certified rests on no product that was carried along, with its rounding.
    found = np.stack([found[0], found[0] @ problem.observed[1]])
    directions, values = _decompose(found)
    objective, gap = problem.measure_gap(found, penalty)
    return Completion(tuple(found[0]), directions, values, objective, gap, n_iterations, stopped)


def _check(blocks: Sequence[WeightedBlock], penalty: float) -> None:
    finite = all(np.isfinite(b.gram).all() and np.isfinite(b.weights).all() for b in blocks)
    if not finite or not math.isfinite(penalty) or penalty <= 0:
        problem = "Moments, weights or penalty of a completion are not finite and positive."
        remedy = "Leave records that are not finite out, and features that do not vary."
        raise InputError(problem, remedy=remedy, code="nonfinite")
    if any((block.weights < 0).any() for block in blocks):
        raise InputError("A weight of a completion is negative.", remedy="Use weights >= 0.")
    if not any((block.weights > 0).any() and block.gram.any() for block in blocks):
        raise InputError("Nothing is observed.", remedy="Give entries that are not zero.")


def _lower(start: float, penalty: float, decrease: float) -> Iterator[float]:
    """Penalties of the continuation, the given one last; none that is the same to rounding."""
    level = start * decrease
    while level > penalty * (1 + 1e-9):
        yield level
        level *= decrease
    yield penalty


# An iterate is an array (2, n_blocks, n_rows, n_rows): a matrix M per block, and its product M G
# with the Gram matrix of the block. A step is linear in both but for the spectrum: with the
# products carried along, it takes one product of full matrices per block instead of six.


def _measure_energies(iterate: FloatArray) -> FloatArray:
    """Squared norm of every row of each block, (n_blocks, n_rows)."""
    return np.asarray(np.einsum("bij,bij->bi", iterate[1], iterate[0]))


def _measure_spectrum(iterate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Singular values, largest first, and left singular vectors of the blocks ``M R``."""
    total = (iterate[1] @ iterate[0].swapaxes(1, 2)).sum(axis=0)
    values, vectors = np.linalg.eigh((total + total.T) / 2)
    return np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1]


def _decompose(iterate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Left singular vectors and values of the matrix, what is zero to rounding left out."""
    values, vectors = _measure_spectrum(iterate)
    retained = values > 1e-7 * max(float(values.max(initial=0.0)), 1e-300)
    return vectors[:, retained], values[retained]


class _Problem:
    """The blocks of one problem, with what every step needs of them."""

    def __init__(self, blocks: Sequence[WeightedBlock]) -> None:
        grams = np.stack([block.gram for block in blocks])
        # What is observed, R itself, as an iterate: its matrices are identities.
        self.observed = np.stack([np.broadcast_to(np.eye(grams.shape[1]), grams.shape), grams])
        self.weights = np.stack([block.weights for block in blocks])
        self.largest = float(self.weights.max())

    def step(self, point: FloatArray, level: float) -> FloatArray:
        """A gradient step from a point, then shrinking."""
        share = self.weights[:, :, None] / self.largest
        moved = (1 - share) * point + share * self.observed
        values, vectors = _measure_spectrum(moved)
        retained = values > level / self.largest
        shrunk = (values[retained] - level / self.largest) / values[retained]
        return np.asarray((vectors[:, retained] * shrunk) @ (vectors[:, retained].T @ moved))

    def measure_gap(self, iterate: FloatArray, penalty: float) -> tuple[float, float]:
        """Objective, and its distance to the dual value of the scaled residual."""
        left = self.observed - iterate
        loss = float(np.sum(self.weights * _measure_energies(left)))
        objective = penalty * float(_decompose(iterate)[1].sum()) + loss / 2
        # A dual point must lie in the ball of the spectral norm: the residual is scaled into it.
        scale = min(1.0, penalty / max(self.measure_norm(left), 1e-300))
        linear = float(np.sum(self.weights * np.diagonal(left[1], axis1=1, axis2=2)))
        return objective, objective - (scale * linear - scale**2 * loss / 2)

    def measure_norm(self, iterate: FloatArray) -> float:
        """Spectral norm of the weighted blocks ``D M R``."""
        return float(_measure_spectrum(self.weights[:, :, None] * iterate)[0][0])

    def measure_change(self, step: FloatArray, new: FloatArray) -> float:
        """Largest relative change: of all observed rows, and of the others of each block."""
        observed = self.weights > 0
        changes, sizes = (
            np.append(np.sum(energies, axis=1, where=~observed), np.sum(energies, where=observed))
            for energies in (_measure_energies(step), _measure_energies(new))
        )
        # Rounding may leave a sum of squares below zero.
        return math.sqrt(float((np.maximum(changes, 0.0) / np.where(sizes > 0, sizes, 1.0)).max()))


def _descend(
    problem: _Problem, iterate: FloatArray, level: float, is_last: bool, options: FixedPointOptions
) -> tuple[FloatArray, int, Stop]:
    """Accelerated steps at one penalty; the earlier ones of the continuation need only be near."""
    momentum, point = 1.0, iterate
    tolerance = options.tolerance if is_last else options.early_tolerance
    for count in range(1, options.max_iterations + 1):
        new = problem.step(point, level)
        step = new - iterate
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        # A step that turns against its own momentum (O'Donoghue and Candes 2015) begins anew.
        if np.sum((point[1] - new[1]) * step[0]) > 0:
            following, point = 1.0, new
        else:
            point = new + (momentum - 1) / following * step
        change = problem.measure_change(step, new)
        momentum, iterate = following, new
        if change <= tolerance:
            return iterate, count, "change"
        if is_last and count % 10 == 0:
            objective, gap = problem.measure_gap(iterate, level)
            if gap <= options.gap * objective:
                return iterate, count, "gap"
    return iterate, options.max_iterations, _ITERATIONS


SPREAD = 1.05
"""How much wider than the limit of random matrices a bulk of noise may be."""

CLEAR = 1.5
"""How far above the limit of the bulk the next eigenvalue lies: it is no part of it."""

UNEVEN = 2.0
"""The same of noise that differs from feature to feature, as that of standardised features does."""

FAR = 6.0
"""How far the next eigenvalue must lie above such an uneven bulk."""

LEAST_UNEVEN = 8
"""Directions below which an uneven bulk cannot be distinguished from features that hardly vary."""

CHANCE = 3.0
"""How much more of the responses noise may explain than it does by chance: k of n."""


def measure_noise(eigenvalues: FloatArray, n: float, explained: FloatArray | None = None) -> float:
    """Standard deviation of noise added alike to every feature.

    The eigenvalues of pure noise of k directions lie within the law of Marchenko and Pastur,
    ``noise^2 (1 +- sqrt(k / n))^2``. The widest bottom of the spectrum that fits it, with something
    above, is the noise, unless the responses depend on it. Features that are independent of one
    another look like noise to their own moments. A wider bottom is taken where what is above lies
    far: noise of equal features differs once these are standardised.

    Parameters
    ----------
    eigenvalues : (n_features,)
        Of the mean products of the features, in ascending order.
    n
        How many the products are the mean of.
    explained : (n_features,), optional
        Share of the responses' variance that each direction explains.

    Returns
    -------
    noise
        In the units of the features; 0 where nothing is taken for noise.

    Examples
    --------
    >>> measure_noise(np.array([0.25, 0.25, 4.0, 9.0]), 10**6)
    0.5
    >>> measure_noise(np.array([0.25, 0.25, 4.0, 9.0]), 10**6, np.array([0.1, 0.2, 0.0, 0.5]))
    0.0
    """
    values = np.maximum(eigenvalues, 0.0)
    # Features that depend on one another leave no floor of noise to read.
    if values[0] <= len(values) * 1e-13 * values[-1]:
        return 0.0
    noise = 0.0
    for k in range(2, len(values)):
        # The edges of Marchenko and Pastur's law for k directions of n records.
        share = math.sqrt(k / n)
        low, high = max(0.0, 1 - share) ** 2, (1 + share) ** 2
        mean = float(values[:k].mean())
        is_noise = any(
            values[k - 1] <= spread * high * mean
            and spread * values[0] >= low * mean
            and values[k] > apart * high * mean
            for spread, apart, least in ((SPREAD, CLEAR, 2), (UNEVEN, FAR, LEAST_UNEVEN))
            if k >= least
        )
        dependent = 0.0 if explained is None else float(explained[:k].sum())
        if is_noise and dependent <= CHANCE * k / n:
            noise = mean
    return math.sqrt(noise)


def set_penalty(noise: float, n_rows: int, n_columns: float) -> float:
    """Penalty of the nuclear norm that noise of this size does not get past.

    The spectral norm of a Gaussian matrix is about ``noise (sqrt(rows) + sqrt(columns))``; a
    twentieth is added.

    >>> set_penalty(1.0, 4, 9)
    5.25
    """
    return 1.05 * noise * (math.sqrt(n_rows) + math.sqrt(n_columns))


RESPONSE_SCALE = 0.005
"""Of responses beside features in the scaled problem: their energy must not fill the row space."""

SURROGATE_SCALE = 0.5
"""Of surrogates beside records in the scaled problem."""

SCALED_OPTIONS = FixedPointOptions(tolerance=1e-8)
"""Of the scaled problem, of which the subspace is taken and the coefficients are refitted. Mixing
and coefficients stay within a billionth of what 1e-12 gives. With next to no penalty the responses,
scaled down so far, never change by less than 1e-12: five hundred iterations of rounding errors."""

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
    completion: Completion


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
    Departure: the literal problem does not preserve the model when responses are large.
    Coefficients shrink where energies of Y in the column space and of A in the row space sum to
    more than one. At ``|Y| / |X| = 4`` the relative error is .75. The scaled problem preserves the
    model.

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
        noise = measure_noise(values, n_records, explained)
    response, surrogate = (RESPONSE_SCALE, SURROGATE_SCALE) if solver == "scaled" else (1.0, 1.0)
    scale = np.concatenate([np.full(t, response), np.ones(len(features))])
    # Responses scaled down: the literal problem lets large ones fill the row space (error .75 of
    # the coefficients at |Y| / |X| = 4).
    scaled = gram * np.outer(scale, scale)
    masked = np.zeros_like(gram)
    masked[t:, t:] = surrogate**2 * inner
    # Responses of surrogates are what is completed: nothing of them is observed.
    observed = np.concatenate([np.zeros(t), np.ones(len(features))])
    blocks = (WeightedBlock(scaled, np.ones(len(gram))), WeightedBlock(masked, observed))
    least = LEAST_PENALTY * math.sqrt(max(0.0, float(np.linalg.eigvalsh(scaled + masked)[-1])))
    # Records and surrogates are columns of one matrix.
    penalty = max(set_penalty(noise, len(gram), n_records + n_surrogates), least)
    found = solve_completion(blocks, penalty, SCALED_OPTIONS if solver == "scaled" else None)
    basis = _span_features(found.directions[t:])
    if not basis.shape[1]:
        problem = "Nothing of the features is above the noise level."
        raise InputError(problem, remedy="Give a smaller noise_level.", code="noise")
    # The same to rounding, with its range within the basis: what the coefficients are about.
    mixing = basis @ (basis.T @ found.factors[1][t:, t:])
    if solver == "scaled":
        coefficients = keep_model(gram, t, basis)
    else:
        # By which the completed responses follow from features. Of the directions themselves, which
        # are orthonormal and span the responses too, nothing follows.
        masked, completed = found.factors[1][t:, t:].T, found.factors[1][:t, t:].T
        coefficients = np.linalg.lstsq(masked, completed, rcond=1e-6)[0].T
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

    Raises
    ------
    InputError
        If a response depends on a difference that rounding leaves out.
    """
    inner = basis.T @ gram[n_responses:, n_responses:] @ basis
    cross = gram[:n_responses, n_responses:] @ basis
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    retained = values > len(values) * 1e-13 * values[-1]
    inverse = (vectors[:, retained] / values[retained]) @ vectors[:, retained].T
    # What is lost shows in the responses, relative to rounding, whatever its inverse is worth.
    left = np.maximum(values[~retained], 1e-16 * values[-1])
    lost = ((cross @ vectors[:, ~retained]) ** 2 / left).sum(axis=1)
    if (lost > 0.01 * np.diagonal(gram)[:n_responses]).any():
        raise InputError(
            "A response depends on features that differ by 1e-6 of their spread: their difference "
            "is lost to rounding, and the model with it.",
            remedy="Give the difference as a feature in place of one of them.",
            code="collinear",
        )
    return np.asarray(cross @ inverse @ basis.T)


def _span_features(directions: FloatArray) -> FloatArray:
    """Orthonormal basis of what the directions say of the features."""
    vectors, values, _ = np.linalg.svd(directions, full_matrices=False)
    return vectors[:, values > 1e-6 * max(float(values.max(initial=0.0)), 1e-300)]
