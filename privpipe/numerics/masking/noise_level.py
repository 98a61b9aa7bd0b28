"""The noise of low-rank records, read off the spectrum of their moments."""

from __future__ import annotations

import math

import numpy as np

from privpipe.protocols import FloatArray

SPREAD = 1.05
"""How much wider than the limit of random matrices a bulk of noise may be."""

CLEAR = 1.5
"""How far above the limit of the bulk the next eigenvalue stands: it is no part of it."""

UNEVEN = 2.0
"""The same of noise that differs from feature to feature, as that of standardised features does."""

FAR = 6.0
"""How far the next eigenvalue must stand above such an uneven bulk."""

LEAST_UNEVEN = 8
"""Directions below which an uneven bulk is not told from features that hardly vary."""

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
    what is above stands far: noise of equal features differs once these are standardised.

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
    if values[0] <= len(values) * 1e-13 * values[-1]:
        return 0.0
    noise = 0.0
    for k in range(2, len(values)):
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
        told = 0.0 if explained is None else float(explained[:k].sum())
        if is_noise and told <= CHANCE * k / n_records:
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
