"""What a mapping reveals about the law, bounded by records that did not choose it.

Let ``p_ai`` be the true joint masses of private value and released symbol, and ``P_i`` their sums.
For any prior ``s_a`` and any *reference* ``t_ai`` of posteriors, each of sum at most 1 over the
values a,

    I <= E[log t_AI / s_A] + E[log p_A|I / t_AI],

because cross-entropy is at least entropy. Prior and reference come from the fitted records. So the
first term is the mean of a known function, and fresh records bound it by betting. The second is
the divergence K of the true posteriors from the reference, a mean of an unknown function d. Three
facts bound it.

- Its mean over the fresh records is at most the divergence K' of *their* posteriors from the
  reference. No posteriors have a larger likelihood than their own (Gibbs).
- ``E exp(-d) <= 1``, so that d is seldom far below 0, and ``d <= U``, the largest ``-log t_ai``.
- ``exp(-tilt u) - 1 + tilt u`` is at most rho times ``exp(-u) - 1 + u`` for every ``u <= U``. Here
  rho makes both equal at U.

Hence ``E exp(-tilt d) <= 1 - (tilt - rho) K``. By Chernoff's bound K is, but for a chance, at most
``(1 - exp(-log(1 / chance) / n - tilt K')) / (tilt - rho)``, whatever the tilt. What K' is too
large by is about cells / (2 n). Released masses are expectations over the mapping's own draws,
which makes it less. Where the reference is the prior itself, the first term is 0, and the whole
chance is the second one's. Where records are many, the posteriors fitted are the better reference.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from privpipe.numerics.mapping.law_bounds import bound_mean
from privpipe.protocols import FloatArray

# Of the chance to fail: the mean's. Of a reference that is the prior there is no mean.
_MEAN = 0.4
# Records of the prior that a symbol's posterior is mixed with; the best is taken.
_SHRUNK = (math.inf, 0.5, 2.0, 8.0, 32.0)
# Whichever is best may be taken, and none is wrong.
_TILTS = np.geomspace(1e-5, 0.99, 400)
# What `assurance` leaves of a chance of .05, for what is only expected.
_EXPECTED_MISS = 0.0375
# By how many records a cell's expectation is raised, where its own divergence is expected.
_RARE = 0.1


@dataclass(frozen=True, eq=False)
class Reference:
    """What is expected to be released, fixed before the fresh records are seen.

    Parameters
    ----------
    mapping : (n_symbols, n_symbols), sparse
        Probability of each released symbol (row) given the original one (column).
    prior : (n_private,)
        Of the private values, all positive; their sum is at most 1.
    posteriors : (n_private, n_symbols)
        Of private values given the released symbol, all positive; sums are at most 1.
    variance
        About that of the mean's function.
    """

    mapping: sp.csc_array
    prior: FloatArray
    posteriors: FloatArray
    variance: float = 0.0

    @property
    def is_prior(self) -> bool:
        """Whether no posterior differs from the prior."""
        return bool((self.posteriors == self.prior[:, None]).all())

    @property
    def gains(self) -> FloatArray:
        """Nats of the first term by private value and original symbol, (n_private, n_symbols)."""
        return np.asarray((self.mapping.T @ np.log(self.posteriors / self.prior[:, None]).T).T)

    def measure(self, released: FloatArray) -> float:
        """Divergence of the posteriors of masses, (n_private, n_symbols), from the reference's."""
        used = released > 0
        ratio = released / np.where(used, released.sum(axis=0) * self.posteriors, 1.0)
        return float((released * np.log(np.where(used, ratio, 1.0))).sum())


def make_reference(
    joint: FloatArray, mapping: sp.csc_array, prior: FloatArray, n_fitted: float, n_fresh: float
) -> Reference:
    """Choose the reference by the bound that it promises under the fitted law.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        The law fitted, smoothed or not.
    mapping : (n_symbols, n_symbols), sparse
    prior : (n_private,)
        See `Reference`.
    n_fitted, n_fresh
        Records the law was fitted on, and fresh ones to come.
    """
    return _find_reference(joint, mapping, prior, n_fitted, n_fresh)[1]


def expect_held_out_bound(
    joint: FloatArray, mapping: sp.csc_array, prior: FloatArray, n_fitted: float, n_fresh: float
) -> float:
    """About what the bound will be if the law is the fitted one; never part of a promise, nats.

    Parameters
    ----------
    joint, mapping, prior, n_fitted, n_fresh
        As of `make_reference`.
    """
    return _find_reference(joint, mapping, prior, n_fitted, n_fresh)[0]


def find_needed_records(
    joint: FloatArray, mapping: sp.csc_array, target: float, held_out: float
) -> float | None:
    """About how many records bring the held-out bound down to a target.

    Parameters
    ----------
    joint, mapping
        As of `make_reference`; private values without records are left out.
    target
        Nats.
    held_out
        Share of the records that is held out, positive.

    Returns
    -------
    n_records
        Within a tenth; None where the mapping reveals more under `joint` itself.

    Notes
    -----
    Guarantee: none; an expectation under `joint`.
    """
    sizes, used = np.geomspace(100, 1e12, 243), joint[joint.sum(axis=1) > 0]

    def is_enough(n: float) -> bool:
        parts = (1 - held_out) * n, held_out * n
        return expect_held_out_bound(used, mapping, used.sum(axis=1), *parts) <= target

    # By halving: what is expected falls with the records.
    found = bisect_left(sizes.tolist(), True, key=is_enough)
    return float(math.ceil(sizes[found])) if found < len(sizes) else None


def _find_reference(
    joint: FloatArray, mapping: sp.csc_array, prior: FloatArray, n_fitted: float, n_fresh: float
) -> tuple[float, Reference]:
    """The reference of the least expected bound, and that."""
    released = np.asarray((mapping @ joint.T).T)
    totals = released.sum(axis=0)
    # Of a cell's records: how much of each is in it. What is drawn for sure errs most.
    parts = np.asarray((mapping.power(2) @ joint.T).T) / np.where(released > 0, released, 1.0)
    free = parts * (1 - released / np.where(totals > 0, totals, 1.0))
    # How far the fitted records are off, and how far the fresh ones will be.
    off = sum(
        float((free / (1 + _RARE * parts / np.maximum(n * released, 1e-300))).sum()) / (2 * n)
        for n in (n_fitted, n_fresh)
        if n
    )
    found = []
    for shrunk in _SHRUNK:
        part = n_fitted * totals / (n_fitted * totals + shrunk) if shrunk < math.inf else 0 * totals
        shares = released / np.where(totals > 0, totals, 1.0)
        posteriors = prior[:, None] + part * (shares - prior[:, None])
        gains = Reference(mapping, prior, posteriors).gains
        mean = float((joint * gains).sum())
        one = Reference(mapping, prior, posteriors, float((joint * (gains - mean) ** 2).sum()))
        chance = _EXPECTED_MISS * (1 if one.is_prior else 1 - _MEAN)
        spread = math.sqrt(-2 * math.log(_MEAN * _EXPECTED_MISS) * one.variance / max(n_fresh, 1.0))
        least = _bound_divergence(one, one.measure(released) + off, n_fresh, chance)
        found.append((mean + spread + least, one))
    return min(found, key=lambda pair: pair[0])


def bound_held_out_information(reference: Reference, table: FloatArray, miss: float) -> float:
    """Upper bound on the mutual information of private value and released symbol, nats.

    Parameters
    ----------
    reference
        Fixed before these records were seen.
    table : (n_private, n_symbols)
        Independent records of each private value and original symbol.
    miss
        Probability with which the bound may fail.

    Returns
    -------
    bound
        At most the logarithm of the number of private values.

    Notes
    -----
    Guarantee: with probability ``1 - miss`` the information is at most the bound, whatever the law
    of the records, as long as they are independent. See the head of this module. The mean is
    bounded by betting (`bound_mean`), the divergence by Chernoff's bound.
    """
    most, n = math.log(len(table)), float(table.sum())
    if not n:
        return most
    mean, chance = 0.0, miss
    if not reference.is_prior:
        gains, chance = reference.gains, (1 - _MEAN) * miss
        mean = bound_mean(gains, table, float(gains.max()), reference.variance, _MEAN * miss)
    released = np.asarray((reference.mapping @ table.T).T) / n
    divergence = _bound_divergence(reference, reference.measure(released), n, chance)
    return min(most, max(0.0, mean + divergence))


def _bound_divergence(reference: Reference, measured: float, n: float, miss: float) -> float:
    """Upper bound on the true posteriors' divergence, by that of the records' own."""
    # Any larger limit holds as well: of one private value it is 0.
    highest = max(-math.log(float(reference.posteriors.min())), 0.1)
    rho = _exceed(_TILTS * highest) / _exceed(np.array(highest))
    rest, log = _TILTS - rho, math.log(1 / miss) / max(n, 1.0)
    won = -np.expm1(-log - _TILTS * measured)
    return float((won[rest > 0] / rest[rest > 0]).min())


def _exceed(z: FloatArray) -> FloatArray:
    """``exp(-z) - 1 + z``; never less, where z is small."""
    return np.where(z < 1e-3, 0.5 * z**2, np.expm1(-z) + z)
