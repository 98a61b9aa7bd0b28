"""An upper confidence bound on what a fixed mapping reveals, from records that it never saw.

The plug-in estimate of a mutual information errs by about cells / (2 records); a distribution-free
interval (Stefani et al. 2013) is wider still. Here the records that the mapping was fitted on also
gave a *reference* of what it releases, and fresh ones measure only how far the reference is off,
which is a second-order error and is measured without bias.

For reference masses ``m_ai``, any prior ``s_a``, and any set S of cells (the others are *rare*, and
t is the reference's posterior among the cells of S of one symbol):

    I <= E[log t(A|I) / s_A ; in S] + E[log 1 / s_A ; rare] + chi_S,
    chi_S = sum_S (p_ai - m_ai)**2 / m_ai,

because ``-sum p_a log p_a <= -sum p_a log s_a``, ``log p(a|i) <= 0`` in the rare cells, and
elsewhere ``log p(a|i)`` grows when it is counted among S alone. What is left, the divergence of the
true posteriors in S from t, is ``sum_S p log(p / m)`` less the same sum over symbols, which is at
least ``Q_S - M_S`` (log-sum inequality). So it is at most ``sum_S m phi(p / m)`` with
``phi(x) = x log x - x + 1``. Where every ratio ``p / m`` is at least x, phi is at most c(x) times
the square of its distance from 1, c falling from 1 at x = 0 to 1/2 at x = 1.

The first two terms are a mean of a known function of fresh records. The third is bounded by two
halves: with the first half's ``w = (p1 - m) / m``, the second measures ``<w, p - m>``, whose excess
over chi_S is ``<p - p1, p - m>_m``: a mean of one function, of variance at most C chi_S where all
ratios are at most C, and never more than ``1 + chi_S + ...`` below its expectation (Bernstein).
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from privpipe.numerics.mapping.mean_bounds import bound_mean, bound_shares
from privpipe.protocols import BoolArray, FloatArray

# How the chance to fail is shared; all of it is `miss`.
_PARTS = {"mean": 0.4, "cross": 0.3, "noise": 0.2, "cells": 0.1}

# Records of half the sample expected in the rarest cell of a symbol that is not rare.
_LEAST_EXPECTED = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


@dataclass(frozen=True, eq=False)
class Reference:
    """What a mapping is expected to release, fixed before the fresh records are seen.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        The law of private value and original symbol that was fitted.
    mapping : (n_symbols, n_symbols), sparse
        Probability of each released symbol (row) given the original one (column).
    masses : (n_private, n_symbols)
        Expected joint probabilities of private value and released symbol; positive where `common`.
    common : (n_private, n_symbols)
        The cells of S; the others are rare.
    prior : (n_private,)
        Of the private values, all positive; their sum is at most 1.
    """

    joint: FloatArray
    mapping: sp.csc_array
    masses: FloatArray
    common: BoolArray
    prior: FloatArray

    @property
    def gains(self) -> FloatArray:
        """Nats that a released symbol reveals of a private value, (n_private, n_symbols)."""
        return measure_gains(np.where(self.common, self.masses, 0.0), self.prior)


def measure_gains(masses: FloatArray, prior: FloatArray) -> FloatArray:
    """Log of posterior over prior; where there is no mass, of 1 over prior.

    Parameters
    ----------
    masses : (n_private, n_symbols)
    prior : (n_private,)
        All positive.

    Returns
    -------
    gains : (n_private, n_symbols)
        Nats.
    """
    # A cell without reference counts as if the symbol gave its value away: log of 1 over prior.
    with np.errstate(divide="ignore", invalid="ignore"):
        posterior = np.log(masses / masses.sum(axis=0))
    return np.asarray(np.where(masses > 0, posterior, 0.0) - np.log(prior)[:, None])


def make_reference(
    joint: FloatArray, mapping: sp.csc_array, prior: FloatArray, n_fitted: float, n_fresh: float
) -> Reference:
    """Choose the cells of S by the bound that they promise under the fitted law.

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
    found = _list_references(joint, mapping, prior, n_fresh)
    expected = [_expect_bound(reference, n_fitted, n_fresh) for reference in found]
    return found[int(np.argmin(expected))]


def find_needed_records(
    joint: FloatArray, mapping: sp.csc_array, prior: FloatArray, target: float, held_out: float
) -> float:
    """About how many records bring the held-out bound down to a target.

    Parameters
    ----------
    joint, mapping, prior
        As of `make_reference`.
    target
        Nats.
    held_out
        Share of the records that are held out, positive.

    Returns
    -------
    n_records
        Within a tenth; infinite where the mapping reveals more under `joint` itself.

    Notes
    -----
    Guarantee: none; an expectation under `joint`.
    """
    # 243 steps of a tenth each.
    for n in np.geomspace(100, 1e12, 243):
        found = _list_references(joint, mapping, prior, held_out * n)
        least = min(_expect_bound(one, (1 - held_out) * n, held_out * n) for one in found)
        if least <= target:
            return float(math.ceil(n))
    return math.inf


def _list_references(
    joint: FloatArray, mapping: sp.csc_array, prior: FloatArray, n_fresh: float
) -> list[Reference]:
    masses = np.asarray((mapping @ joint.T).T)
    return [
        Reference(joint, mapping, masses, n_fresh / 2 * masses >= least, prior)
        for least in _LEAST_EXPECTED
    ]


def _expect_bound(reference: Reference, n_fitted: float, n_fresh: float) -> float:
    """About what the bound will be if the law is the fitted one; never part of a promise."""
    revealed = np.asarray((reference.mapping.T @ reference.gains.T).T)
    common, log, half = reference.common, math.log(100.0), n_fresh / 2
    mean, spread = float((reference.joint * revealed).sum()), _expect_variance(reference, revealed)
    squares = np.asarray((reference.mapping.power(2) @ reference.joint.T).T)
    cells = float((squares[common] / reference.masses[common]).sum())
    off = cells / max(n_fitted, 1.0)
    noise = math.sqrt(2 * log * (cells / half + off) / half) + 2 * math.sqrt(2 * log * off / half)
    # The rarest cell bounds every ratio p / m, and with it the third term's variance.
    least = float(reference.masses[common].min()) if common.any() else 1.0
    jump = log / half * math.sqrt(2 * log / (half * least))
    return mean + math.sqrt(2 * spread * log / n_fresh) + off + noise + jump


def bound_held_out_information(
    reference: Reference, first: FloatArray, second: FloatArray, miss: float
) -> float:
    """Upper bound on the mutual information of private value and released symbol, nats.

    Parameters
    ----------
    reference
        Fixed before these records were seen.
    first, second : (n_private, n_symbols)
        Independent records of each private value and original symbol, in two halves.
    miss
        Probability with which the bound may fail.

    Returns
    -------
    bound
        At most the logarithm of the number of private values.

    Notes
    -----
    Guarantee: the information is at most the bound with probability ``1 - miss``, whatever the law
    of the records, as long as they are independent; see the head of this module. Means are bounded
    by betting (`bound_mean`), the noise by Bernstein's inequality for variables bounded
    on one side (Boucheron, Lugosi and Massart 2013, Theorem 2.10), single cells by Hoeffding 1963.
    """
    most = math.log(len(first))
    n_first, n_second = float(first.sum()), float(second.sum())
    # Nothing can be measured: the entropy of the private value is the bound that always holds.
    if min(n_first, n_second) < 2:
        return most
    parts = {name: share * miss for name, share in _PARTS.items()}
    revealed = np.asarray((reference.mapping.T @ reference.gains.T).T)
    spread = _expect_variance(reference, revealed)
    # Both halves measure the mean: its function was fixed by the fitted records alone.
    mean = bound_mean(revealed, first + second, float(revealed.max()), spread, parts["mean"])
    if not reference.common.any():
        return min(most, mean)
    divergence = _bound_divergence(reference, first, second, parts)
    return min(most, max(0.0, mean + divergence))


def _bound_divergence(
    reference: Reference, first: FloatArray, second: FloatArray, parts: dict[str, float]
) -> float:
    """Upper bound on ``c chi_S``; infinite where it cannot be had."""
    common, mapping = reference.common, reference.mapping
    m, n = reference.masses[common], float(first.sum())
    weights = np.zeros(reference.masses.shape)
    # w of the first half, which the second half measures: independent, and so without bias.
    weights[common] = np.asarray((mapping @ (first.T / n)).T)[common] / m - 1
    measured = np.asarray((mapping.T @ weights.T).T)
    spread = _expect_variance(reference, measured)
    reached = bound_mean(measured, second, float(measured.max()), spread, parts["cross"])
    # <w, m> is known; what was measured is <w, p>.
    cross = reached - float((weights[common] * m).sum())
    both = first + second
    shares = np.asarray((mapping @ (both.T / both.sum())).T)[common]
    # All cells' shares must hold together, each from above and below: a union bound.
    chance = parts["cells"] / (2 * m.size)
    highest = float((bound_shares(shares, both.sum(), chance, upper=True) / m).max())
    lowest = float((bound_shares(shares, both.sum(), chance, upper=False) / m).min())
    # Mass of the rare cells, which the second half may have but the reference leaves out.
    outside = max(0.0, 1 - float(m.sum()))
    square = _solve_noise(cross, highest, 1 + outside, n, math.log(1 / parts["noise"]))
    return _curvature(min(lowest, 1.0)) * square


def _expect_variance(reference: Reference, values: FloatArray) -> float:
    """Variance of a function of private value and original symbol under the fitted law."""
    mean = float((reference.joint * values).sum())
    return float((reference.joint * (values - mean) ** 2).sum())


def _solve_noise(cross: float, ratio: float, low: float, n: float, log: float) -> float:
    """The largest x with ``x <= cross + sqrt(2 ratio x log / n) + (low + x) log / (3 n)``."""
    # Bernstein's linear term holds x itself: solved for x, it divides by what is left of 1.
    keep = 1 - log / (3 * n)
    if keep <= 0:
        return math.inf
    linear = math.sqrt(2 * ratio * log / n) / keep
    constant = (cross + low * log / (3 * n)) / keep
    if constant <= -(linear**2) / 4:
        return 0.0
    return ((linear + math.sqrt(linear**2 + 4 * constant)) / 2) ** 2


def _curvature(x: float) -> float:
    """The largest ``(y log y - y + 1) / (y - 1)**2`` over y >= x; it falls from 1 to 1/2 and on."""
    if x <= 0:
        return 1.0
    # The quotient of two differences that vanish at 1: there its series, from above.
    if x > 0.99:
        return 0.5 + (1 - x) / 3
    return (x * math.log(x) - x + 1) / (x - 1) ** 2
