"""Nuclear norm completion of blocks of columns, from their Gram matrices alone.

Yi et al. 2014, problem (3), by fixed point continuation (Ma, Goldfarb and Chen 2011). The weights
of a block are those of its rows, so every iterate of a block is a p x p matrix times its data, and
no iterate of the width of the collection is ever made; see DESIGN.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privpipe.errors import InputError
from privpipe.protocols import FloatArray

__all__ = ["Block", "Completion", "FixedPointOptions", "solve_completion"]

Stop = Literal["change", "gap", "iterations"]

_ITERATIONS: Stop = "iterations"


@dataclass(frozen=True, eq=False)
class Block:
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
    """How the iteration goes on and when it ends.

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
    blocks: Sequence[Block], penalty: float, options: FixedPointOptions | None = None
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
    >>> found = solve_completion([Block(np.diag([9.0, 1.0]), np.ones(2))], 0.5)
    >>> found.singular_values.round(6).tolist()
    [2.5, 0.5]
    """
    options = options or FixedPointOptions()
    _check(blocks, penalty)
    problem = _Problem(blocks)
    factors = [np.zeros_like(block.gram) for block in blocks]
    n_iterations, stopped = 0, _ITERATIONS
    for level in _lower(problem.measure_start(), penalty, options.decrease):
        is_last = level == penalty
        factors, spent, stopped = _descend(problem, factors, level, is_last, options)
        n_iterations += spent
    directions, values = problem.decompose(factors)
    objective, gap = problem.measure_gap(factors, penalty)
    return Completion(
        tuple(factors),
        directions,
        values,
        objective,
        gap,
        n_iterations,
        stopped,
    )


def _check(blocks: Sequence[Block], penalty: float) -> None:
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
    """Penalties of the continuation, the asked one last; none that is the same to rounding."""
    level = start * decrease
    while level > penalty * (1 + 1e-9):
        yield level
        level *= decrease
    yield penalty


class _Problem:
    """The blocks of one problem, with what every step needs of them."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.grams = [block.gram for block in blocks]
        self.weights = [block.weights[:, None] for block in blocks]
        self.largest = max(float(block.weights.max()) for block in blocks)
        self.steps = [w / self.largest for w in self.weights]

    def measure_start(self) -> float:
        """Spectral norm of the weighted observations: above it the solution is zero."""
        return _norm([w * np.eye(len(w)) for w in self.weights], self.grams)

    def step(
        self, points: list[FloatArray], level: float
    ) -> tuple[list[FloatArray], FloatArray, FloatArray]:
        """A gradient step from each point, then shrinking; factors, directions, values."""
        moved = [
            (1 - s) * point + s * np.eye(len(s))
            for s, point in zip(self.steps, points, strict=True)
        ]
        values, vectors = _spectrum(moved, self.grams)
        kept = values > level / self.largest
        shrunk = (values[kept] - level / self.largest) / values[kept]
        shrink = (vectors[:, kept] * shrunk) @ vectors[:, kept].T
        return [shrink @ h for h in moved], vectors[:, kept], values[kept]

    def decompose(self, factors: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Left singular vectors and values of the matrix, what is zero to rounding left out."""
        values, vectors = _spectrum(factors, self.grams)
        kept = values > 1e-7 * max(float(values.max(initial=0.0)), 1e-300)
        return vectors[:, kept], values[kept]

    def measure_gap(self, factors: list[FloatArray], penalty: float) -> tuple[float, float]:
        """Objective, and its distance to the dual value of the scaled residual."""
        residuals = [np.eye(len(m)) - m for m in factors]
        weighted = [w * e for w, e in zip(self.weights, residuals, strict=True)]
        _, spectrum = self.decompose(factors)
        loss = sum(
            float(np.sum((e @ g) * d))
            for e, g, d in zip(residuals, self.grams, weighted, strict=True)
        )
        objective = penalty * float(spectrum.sum()) + loss / 2
        scale = min(1.0, penalty / max(_norm(weighted, self.grams), 1e-300))
        linear = sum(float(np.sum(d * g)) for d, g in zip(weighted, self.grams, strict=True))
        return objective, objective - (scale * linear - scale**2 * loss / 2)

    def measure_change(self, new: list[FloatArray], old: list[FloatArray]) -> float:
        """Largest relative change: of all observed rows, and of the others of each block."""
        changes, sizes = np.zeros(1 + len(new)), np.zeros(1 + len(new))
        for number, (m, before, g, w) in enumerate(
            zip(new, old, self.grams, self.weights, strict=True)
        ):
            observed = w[:, 0] > 0
            for into, matrix in ((changes, m - before), (sizes, m)):
                energy = np.sum((matrix @ g) * matrix, axis=1)
                into[0] += max(0.0, float(energy[observed].sum()))
                into[1 + number] += max(0.0, float(energy[~observed].sum()))
        ratios = changes / np.where(sizes > 0, sizes, 1.0)
        return math.sqrt(float(ratios.max()))

    def points_uphill(
        self, points: list[FloatArray], new: list[FloatArray], old: list[FloatArray]
    ) -> bool:
        """Whether the last step turns against its own momentum (O'Donoghue and Candes 2015)."""
        return (
            sum(
                float(np.sum(((y - m) @ g) * (m - before)))
                for y, m, before, g in zip(points, new, old, self.grams, strict=True)
            )
            > 0
        )


def _descend(
    problem: _Problem,
    factors: list[FloatArray],
    level: float,
    is_last: bool,
    options: FixedPointOptions,
) -> tuple[list[FloatArray], int, Stop]:
    """Accelerated steps at one penalty; the earlier ones of the continuation need only be near."""
    momentum, points = 1.0, factors
    tolerance = options.tolerance if is_last else options.early_tolerance
    for count in range(1, options.max_iterations + 1):
        new, _, _ = problem.step(points, level)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        if problem.points_uphill(points, new, factors):
            following, points = 1.0, new
        else:
            ahead = (momentum - 1) / following
            points = [m + ahead * (m - old) for m, old in zip(new, factors, strict=True)]
        change = problem.measure_change(new, factors)
        momentum, factors = following, new
        if change <= tolerance:
            return factors, count, "change"
        if is_last and count % 10 == 0:
            objective, gap = problem.measure_gap(factors, level)
            if gap <= options.gap * objective:
                return factors, count, "gap"
    return factors, options.max_iterations, _ITERATIONS


def _spectrum(
    factors: Sequence[FloatArray], grams: Sequence[FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Singular values, largest first, and left singular vectors of the blocks ``M R``."""
    total = np.sum([m @ g @ m.T for m, g in zip(factors, grams, strict=True)], axis=0)
    values, vectors = np.linalg.eigh((total + total.T) / 2)
    return np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1]


def _norm(factors: Sequence[FloatArray], grams: Sequence[FloatArray]) -> float:
    """Spectral norm of the blocks ``M R``."""
    return float(_spectrum(factors, grams)[0][0])
