"""Mutual information between a private variable and a released symbol, and its gradient.

Salamatian et al., SPPM, section 2. Joint masses are stored symbols first: ``masses[i, a]`` is
the probability that symbol i is released and the private value is a.
"""

from __future__ import annotations

import numpy as np
from scipy.special import rel_entr

from privpipe.protocols import FloatArray, IntArray

LOWEST = -690.0
"""Stands for the logarithm of nothing: exp of it is still a normal float64."""


def measure_information(masses: FloatArray) -> float:
    """Mutual information of private value and released symbol, in nats.

    Parameters
    ----------
    masses : (n_symbols, n_private)
        Joint probabilities; an empty cell adds nothing.

    Returns
    -------
    information
        ``sum(masses * log(masses / (p_a * q_i)))``, not negative.

    References
    ----------
    Salamatian et al., equation (1).

    Examples
    --------
    >>> round(measure_information(np.eye(2) / 2), 6)
    0.693147
    """
    product = masses.sum(1, keepdims=True) * masses.sum(0, keepdims=True)
    return max(0.0, float(rel_entr(masses, product / masses.sum()).sum()))


def log_ratios(masses: FloatArray) -> FloatArray:
    """Gradient of the information: log of posterior over prior of each private value.

    The derivative for the joint mass of the pair (symbol i, column j) is the inner product of
    row i with the posterior of column j. The second term of the gradient printed in the paper
    (section 3.4) cancels identically.

    Parameters
    ----------
    masses : (n_symbols, n_private)

    Returns
    -------
    ratios : (n_symbols, n_private)
        In nats; `LOWEST` where the posterior is 0, and 0 for symbols never released, which is
        a subgradient there.
    """
    q = masses.sum(1, keepdims=True)
    prior = masses.sum(0) / masses.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(masses / (prior * q))
    return np.where(q > 0, np.maximum(ratios, LOWEST), 0.0)


def normalise_potentials(potentials: FloatArray, prior: FloatArray) -> FloatArray:
    """Shift each symbol's potentials so that ``sum_a p_a exp(g_ia) = 1``.

    Parameters
    ----------
    potentials : (n_symbols, n_private)
        In nats.
    prior : (n_private,)

    Returns
    -------
    potentials : (n_symbols, n_private)
    """
    top = potentials.max(axis=1, keepdims=True)
    total = np.exp(potentials - top) @ prior
    return np.asarray(potentials - top - np.log(total)[:, None])


def released_masses(
    symbols: IntArray, weights: FloatArray, posterior: FloatArray, n_symbols: int
) -> FloatArray:
    """Joint masses of released symbol and private value from the masses of pairs.

    Parameters
    ----------
    symbols : (n_pairs,)
        Released symbol of each pair.
    weights : (n_pairs,)
        Joint mass of each pair.
    posterior : (n_pairs, n_private)
        Probabilities of the private values given the pair's original symbol.
    n_symbols

    Returns
    -------
    masses : (n_symbols, n_private)
    """
    columns = [
        np.bincount(symbols, weights * posterior[:, a], n_symbols)
        for a in range(posterior.shape[1])
    ]
    return np.stack(columns, axis=1)
