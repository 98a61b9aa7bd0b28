"""What a mapping reveals in the worst case: odds, leakage, local privacy.

All for the law given; an average in nats may hide a symbol that gives a value away.
"""

import numpy as np
import scipy.sparse as sp

from privpipe.protocols import FloatArray


def measure_worst_cases(joint: FloatArray, mapping: sp.csc_array) -> dict[str, float]:
    """Read the worst cases off a mapping.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        Joint probabilities of private value and original symbol.
    mapping : (n_symbols, n_symbols), sparse
        Probability of each released symbol (row) given the original one (column).

    Returns
    -------
    posterior_odds
        Largest ratio of posterior to prior odds of two private values by a released symbol; 1
        reveals nothing, infinite excludes a value.
    pointwise_leakage
        Logarithm of the largest ratio of posterior to prior (Saeidian et al. 2023, Theorem 1),
        nats.
    maximal_leakage
        Of the whole mapping, nats (Issa, Wagner and Kamath 2020, Theorem 1): the logarithm of how
        much better any function of the private value is guessed, at most.
    local_dp_epsilon
        Of local differential privacy over the original symbols: the largest logarithm of a ratio of
        probabilities of one released symbol; infinite where some original cannot become it.

    Examples
    --------
    >>> law = np.array([[0.4, 0.1], [0.1, 0.4]])
    >>> found = measure_worst_cases(law, sp.csc_array(np.eye(2)))
    >>> round(found["posterior_odds"], 6), round(np.exp(found["maximal_leakage"]).item(), 6)
    (4.0, 1.6)
    """
    # A private value that no record has would make every odds infinite.
    known = joint[joint.sum(axis=1) > 0]
    given = np.asarray((mapping @ (known / known.sum(axis=1, keepdims=True)).T).T)
    released = np.asarray(mapping @ known.sum(axis=0))
    given, released = given[:, released > 0], released[released > 0]
    top = given.max(axis=0)
    with np.errstate(divide="ignore"):
        odds = top / given.min(axis=0)
    return {
        "posterior_odds": float(odds.max()),
        "pointwise_leakage": float(np.log(top / released).max()),
        "maximal_leakage": max(0.0, float(np.log(top.sum()))),
        "local_dp_epsilon": _measure_epsilon(mapping),
    }


def _measure_epsilon(mapping: sp.csc_array) -> float:
    rows = sp.csr_array(mapping)
    rows.eliminate_zeros()
    sizes = np.diff(rows.indptr)
    # A released symbol that some original cannot become excludes that original.
    if ((sizes > 0) & (sizes < mapping.shape[1])).any():
        return float("inf")
    starts = rows.indptr[:-1][sizes > 0]
    top = np.maximum.reduceat(rows.data, starts)
    least = np.minimum.reduceat(rows.data, starts)
    return float(np.log(top / least).max())
