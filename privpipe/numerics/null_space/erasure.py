"""Linear concept erasure in closed form, from co-moments (Belrose et al. 2023, LEACE)."""

from __future__ import annotations

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.regression.moments import CoMoments, measure_scale
from privpipe.numerics.rounding import bound_rank_error
from privpipe.protocols import FloatArray


def solve_erasure(moments: CoMoments, n_features: int) -> tuple[FloatArray, FloatArray]:
    """The smallest change of records that leaves their targets uncorrelated with them.

    With ``W`` the pseudo-inverse root of the features' covariance and ``U`` an orthonormal basis
    of ``W cov(x, z)``, the erased record is ``x - W^+ U U^T W (x - mean)``: an oblique projection
    of the rank of the cross-covariance.

    Parameters
    ----------
    moments
        Of rows ``[features, targets]``.
    n_features
        How many of the columns are features.

    Returns
    -------
    left, right : (n_features, rank)
        ``W^+ U`` and ``W U``; ``right^T left`` is the identity. Rank 0 where nothing covaries.

    Raises
    ------
    InputError
        If there are fewer than two records.

    Notes
    -----
    Features are standardised first. The projection does not depend on their scales, the ranks
    found in float64 do: they count what exceeds the rounding of the co-moments on every
    processor (`bound_rank_error`).

    References
    ----------
    Belrose et al. 2023, LEACE: Perfect linear concept erasure in closed form, section 4.
    """
    if moments.count < 2:
        raise InputError(
            f"{moments.count:g} complete training records are too few to erase from.",
            remedy="Train on more records; records with missing labels do not count.",
        )
    scale = measure_scale(moments, n_features, with_intercept=True)
    covariance = moments.scatter / moments.count
    gram = covariance[:n_features, :n_features] / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(gram)
    rounding = bound_rank_error(n_features)
    seen = values > rounding * values[-1]
    values, vectors = values[seen], vectors[:, seen]
    spread = np.sqrt(np.diag(covariance)[n_features:])
    cross = covariance[:n_features, n_features:] / scale[:, None]
    cross = cross / np.where(spread > 0, spread, 1.0)
    # In the eigenbasis W is a diagonal: correlations of the whitened features with the targets.
    u, s, _ = np.linalg.svd((vectors.T @ cross) / np.sqrt(values)[:, None], full_matrices=False)
    # Whitening magnifies the rounding of the cross-covariance by the root of the condition; what
    # lies below is no correlation but the last bits of one, and differs from kernel to kernel.
    u = u[:, s > max(np.sqrt(n_features) * 2.0**-40, rounding / np.sqrt(values.min(initial=1.0)))]
    left = scale[:, None] * (vectors @ (np.sqrt(values)[:, None] * u))
    right = (vectors @ (u / np.sqrt(values)[:, None])) / scale[:, None]
    return left, right
