"""Nuclear norm completion of blocks of columns, from their Gram matrices alone.

Yi et al. 2014, problem (3), by fixed point continuation (Ma, Goldfarb and Chen 2011). The weights
of a block are those of its rows, so every iterate of a block is a p x p matrix times its data, and
no iterate of the width of the collection is ever made; see DESIGN.md. The penalty follows from the
noise, which is read off the spectrum of the moments (`measure_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privpipe.errors import InputError
from privpipe.protocols import FloatArray

Stop = Literal["change", "gap", "iterations"]

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
        Relative change of an iterate at which the last step of the continuation ends. The change
        of rows that are not observed is held against their own size: they are what is released,
        and may be small beside the rest.
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
    ``Z = M R`` the argument is ``H R``, ``H = (I - D/L) M + D/L``, and singular values are shrunk
    by the eigenvectors of ``sum H G H^T``. Steps are accelerated (Beck and Teboulle 2009) and
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
    found = _Iterate(*([np.zeros_like(block.gram) for block in blocks] for _ in range(2)))
    n_iterations, stopped = 0, _ITERATIONS
    for level in _lower(problem.measure_start(), penalty, options.decrease):
        is_last = level == penalty
        found, spent, stopped = _descend(problem, found, level, is_last, options)
        n_iterations += spent
    # What is certified rests on no product that was carried along, with its rounding.
    products = [m @ g for m, g in zip(found.factors, problem.grams, strict=True)]
    found = _Iterate(found.factors, products)
    directions, values = problem.decompose(found)
    objective, gap = problem.measure_gap(found, penalty)
    return Completion(
        tuple(found.factors), directions, values, objective, gap, n_iterations, stopped
    )


def _check(blocks: Sequence[WeightedBlock], penalty: float) -> None:
    finite = all(np.isfinite(b.gram).all() and np.isfinite(b.weights).all() for b in blocks)
    if not finite or not math.isfinite(penalty) or penalty <= 0:
        raise InputError(
            "Moments, weights or penalty of a completion are not finite and positive.",
            remedy="Leave records that are not finite out, and features that do not vary.",
            code="nonfinite",
        )
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


@dataclass(frozen=True, eq=False)
class _Iterate:
    """A matrix M per block, and its product M G with the block's Gram matrix.

    A step is linear in both but for the spectrum: with the products carried along, it takes one
    product of full matrices per block instead of six.
    """

    factors: Sequence[FloatArray]
    products: Sequence[FloatArray]

    def combine(self, share: float, other: _Iterate) -> _Iterate:
        """This iterate and a share of another."""
        return _Iterate(
            *(
                [mine + share * theirs for mine, theirs in zip(*pair, strict=True)]
                for pair in ((self.factors, other.factors), (self.products, other.products))
            )
        )

    def measure_energies(self) -> list[FloatArray]:
        """Squared norm of every row of each block."""
        return [
            np.einsum("ij,ij->i", product, factor)
            for product, factor in zip(self.products, self.factors, strict=True)
        ]

    def measure_spectrum(self) -> tuple[FloatArray, FloatArray]:
        """Singular values, largest first, and left singular vectors of the blocks ``M R``."""
        total = np.sum([g @ m.T for m, g in zip(self.factors, self.products, strict=True)], axis=0)
        values, vectors = np.linalg.eigh((total + total.T) / 2)
        return np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1]


class _Problem:
    """The blocks of one problem, with what every step needs of them."""

    def __init__(self, blocks: Sequence[WeightedBlock]) -> None:
        self.grams = [block.gram for block in blocks]
        self.weights = [block.weights[:, None] for block in blocks]
        self.largest = max(float(block.weights.max()) for block in blocks)
        self.steps = [w / self.largest for w in self.weights]
        self.identities = [np.eye(len(gram)) for gram in self.grams]

    def measure_start(self) -> float:
        """Spectral norm of the weighted observations: above it the solution is zero."""
        return self._measure_norm(self.identities, self.grams)

    def step(self, point: _Iterate, level: float) -> _Iterate:
        """A gradient step from a point, then shrinking."""
        moved = _Iterate(
            *(
                [(1 - s) * old + s * new for s, old, new in zip(self.steps, *pair, strict=True)]
                for pair in ((point.factors, self.identities), (point.products, self.grams))
            )
        )
        values, vectors = moved.measure_spectrum()
        retained = values > level / self.largest
        shrunk = (values[retained] - level / self.largest) / values[retained]
        left, right = vectors[:, retained] * shrunk, vectors[:, retained].T
        return _Iterate(
            *([left @ (right @ h) for h in part] for part in (moved.factors, moved.products))
        )

    def decompose(self, iterate: _Iterate) -> tuple[FloatArray, FloatArray]:
        """Left singular vectors and values of the matrix, what is zero to rounding left out."""
        values, vectors = iterate.measure_spectrum()
        retained = values > 1e-7 * max(float(values.max(initial=0.0)), 1e-300)
        return vectors[:, retained], values[retained]

    def measure_gap(self, iterate: _Iterate, penalty: float) -> tuple[float, float]:
        """Objective, and its distance to the dual value of the scaled residual."""
        left = _Iterate(self.identities, self.grams).combine(-1.0, iterate)
        _, spectrum = self.decompose(iterate)
        loss = sum(
            float(np.sum(w[:, 0] * energies))
            for w, energies in zip(self.weights, left.measure_energies(), strict=True)
        )
        objective = penalty * float(spectrum.sum()) + loss / 2
        # A dual point must lie in the ball of the spectral norm: the residual is scaled into it.
        norm = self._measure_norm(left.factors, left.products)
        scale = min(1.0, penalty / max(norm, 1e-300))
        linear = sum(
            float(np.sum(w[:, 0] * np.diagonal(product)))
            for w, product in zip(self.weights, left.products, strict=True)
        )
        return objective, objective - (scale * linear - scale**2 * loss / 2)

    def _measure_norm(self, factors: Sequence[FloatArray], products: Sequence[FloatArray]) -> float:
        """Spectral norm of the weighted blocks ``D M R``."""
        weighted = _Iterate(
            *([w * m for w, m in zip(self.weights, part, strict=True)]
              for part in (factors, products))
        )  # fmt: skip
        return float(weighted.measure_spectrum()[0][0])

    def measure_change(self, step: _Iterate, new: _Iterate) -> float:
        """Largest relative change: of all observed rows, and of the others of each block."""
        changes, sizes = np.zeros(1 + len(self.grams)), np.zeros(1 + len(self.grams))
        for into, iterate in ((changes, step), (sizes, new)):
            for number, energy in enumerate(iterate.measure_energies()):
                observed = self.weights[number][:, 0] > 0
                into[0] += max(0.0, float(energy[observed].sum()))
                into[1 + number] += max(0.0, float(energy[~observed].sum()))
        ratios = changes / np.where(sizes > 0, sizes, 1.0)
        return math.sqrt(float(ratios.max()))


def _descend(
    problem: _Problem, iterate: _Iterate, level: float, is_last: bool, options: FixedPointOptions
) -> tuple[_Iterate, int, Stop]:
    """Accelerated steps at one penalty; the earlier ones of the continuation need only be near."""
    momentum, point = 1.0, iterate
    tolerance = options.tolerance if is_last else options.early_tolerance
    for count in range(1, options.max_iterations + 1):
        new = problem.step(point, level)
        step = new.combine(-1.0, iterate)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        if _points_uphill(point.combine(-1.0, new), step):
            following, point = 1.0, new
        else:
            point = new.combine((momentum - 1) / following, step)
        change = problem.measure_change(step, new)
        momentum, iterate = following, new
        if change <= tolerance:
            return iterate, count, "change"
        if is_last and count % 10 == 0:
            objective, gap = problem.measure_gap(iterate, level)
            if gap <= options.gap * objective:
                return iterate, count, "gap"
    return iterate, options.max_iterations, _ITERATIONS


def _points_uphill(back: _Iterate, step: _Iterate) -> bool:
    """Whether a step turns against its own momentum (O'Donoghue and Candes 2015)."""
    pairs = zip(back.products, step.factors, strict=True)
    return sum(float(np.sum(product * factor)) for product, factor in pairs) > 0


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


def measure_noise(
    eigenvalues: FloatArray, n_records: float, explained: FloatArray | None = None
) -> float:
    """Standard deviation of noise added alike to every feature.

    The eigenvalues of pure noise of k directions lie within the law of Marchenko and Pastur,
    ``noise^2 (1 +- sqrt(k / n))^2``. The widest bottom of the spectrum that fits it, with
    something above, is the noise, unless the responses depend on it: features that are
    independent of one another look like noise to their own moments. A wider bottom is taken where
    what is above lies far: noise of equal features differs once these are standardised.

    Parameters
    ----------
    eigenvalues : (n_features,)
        Of the mean products of the features, in ascending order.
    n_records
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
        share = math.sqrt(k / n_records)
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
        if is_noise and dependent <= CHANCE * k / n_records:
            noise = mean
    return math.sqrt(noise)


def set_penalty(noise: float, n_rows: int, n_columns: float, weight: float = 1.0) -> float:
    """Penalty of the nuclear norm that noise of this size does not get past.

    The spectral norm of a Gaussian matrix is about ``noise (sqrt(rows) + sqrt(columns))``; a
    twentieth is added.

    >>> set_penalty(1.0, 4, 9)
    5.25
    """
    return 1.05 * weight * noise * (math.sqrt(n_rows) + math.sqrt(n_columns))
