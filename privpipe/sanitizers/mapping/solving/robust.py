"""solve_robust_mapping: the least information under the worst law of a ball around the counts.

The worst case of a mapping W over the ball is at most ``max_p E_p[gain_W] + k radius`` (see
`likelihood_ball`), and the law p that attains the mean is known in closed form. A round moves a law
of the ball towards the worst for the last mapping (steps of Frank and Wolfe; the gradient of the
least information is the gains, Danskin) and solves the plain problem there, which gives two things.
Its mapping is a direction, taken as far as the worst case falls. And its certified optimum bounds
the worst case of *every* mapping within the budget from below, whatever law was tried: no mapping
tells less under one law of the ball than the least under that law.

The budget is one of mean distortion under the counts, at whatever law information is measured: the
distances of a column are multiplied by its probability in the counts over that in the law.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import minimize_scalar

from privpipe.errors import OptionError
from privpipe.numerics.mapping.certificate import certify_mapping
from privpipe.numerics.mapping.held_out_information import measure_gains
from privpipe.numerics.mapping.likelihood_ball import bound_over_ball, find_worst_law
from privpipe.numerics.mapping.problem.distortion import CodeDistance, DistanceKind
from privpipe.protocols import FloatArray
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, UnseenPolicy

MOST_ROBUST_SYMBOLS = 4096
"""Distances are held as a matrix; with more profiles the ball holds nearly every law anyway."""

_ROUNDS = 8
_PRIOR_RECORDS = 1e-6
"""Mixed into the prior, which must be positive where the counts have nobody."""


def solve_robust_mapping(
    joint: npt.ArrayLike,
    codes: npt.ArrayLike,
    distortion: DistanceKind = "hamming",
    *,
    distortion_budget: float,
    radius: float,
    gap: float = 1e-4,
    max_seconds: float = np.inf,
    unseen: UnseenPolicy = "nearest",
) -> SparseMapping:
    """Find the mapping whose information under the worst law of a ball is the least.

    Minimise, over mappings of mean distortion within the budget under `joint`, the largest mutual
    information of private value and released symbol over all laws p on the cells of `joint` with
    ``KL(joint || p) <= radius``.

    Parameters
    ----------
    joint, codes, distortion, distortion_budget, max_seconds, unseen
        As of `solve_privacy_mapping`; `joint` are counts, divided by their sum.
    radius
        Nats, positive.
    gap
        Wanted certified gap of each plain problem, nats.

    Returns
    -------
    mapping
        `information` and `lower_bound` are those under `joint` itself, so that its `gap` is what
        robustness costs there. Its guarantee's parameters give `robust_radius`, `robust_at_most`
        (no law of the ball is told more) and `robust_at_least` (no mapping within the budget is
        better for its own worst law), nats.

    Raises
    ------
    OptionError
        If the radius is not positive, or there are more profiles than `MOST_ROBUST_SYMBOLS`.

    Notes
    -----
    Guarantee: both numbers are certified, the upper by any point of the ball's dual, the lower by
    `certify_mapping` at a law of the ball. Their difference does not vanish: the divergence of
    posteriors is bounded by about the radius itself, once for all laws.

    References
    ----------
    Bertsimas, Gupta and Kallus 2018, Robust sample average approximation; Agrawal 2020 for radii.

    Examples
    --------
    >>> joint = np.array([[0.4, 0.1], [0.1, 0.4]])
    >>> mapping = solve_robust_mapping(joint, [[0], [1]], distortion_budget=0.25, radius=0.01)
    >>> said = dict(mapping.guarantee.parameters)
    >>> mapping.information < said["robust_at_least"] < said["robust_at_most"] < 0.2
    True
    """
    p, x = np.asarray(joint, dtype=np.float64), np.asarray(codes)
    x = x[:, None] if x.ndim == 1 else x
    _check(x, radius)
    ball = _Ball(p / p.sum(), x, CodeDistance(distortion, *2 * (x.astype(np.float64),)), radius)
    began = time.monotonic()
    plain = solve_privacy_mapping(
        ball.centre,
        x,
        distortion,
        distortion_budget=distortion_budget,
        gap=gap,
        max_seconds=max_seconds / 2,
        unseen=unseen,
    )
    best, lower, law = _Candidate.of(ball, plain.mapping), plain.lower_bound, ball.centre
    last = plain
    for number in range(1, _ROUNDS + 1):
        left = max_seconds - (time.monotonic() - began)
        if best.upper - lower <= gap or (left < np.inf and left <= max_seconds / 4):
            break
        worst = ball.find_worst(last.mapping, law)
        law = worst if number == 1 else law + (worst - law) / number
        last = solve_privacy_mapping(
            law,
            x,
            ball.scale_distances(law),
            distortion_budget=distortion_budget,
            gap=gap,
            start=last,
            max_seconds=left / 2,
        )
        lower = max(lower, last.lower_bound)
        best = best.step_towards(ball, last.mapping)
    return _store(ball, plain, best, lower)


@dataclass(frozen=True, eq=False)
class _Ball:
    centre: FloatArray
    codes: npt.NDArray[Any]
    distance: CodeDistance
    radius: float

    def bound(self, matrix: sp.csc_array) -> float:
        """No law of the ball is told more by this mapping."""
        prior = self.centre.sum(axis=1) + _PRIOR_RECORDS
        masses = np.asarray((matrix @ self.centre.T).T)
        return bound_over_ball(masses, prior / prior.sum(), self.radius)

    def find_worst(self, matrix: sp.csc_array, law: FloatArray) -> FloatArray:
        """Where the information that this mapping leaks rises the most, seen from a law."""
        prior = law.sum(axis=1) + _PRIOR_RECORDS
        gains = measure_gains(np.asarray((matrix @ law.T).T), prior / prior.sum())
        told = np.asarray((matrix.T @ gains.T).T)
        return find_worst_law(told, self.centre, self.radius)

    def scale_distances(self, law: FloatArray) -> FloatArray:
        """Distances, original by released, whose mean under the law is that under the centre."""
        mass, here = self.centre.sum(axis=0), law.sum(axis=0)
        scale = np.where(here > 0, mass / np.where(here > 0, here, 1.0), 1.0)
        return np.asarray(self.distance.block(0, len(self.codes)) * scale[:, None])


@dataclass(frozen=True, eq=False)
class _Candidate:
    matrix: sp.csc_array
    upper: float

    @classmethod
    def of(cls, ball: _Ball, matrix: sp.csc_array) -> _Candidate:
        return cls(matrix, ball.bound(matrix))

    def step_towards(self, ball: _Ball, other: sp.csc_array) -> _Candidate:
        """The best found on the way to another mapping, both ends among them."""
        away = other - self.matrix

        def upper(share: float) -> float:
            return ball.bound(self.matrix + share * away)

        found = minimize_scalar(upper, bounds=(0, 1), method="bounded", options={"xatol": 1e-3})
        between = _Candidate.of(ball, sp.csc_array(self.matrix + found.x * away))
        return min([self, between, _Candidate.of(ball, other)], key=lambda one: one.upper)


def _check(codes: npt.NDArray[Any], radius: float) -> None:
    if not 0 < radius < np.inf:
        raise OptionError(f"radius is {radius} nats.", remedy="Use a positive number.")
    if len(codes) > MOST_ROBUST_SYMBOLS:
        raise OptionError(
            f"{len(codes):,} profiles are too many for a robust mapping, which takes "
            f"{MOST_ROBUST_SYMBOLS:,}.",
            remedy='Set most_frequent to fewer, or robust = "none".',
            code="robust-profiles",
        )


def _store(ball: _Ball, plain: SparseMapping, best: _Candidate, lower: float) -> SparseMapping:
    """The mapping found, certified under the centre with the potentials of the plain one."""
    matrix = best.matrix.sorted_indices()
    proof = certify_mapping(
        ball.centre,
        ball.codes,
        matrix,
        multiplier=plain.multiplier,
        potentials=plain.potentials,
        distortion=ball.distance.kind,
        distortion_budget=plain.distortion_budget,
    )
    numbers = (
        ("robust_radius", ball.radius),
        ("robust_at_most", best.upper),
        ("robust_at_least", min(lower, best.upper)),
    )
    return replace(
        plain,
        pointers=matrix.indptr.astype(np.int64),
        released=matrix.indices.astype(np.int64),
        probabilities=np.asarray(matrix.data, dtype=np.float64),
        information=proof.information,
        lower_bound=min(proof.lower_bound, proof.information),
        distortion=proof.distortion,
        guarantee=replace(plain.guarantee, number=proof.information, parameters=numbers),
    )
