"""What a mapping reveals in the worst case: odds, leakage, local privacy.

All for the law given; an average in nats may hide a symbol that gives a value away.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from privpipe.protocols import FloatArray


@dataclass(frozen=True, eq=False)
class WorstCases:
    """Worst-case readings of a mapping.

    Parameters
    ----------
    odds : (n_symbols,)
        Per released symbol the largest ratio of posterior to prior odds of two private values; 1
        reveals nothing, infinite excludes a value. 1 for symbols that are never released.
    leakage : (n_symbols,)
        Per released symbol the pointwise maximal leakage in nats: the logarithm of the largest
        ratio of posterior to prior (Saeidian et al. 2023, Theorem 1). 0 where never released.
    released : (n_symbols,)
        Probability of each symbol.
    maximal_leakage
        Of the whole mapping, nats (Issa, Wagner and Kamath 2020, Theorem 1): the logarithm of how
        much better any function of the private value is guessed, at most.
    epsilon
        Of local differential privacy over the original symbols: the largest logarithm of a ratio of
        probabilities of one released symbol; infinite where some original cannot become it.
    """

    odds: FloatArray
    leakage: FloatArray
    released: FloatArray
    maximal_leakage: float
    epsilon: float


def measure_worst_cases(joint: FloatArray, mapping: sp.csc_array) -> WorstCases:
    """Read the worst cases off a mapping.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        Joint probabilities of private value and original symbol.
    mapping : (n_symbols, n_symbols), sparse
        Probability of each released symbol (row) given the original one (column).

    Examples
    --------
    >>> law = np.array([[0.4, 0.1], [0.1, 0.4]])
    >>> found = measure_worst_cases(law, sp.csc_array(np.eye(2)))
    >>> float(round(found.odds.max(), 6)), float(round(np.exp(found.maximal_leakage), 6))
    (4.0, 1.6)
    """
    # A private value that no record has would make every odds infinite.
    known = joint[joint.sum(axis=1) > 0]
    given = np.asarray((mapping @ (known / known.sum(axis=1, keepdims=True)).T).T)
    released = np.asarray(mapping @ known.sum(axis=0))
    used = released > 0
    odds, leakage = np.ones(len(released)), np.zeros(len(released))
    top, least = given[:, used].max(axis=0), given[:, used].min(axis=0)
    with np.errstate(divide="ignore"):
        odds[used] = top / least
        leakage[used] = np.log(top / released[used])
    total = float(given.max(axis=0).sum())
    return WorstCases(odds, leakage, released, max(0.0, float(np.log(total))), _epsilon(mapping))


def _epsilon(mapping: sp.csc_array) -> float:
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
