"""What a mapping reveals in the worst case: odds, leakage, local privacy.

An average in nats may hide a symbol that gives a value away. `measure_worst_cases` reads them off a
law; `bound_worst_cases` bounds them for the law behind records that did not choose the mapping.
"""

import numpy as np
import scipy.sparse as sp

from privpipe.numerics.mapping.law_bounds import bound_shares
from privpipe.protocols import FloatArray

_MOST_EXCEPTED = 0.01
"""Of released records, about how many may have a symbol that is too rare to be judged."""


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
        Of the whole mapping, nats (Issa, Wagner and Kamath 2020, Theorem 1). It is the logarithm of
        how much better any function of the private value is guessed, at most.
    local_dp_epsilon
        Of local differential privacy over the original symbols. It is the largest logarithm of a
        ratio of probabilities of one released symbol, infinite where some original cannot become
        it.

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
        "local_dp_epsilon": measure_epsilon(mapping),
    }


def bound_worst_cases(
    fitted: FloatArray, fresh: FloatArray, mapping: sp.csc_array, miss: float
) -> dict[str, float]:
    """Bound pointwise leakage and posterior odds of all released symbols but rare ones.

    Parameters
    ----------
    fitted : (n_private, n_symbols)
        Joint probabilities by which the mapping was chosen. They choose the excepted symbols too.
    fresh : (n_private, n_symbols)
        Records of each private value and original symbol that chose neither, at least one.
    mapping : (n_symbols, n_symbols), sparse
        Probability of each released symbol (row) given the original one (column).
    miss
        Probability with which any of the bounds may fail.

    Returns
    -------
    excepted_at_most
        Share of the released records whose symbol the next two say nothing of: the delta.
    pointwise_leakage_at_most
        Logarithm of the largest ratio of posterior to prior of a private value, nats: the epsilon.
    posterior_odds_at_most
        Largest ratio of posterior to prior odds of two private values.

    Notes
    -----
    Guarantee: with probability ``1 - miss`` all three hold, for any law of which the fresh records
    are independent draws. A probability of being released as y is the mean of ``W(y|x)``, a
    variable between 0 and its largest entry; see `bound_shares`. The kind of promise is that of
    Grosse, Saeidian, Skoglund and Oechtering (arXiv 2509.22428); the bounds are Hoeffding's.
    """
    used = np.flatnonzero(mapping.max(axis=1).toarray().ravel() > 0)
    rows = mapping[used]
    most, n = rows.max(axis=1).toarray().ravel(), float(fresh.sum())
    each = miss / (4 * len(fitted) * (len(used) + 1) + 1)

    def limit(law: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of leakage and odds, by released symbol, if records have this law."""
        masses = np.asarray((rows @ law.T).T)
        rest = np.maximum(masses.sum(axis=0) - masses, 0)
        prior = law.sum(axis=1, keepdims=True)
        low, high = (_bound(masses, most, n, each, upper=one) for one in (False, True))
        least, largest = (_bound(prior, 1.0, n, each, upper=one) for one in (False, True))
        least_rest = _bound(rest, most, n, each, upper=False)
        with np.errstate(divide="ignore"):
            posterior = high / (high + least_rest)
            odds = (high / least).max(axis=0) / (low / largest).min(axis=0)
            # Or by what is released of any record: enough where a private value is rare.
            ratio = np.minimum(posterior / least, most / (low + least_rest).max(axis=0))
            return np.log(ratio).max(axis=0), odds

    masses = rows @ fitted.sum(axis=0)
    order = np.argsort(-limit(fitted)[0], kind="stable")
    excepted = order[: int((masses[order].cumsum() <= _MOST_EXCEPTED).sum())]
    named = np.delete(np.arange(len(used)), excepted)
    law = fresh / n
    share = np.atleast_1d(rows[excepted].sum(axis=0) @ law.sum(axis=0))
    leakage, odds = (float(one[named].max(initial=0.0)) for one in limit(law))
    return {
        "excepted_at_most": float(_bound(share, 1.0, n, each, upper=True)[0]),
        "pointwise_leakage_at_most": leakage,
        "posterior_odds_at_most": odds,
    }


def _bound(
    means: FloatArray, most: FloatArray | float, n: float, miss: float, *, upper: bool
) -> FloatArray:
    """Bounds on means of variables between 0 and `most`."""
    return most * bound_shares(np.minimum(means / most, 1.0), n, miss, upper=upper)


def measure_epsilon(mapping: sp.csc_array, nothing: float = 0.0) -> float:
    """Largest logarithm of a ratio of two originals' probabilities of one released symbol.

    A released symbol that some original cannot become excludes that original: the ratio is
    infinite, or that to `nothing`.
    """
    rows = sp.csr_array(mapping)
    rows.eliminate_zeros()
    sizes = np.diff(rows.indptr)
    starts = rows.indptr[:-1][sizes > 0]
    least = np.minimum.reduceat(rows.data, starts)
    least[sizes[sizes > 0] < mapping.shape[1]] = nothing
    with np.errstate(divide="ignore"):
        return float(np.log(np.maximum.reduceat(rows.data, starts) / least).max())
