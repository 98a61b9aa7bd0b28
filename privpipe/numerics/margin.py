"""How much rounding may add to a record's loss of utility, bounded before it happens.

The bound of Xu et al. 2017, Theorem 1, holds in exact arithmetic. What is stored is rounded, and
encoder and lift are themselves computed; a cleaner spends that much less, so that the bound holds
for the record as stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.protocols import FloatArray

__all__ = ["Defects", "RoundingMargin", "measure_defects", "plan_margin"]

UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Defects:
    """How far encoder and lift are from the exact ones, and the sizes that rounding scales with.

    A vector v weighs ``sum_i |A_i| |v_i|``, with A_i the rows of ``A``: what an error in
    proportion to each of its features costs. Where large features have small coefficients this
    is far below ``|A| |v|``.

    Parameters
    ----------
    predictor_norm, given_norm
        Frobenius norm of the predictor ``A``, and without the rows of appended features.
    encoder, given_encoder
        Frobenius norm of ``A - E W^T``, and without those rows.
    lift : (rank,)
        Norms of the columns of ``A^T D - W``.
    reach : (rank,)
        Norms of the columns of ``D``.
    weighed_reach : (rank,)
        Weights of the columns of ``D``.
    weighed_centre, weighed_appended
        Weights of the centre and of the appended ones.
    missed
        What ``A - E W^T`` makes of centre and appended ones at most.
    coefficient_sum
        Sum of the norms of the rows of ``A``.
    length
        Bound on the number of terms in any sum.
    """

    predictor_norm: float
    given_norm: float
    encoder: float
    given_encoder: float
    lift: FloatArray
    reach: FloatArray
    weighed_reach: FloatArray
    weighed_centre: float
    weighed_appended: float
    missed: float
    coefficient_sum: float
    length: int


@dataclass(frozen=True, eq=False)
class RoundingMargin:
    """Margin of a record: ``per_record |x| + per_coordinate . |b| + constant``.

    Parameters
    ----------
    per_record
        In units of the prediction per unit of the norm of the record as it is given.
    per_coordinate : (rank,)
        Per unit of each coordinate.
    constant
        In units of the prediction.
    """

    per_record: float
    per_coordinate: FloatArray
    constant: float

    def measure(self, record_norm: FloatArray, coordinates: FloatArray) -> FloatArray:
        """Margins of records, (n_records,), in units of the desired prediction."""
        with np.errstate(over="ignore"):
            margin: FloatArray = (
                self.per_record * record_norm
                + np.abs(coordinates) @ self.per_coordinate
                + self.constant
            )
        return margin


def measure_defects(
    predictor: FloatArray,
    encoder: FloatArray,
    lift: FloatArray,
    centre: FloatArray,
    *,
    n_appended: int = 0,
) -> Defects:
    """Measure what an encoder and a lift of a predictor miss.

    ``W`` is a matrix with orthonormal columns for which ``A = E W^T`` and ``A^T D = W`` in exact
    arithmetic; any will do for the bound, a good one keeps it narrow.

    Parameters
    ----------
    predictor : (n_features, n_desired)
        ``A``.
    encoder, lift : (n_features, rank)
        ``E`` and ``D``.
    centre : (n_features,)
        Zero point of the coordinates.
    n_appended
        How many of the last features are ones that cleaning appends to a record.
    """
    turned = predictor.T @ lift
    w = _find_turn(predictor, encoder)
    missed = predictor - encoder @ w.T
    given = slice(len(predictor) - n_appended)
    appended = (np.arange(len(predictor)) >= given.stop).astype(np.float64)
    weights = np.linalg.norm(predictor, axis=1)
    return Defects(
        predictor_norm=float(np.linalg.norm(predictor)),
        given_norm=float(np.linalg.norm(predictor[given])),
        encoder=float(np.linalg.norm(missed)),
        given_encoder=float(np.linalg.norm(missed[given])),
        lift=np.linalg.norm(turned - w, axis=0),
        reach=np.linalg.norm(lift, axis=0),
        weighed_reach=weights @ np.abs(lift),
        weighed_centre=float(weights @ np.abs(centre)),
        weighed_appended=float(weights @ appended),
        missed=float(np.linalg.norm(missed, axis=1) @ (np.abs(centre) + appended)),
        coefficient_sum=float(weights.sum()),
        length=sum(predictor.shape) + encoder.shape[1] + 8,
    )


def _find_turn(predictor: FloatArray, encoder: FloatArray) -> FloatArray:
    """``W`` from ``A = E W^T``, the largest directions first: errors in small ones stay there."""
    u, _, vt = np.linalg.svd(encoder, full_matrices=False)
    q, r = np.linalg.qr(predictor.T @ u)
    turn: FloatArray = (q * np.where(np.diag(r) < 0, -1.0, 1.0)) @ vt
    return turn


def plan_margin(
    defects: Defects, root: float, released_dtype: np.dtype[Any], *, storing: bool = True
) -> RoundingMargin:
    """Bound what rounding adds to the root of a record's loss of utility.

    Parameters
    ----------
    defects
        Of the cleaner.
    root
        Root of the utility budget.
    released_dtype
        Floating dtype of the released record.
    storing
        Include the rounding of the stored record; without it the margin is that of the float64
        arithmetic, for those who measure what storing cost.

    Returns
    -------
    RoundingMargin
        Spending ``max(0, root - margin)**2`` keeps every stored record within the budget.

    Notes
    -----
    Guarantee: with c the centre, b the coordinates of ``x - c`` and b~ what is kept of them, the
    loss of the stored record is at most ``|b - b~| + |A - E W^T| |x - c| + |(A^T D - W) b~|``
    plus the rounding e of the record, which costs ``|A^T e| <= sum |A_i| |e_i|``: of each feature
    the unit roundoff of the released dtype (and half its smallest subnormal) from storing, and
    at most ``length * 2**-53`` relative to ``|x| + |c| + sum(|D_j| |b_j|)`` from each of the sums
    that make b and x~. These sums, the sums of the shrinking, and those of a reader who checks
    in float64 are covered by the 4.
    """
    info = np.finfo(released_dtype)
    arithmetic = 4 * defects.length * UNIT
    unit = float(info.eps) / 2 if storing else 0.0
    subnormal = float(info.smallest_subnormal) * defects.coefficient_sum
    slack = 1 + 1e-9  # of the margin's own arithmetic
    fixed = (2 * arithmetic + unit) * defects.weighed_centre
    fixed += 2 * arithmetic * defects.weighed_appended
    return RoundingMargin(
        per_record=slack * (arithmetic * defects.given_norm + defects.given_encoder),
        per_coordinate=slack * ((arithmetic + unit) * defects.weighed_reach + defects.lift),
        constant=slack * (fixed + defects.missed + subnormal + arithmetic * root),
    )
