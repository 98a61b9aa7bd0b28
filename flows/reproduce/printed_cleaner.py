"""Algorithm 2 with its coefficients as Figure 3 has them, to show what that protects: nothing.

Xu et al. 2017. No method of the package offers it. Models of it, as an earlier version wrote
them, open where this module was imported.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, replace
from functools import cached_property
from typing import Any, ClassVar, Unpack

import numpy as np

from flows.reproduce.augmented_knapsack import solve_augmented_knapsack
from privpipe.described import record_map
from privpipe.errors import PrivacyWarning
from privpipe.numerics.null_space.cleaning import CleanedBlock
from privpipe.numerics.null_space.factorisation import SAME_RANGE
from privpipe.numerics.null_space.rounding_margin import UNIT
from privpipe.protocols import ArrayLike, FloatArray, Guarantee
from privpipe.sanitizers import RECORD_MAPS
from privpipe.sanitizers.arrays import as_predictor, check_confidential
from privpipe.sanitizers.null_space import linear_cleaner


@record_map
class PrintedCleaner(linear_cleaner.LinearCleaner):
    """Figure 3 verbatim, for reproductions only: ``x~ = x - V (alpha a)`` with ``a = V^T x``.

    The vectors are not orthogonal. The bound on utility holds, but what is subtracted is no
    projection: vectors of the null space are added, and an adversary who retrains sees nearly
    everything.

    The encoder holds V, the lift its dual basis, so that ``x~ = lift a - V (alpha a)`` without
    the null space that both predictors share. Being no projection it may release features far
    larger than those it was given: of oes97 with a column of ones no record fits float32 at .01
    (margin 40, root of the budget .1), all fit float64. Two records of equal desired prediction
    are *not* released equal: the null space is in what is released, and in the rounding margin,
    which grows with the record. For the other fields see `LinearCleaner`.

    Parameters
    ----------
    cost, gain : (rank,)
        ``lambda_j`` of the desired and of the confidential predictor.
    """

    kind: ClassVar[str] = "printed_cleaner"
    theorem: ClassVar[str] = "Xu et al. 2017, Theorem 3"

    rule: str = "printed"
    _: KW_ONLY
    cost: FloatArray
    gain: FloatArray

    @classmethod
    def from_predictors(
        cls,
        desired_predictor: ArrayLike,
        confidential_predictor: ArrayLike,
        *,
        utility_budget: float,
        **choices: Unpack[linear_cleaner.CleanerChoices],
    ) -> PrintedCleaner:
        """Make the cleaner verbatim; see `TargetedCleaner.from_predictors`.

        What is chosen for a projection does not count: centre, representative and covariance.

        Warns
        -----
        PrivacyWarning
            Always.
        """
        warnings.warn(
            "The printed form of algorithm 2 protects next to nothing against an adversary who "
            'retrains. Use variant = "null_first" or "simultaneous" for anything but a '
            "reproduction.",
            PrivacyWarning,
            stacklevel=3,
        )
        predictor = as_predictor(desired_predictor)
        confidential = check_confidential(confidential_predictor, predictor)
        vectors, dual, cost, gain = diagonalise_printed(predictor, confidential)
        choices |= {"centre": None, "representative": "closest"}
        fields = linear_cleaner.check_fields(predictor, utility_budget, **choices)
        return cls(encoder=vectors, lift=dual, cost=cost, gain=gain, **fields)

    @property
    def guarantee(self) -> Guarantee:
        """The bound on utility, with the reason why it is not for use."""
        return replace(
            super().guarantee,
            assumptions="For reproductions only: an adversary who retrains on released records "
            "recovers nearly all confidential predictions.",
        )

    def _clean(self, x: FloatArray, dtype: np.dtype[Any], **_: Any) -> CleanedBlock:
        # For reproductions: what it takes does not count, and it is no function of a target.
        if self.augmented:
            x = np.column_stack([x, np.ones(len(x))])
        x = x.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            a = x @ self.encoder
            root = np.sqrt(self.utility_budget)
            margin = self._measure_margin(x, a, dtype) if root else np.zeros(len(x))
            withheld = ~(margin <= root) | ~np.isfinite(a).all(axis=1)
        a[withheld] = 0.0
        left = np.where(withheld, 0.0, root - margin) ** 2 / self._turning
        # As printed: alpha a is subtracted along vectors that are not orthogonal.
        alpha = self._remove(a, left)
        released = a @ self.lift.T - (alpha * a) @ self.encoder.T
        released = released.astype(dtype)
        released[withheld] = np.nan
        return CleanedBlock(released, (self.cost * (alpha * a) ** 2).sum(axis=1), withheld)

    def _remove(self, a: FloatArray, budget: FloatArray) -> FloatArray:
        """Shares, record by record's own budget: costs are scaled to a common budget of 1."""
        # The knapsack takes one budget for all; where there is none, the shares are zeroed below.
        scale = np.where(budget > 0, budget, 1.0)[:, None]
        cost = np.where(self.cost > 0, self.cost * a * a / scale, 0.0)
        alpha = solve_augmented_knapsack(self.gain * a * a / scale, cost, 1.0)
        return np.where((budget > 0)[:, None] | (self.cost == 0), alpha, 0.0)

    @cached_property
    def _turning(self) -> float:
        """Largest factor by which ``A^T V`` stretches what its columns' norms account for."""
        seen = self.predictor.T @ self.encoder[:, self.cost > 0]
        scaled = seen / np.sqrt(self.cost[self.cost > 0])
        return max(1.0, float(np.linalg.norm(scaled, 2) ** 2))

    def _measure_margin(self, x: FloatArray, a: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
        """As `plan_margin`, for two bases; what the null vectors still show counts in full."""
        weights = np.linalg.norm(self.predictor, axis=1)
        arithmetic = 4 * (sum(self.encoder.shape) + 8) * UNIT
        storing = float(np.finfo(dtype).eps) / 2
        sizes = weights @ (np.abs(self.lift) + np.abs(self.encoder))
        unseen = np.linalg.norm(self.predictor.T @ self.encoder, axis=0) * (self.cost == 0)
        gap = np.linalg.norm(self.predictor - self.encoder @ (self.lift.T @ self.predictor), axis=1)
        margin: FloatArray = (
            np.abs(x) @ (arithmetic * weights + gap)
            + np.abs(a) @ ((arithmetic + storing) * sizes + unseen)
            + float(np.finfo(dtype).smallest_subnormal) * weights.sum()
        )
        return margin


def diagonalise_printed(
    predictor: FloatArray, confidential: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The generalised eigenvectors of Figure 3, and their dual basis.

    Parameters
    ----------
    predictor, confidential : (n_features, n_desired), (n_features, n_confidential)
        ``A_d`` and ``A_c``; both are diagonalised inside the range of the two together, and
        vectors are scaled to ``v^T (A_d A_d^T + A_c A_c^T) v = 1``.

    Returns
    -------
    vectors : (n_features, q)
        ``V``, by decreasing ratio of confidential to desired.
    dual : (n_features, q)
        ``V^T dual`` is the identity.
    desired, confidential : (q,)
        ``|A_d^T v_j|**2`` (0 in its null space) and ``|A_c^T v_j|**2``.
    """
    u, s, zt = np.linalg.svd(np.hstack([predictor, confidential]), full_matrices=False)
    rank = int(np.count_nonzero(s > SAME_RANGE * s[0]))
    u, s, zt = u[:, :rank], s[:rank], zt[:rank]
    # In the whitened range both sums of squares add up to one: one SVD diagonalises both.
    _, shares, right = np.linalg.svd(zt[:, : predictor.shape[1]].T, full_matrices=True)
    shares = np.pad(shares, (0, rank - len(shares)))[::-1] ** 2
    turn = right[::-1].T
    # Below, a direction is in the null space of the desired predictor but for rounding: it is free.
    cost = np.where(shares > 1e-12, shares, 0.0)
    return u @ (turn / s[:, None]), u @ (turn * s[:, None]), cost, np.maximum(1.0 - shares, 0.0)


RECORD_MAPS[PrintedCleaner.kind] = PrintedCleaner
