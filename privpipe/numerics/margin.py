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

    Parameters
    ----------
    predictor_norm
        Frobenius norm of the predictor ``A``.
    encoder
        Frobenius norm of ``A - E W^T``.
    lift : (rank,)
        Norms of the columns of ``A^T D - W``.
    reach : (rank,)
        Norms of the columns of ``D``.
    centre_norm
        Norm of the centre.
    length
        Bound on the number of terms in any sum.
    """

    predictor_norm: float
    encoder: float
    lift: FloatArray
    reach: FloatArray
    centre_norm: float
    length: int


@dataclass(frozen=True, eq=False)
class RoundingMargin:
    """Margin of a record: ``per_record |x| + per_coordinate . |b| + constant``.

    Parameters
    ----------
    per_record
        In units of the prediction per unit of the record's norm.
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
    predictor: FloatArray, encoder: FloatArray, lift: FloatArray, centre: FloatArray
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
    """
    turned = predictor.T @ lift
    w = _find_turn(predictor, encoder)
    return Defects(
        predictor_norm=float(np.linalg.norm(predictor)),
        encoder=float(np.linalg.norm(predictor - encoder @ w.T)),
        lift=np.linalg.norm(turned - w, axis=0),
        reach=np.linalg.norm(lift, axis=0),
        centre_norm=float(np.linalg.norm(centre)),
        length=sum(predictor.shape) + encoder.shape[1] + 8,
    )


def _find_turn(predictor: FloatArray, encoder: FloatArray) -> FloatArray:
    """``W`` from ``A = E W^T``, the largest directions first: errors in small ones stay there."""
    u, _, vt = np.linalg.svd(encoder, full_matrices=False)
    q, r = np.linalg.qr(predictor.T @ u)
    turn: FloatArray = (q * np.where(np.diag(r) < 0, -1.0, 1.0)) @ vt
    return turn


def plan_margin(defects: Defects, root: float, released_dtype: np.dtype[Any]) -> RoundingMargin:
    """Bound what rounding adds to the root of a record's loss of utility.

    Parameters
    ----------
    defects
        Of the cleaner.
    root
        Root of the utility budget.
    released_dtype
        Floating dtype of the released record.

    Returns
    -------
    RoundingMargin
        Spending ``max(0, root - margin)**2`` keeps every stored record within the budget.

    Notes
    -----
    Guarantee: with c the centre, b the coordinates of ``x - c`` and b~ what is kept of them, the
    loss of the stored record is at most ``|b - b~| + |A - E W^T| |x - c| + |(A^T D - W) b~|``
    plus ``|A|`` times the rounding of the record: unit roundoff of the released dtype (and half
    its smallest subnormal per feature) from storing, and at most ``length * 2**-53`` relative to
    ``|x| + |c| + sum(|D_j| |b_j|)`` from each of the sums that make b and x~. These sums, the
    sums of the shrinking, and those of a reader who checks in float64 are covered by the 4.
    """
    info = np.finfo(released_dtype)
    arithmetic = 4 * defects.length * UNIT * defects.predictor_norm
    storing = float(info.eps) / 2 * defects.predictor_norm
    subnormal = float(info.smallest_subnormal) * np.sqrt(defects.length) * defects.predictor_norm
    slack = 1 + 1e-9  # of the margin's own arithmetic
    return RoundingMargin(
        per_record=slack * (arithmetic + defects.encoder),
        per_coordinate=slack * ((arithmetic + storing) * defects.reach + defects.lift),
        constant=slack
        * (
            (2 * arithmetic + storing + defects.encoder) * defects.centre_norm
            + subnormal
            + 4 * defects.length * UNIT * root
        ),
    )
