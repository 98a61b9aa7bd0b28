"""What a mapping reveals about the law, bounded by records that did not choose it.

The plug-in estimate of a mutual information errs by about cells / (2 records); a distribution-free
interval (Stefani et al. 2013) is wider still. Here the records that the mapping was fitted on also
gave a *reference* of what it releases, and fresh ones measure only how far the reference is off,
which is a second-order error and is measured without bias.

For any reference masses ``m_ai`` of sum ``M_i``, any prior ``s_a``, and any set S of symbols (the
others are *rare*), with ``t_ai = m_ai / M_i`` and true masses ``p_ai`` of sum ``P_i``,

    I <= E[log t_AI / s_A ; I in S] + E[log 1 / s_A ; I rare] + sum_S P_i KL(p_i / P_i || t_i),

because ``-sum p_a log p_a <= -sum p_a log s_a`` and ``log p(a|i) <= 0``. The last term is
``sum_S [sum_a m_ai phi(p_ai / m_ai) - M_i phi(P_i / M_i)]``, ``phi(x) = x log x - x + 1``.
The quotient ``c(x) = phi(x) / (x - 1)**2`` falls from 1 at x = 0 to 1/2 at 1 and on: from lower
bounds on the ratios of cells and upper ones on those of symbols the term is at most

    chi = sum_S [ sum_a c_ai (p_ai - m_ai)**2 / m_ai  -  d_i (P_i - M_i)**2 / M_i ],

a positive quadratic form of ``e = p - m`` as long as ``d_i < c_ai``. So an error in how often a
symbol is released costs c - d, not c: only posteriors are paid for in full. The coefficients are
foreseen by the fitted records; the fresh ones check them, and where they fall short the whole form
is multiplied by what is missing.

chi is bounded by two parts of the fresh records. With the first one's gradient w1 of the form, the
second measures ``<w1, e>``, which is chi beyond ``<w, p1 - p>``: a mean of one function over the
first part, the true gradient w, of second moment at most C chi with ``C = max c p / m``, and never
more than ``max(c + d (P / M - 1))`` below 0. Both errors pass through one exponential: for a tilt
fixed by the fitted records, its expectation is at most 1 for the first part (Bernstein) and, given
that, for the second (Fan, Grama and Liu 2015, by what is measured of its spread). So chances are
spent once, and errors add up as their squares do. A floor under every ``m_ai`` keeps C small; too
high a floor is itself an error that is measured, so the best of some is taken by the fitted law.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from privpipe.numerics.mapping.law_bounds import bound_mean, bound_shares
from privpipe.protocols import BoolArray, FloatArray

# How the chance to fail is shared; all of it is `miss`.
_PARTS = {"mean": 0.2, "form": 0.6, "cells": 0.2}
# Of the fresh records: what the second part measures has by far the smaller variance of the two.
SECOND_PART = 0.3
# Fresh records under every cell of the reference, and expected at least of a symbol of S: the best
# pair is taken. Without any symbol the bound is the entropy of the private value.
_FLOORS = (0.1, 2.0, 3.5, 5.0, 7.0, 10.0)
_LEAST_EXPECTED = (1.0, 4.0, 10.0, 30.0, math.inf)
# A ratio is foreseen as if so many of the fresh records were seen: both it and the reference err.
_FORESEEN = 0.3
# Of c: the form must stay positive.
_MOST_TAKEN_OFF = 0.98
# About what `_PARTS` leave of a chance of .03, for what is only expected.
_EXPECTED_MISS = 0.01


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
        Expected joint probabilities of private value and released symbol, at least the floor.
    common : (n_symbols,)
        The symbols of S; the others are rare.
    cells, symbols : (n_private, n_symbols) and (n_symbols,)
        The coefficients c and d of the quadratic form, 0 where a symbol is rare.
    prior : (n_private,)
        Of the private values, all positive; their sum is at most 1.
    foreseen
        Of the form, what fresh records are expected to measure: see `_foresee_form`.
    """

    joint: FloatArray
    mapping: sp.csc_array
    masses: FloatArray
    common: BoolArray
    cells: FloatArray
    symbols: FloatArray
    prior: FloatArray
    foreseen: tuple[float, float, float] = 0.0, 0.0, 1.0

    @property
    def totals(self) -> FloatArray:
        """Mass of each released symbol, (n_symbols,)."""
        return np.asarray(self.masses.sum(axis=0))

    @property
    def gains(self) -> FloatArray:
        """Nats that a released symbol reveals of a private value, (n_private, n_symbols)."""
        logs = np.log(self.masses / self.totals)
        return np.asarray(np.where(self.common, logs, 0.0) - np.log(self.prior)[:, None])

    def release(self, table: FloatArray) -> FloatArray:
        """Masses of private value and released symbol, (n_private, n_symbols)."""
        return np.asarray((self.mapping @ table.T).T)

    def expect(self, values: FloatArray) -> FloatArray:
        """Mean over the mapping's draws of values of released symbols, (n_private, n_symbols)."""
        return np.asarray((self.mapping.T @ values.T).T)

    def differentiate(self, masses: FloatArray) -> FloatArray:
        """Half the gradient of the form at other masses, (n_private, n_symbols)."""
        off = np.where(self.common, masses - self.masses, 0.0)
        whole = self.symbols * off.sum(axis=0) / self.totals
        return np.asarray(self.cells * off / self.masses - whole)

    def measure_variance(self, values: FloatArray) -> float:
        """Of a function of private value and original symbol under the fitted law."""
        return float((self.joint * (values - float((self.joint * values).sum())) ** 2).sum())


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
    sizes = np.geomspace(100, 1e12, 243)

    def is_enough(n: float) -> bool:
        parts = (1 - held_out) * n, held_out * n
        return expect_held_out_bound(joint, mapping, prior, *parts) <= target

    # By halving: what is expected falls with the records.
    found = bisect_left(sizes.tolist(), True, key=is_enough)
    return float(math.ceil(sizes[found])) if found < len(sizes) else math.inf


def _find_reference(
    joint: FloatArray, mapping: sp.csc_array, prior: FloatArray, n_fitted: float, n_fresh: float
) -> tuple[float, Reference]:
    """The reference of the least expected bound, and that."""
    released = np.asarray((mapping @ joint.T).T)
    squares = np.asarray((mapping.power(2) @ joint.T).T)
    # Of shares as such: the same for every reference.
    foreseen = _limit_shares(released, _FORESEEN * n_fresh, _EXPECTED_MISS)
    limits = _limit_shares(released, n_fresh, _EXPECTED_MISS)
    best: tuple[float, Reference] | None = None
    for floor in _FLOORS:
        masses = np.maximum(released, floor / n_fresh)
        # Coefficients that fresh records are likely to bear out.
        cells, symbols = _find_coefficients(masses, foreseen)
        symbols = np.minimum(symbols, _MOST_TAKEN_OFF * cells.min(axis=0))
        for least in _LEAST_EXPECTED:
            common = n_fresh * released.sum(axis=0) >= least
            weights = np.where(common, cells, 0.0), np.where(common, symbols, 0.0)
            one = Reference(joint, mapping, masses, common, *weights, prior)
            if common.any():
                shares = tuple(limit[..., common] for limit in limits)
                form = _foresee_form(one, released, squares, shares, n_fitted, n_fresh)
                one = replace(one, foreseen=form)
            expected = _expect_bound(one, limits, n_fresh)
            if best is None or expected < best[0]:
                best = expected, one
    assert best is not None
    return best


def _limit_shares(shares: FloatArray, n: float, miss: float) -> tuple[FloatArray, ...]:
    """Upper and lower bounds on all cells, and upper ones on all symbols, that hold together."""
    shares = np.minimum(shares, 1.0)
    chance = _PARTS["cells"] * miss / (2 * shares.size + shares.shape[1])  # a union bound
    return (
        bound_shares(shares, n, chance, upper=True),
        bound_shares(shares, n, chance, upper=False),
        bound_shares(np.minimum(shares.sum(axis=0), 1.0), n, chance, upper=True),
    )


def _find_coefficients(
    masses: FloatArray, limits: tuple[FloatArray, ...]
) -> tuple[FloatArray, FloatArray]:
    """What c may be at most and d at least, from bounds on shares."""
    _, lowest, highest = limits
    cells = _divide_by_square(np.minimum(lowest / masses, 1.0))
    return cells, _divide_by_square(np.maximum(highest / masses.sum(axis=0), 1.0))


def _foresee_form(
    reference: Reference,
    released: FloatArray,
    squares: FloatArray,
    limits: tuple[FloatArray, ...],
    n_fitted: float,
    n: float,
) -> tuple[float, float, float]:
    """chi, the second moment of its measured gradient, and C, if the law is the fitted one."""
    # The error of the reference: of its floor, and of the fitted records.
    off = np.where(reference.common, released - reference.masses, 0.0)
    error = _measure_form(reference, off**2, off.sum(axis=0) ** 2)
    noise = _measure_form(reference, squares, squares.sum(axis=0))
    chi = error + noise / max(n_fitted, 1.0)
    return chi, chi + noise / ((1 - SECOND_PART) * n), _limit_gradient(reference, limits)[0]


def _expect_bound(reference: Reference, limits: tuple[FloatArray, ...], n: float) -> float:
    """About what the bound will be if the law is the fitted one."""
    mean = reference.expect(reference.gains)
    log = math.log(1 / _EXPECTED_MISS)
    found = float((reference.joint * mean).sum())
    found += math.sqrt(2 * log * reference.measure_variance(mean) / n)
    if not reference.common.any():
        return found
    known = tuple(limit[..., reference.common] for limit in limits)
    chi, spread, _ = reference.foreseen
    measured = chi, spread, _limit_gradient(reference, known)[1]
    sizes = (1 - SECOND_PART) * n, SECOND_PART * n
    return found + _bound_form(reference, measured, known, sizes, _EXPECTED_MISS)


def _measure_form(reference: Reference, cells: FloatArray, symbols: FloatArray) -> float:
    """The quadratic form of squares of cells and of symbols."""
    return float((reference.cells * cells / reference.masses).sum()) - float(
        (reference.symbols * symbols / reference.totals).sum()
    )


def bound_held_out_information(
    reference: Reference, first: FloatArray, second: FloatArray, miss: float
) -> float:
    """Upper bound on the mutual information of private value and released symbol, nats.

    Parameters
    ----------
    reference
        Fixed before these records were seen.
    first, second : (n_private, n_symbols)
        Independent records of each private value and original symbol, in two parts.
    miss
        Probability with which the bound may fail.

    Returns
    -------
    bound
        At most the logarithm of the number of private values.

    Notes
    -----
    Guarantee: the information is at most the bound with probability ``1 - miss``, whatever the law
    of the records, as long as they are independent; see the head of this module. The mean is
    bounded by betting (`bound_mean`), the form by Bernstein's inequality for variables bounded on
    one side (Boucheron, Lugosi and Massart 2013, Theorem 2.10) and by that of Fan, Grama and Liu
    (2015, Exponential inequalities for martingales), single cells by Hoeffding 1963.
    """
    most = math.log(len(first))
    n_first, n_second = float(first.sum()), float(second.sum())
    # Nothing can be measured: the entropy of the private value is the bound that always holds.
    if min(n_first, n_second) < 2:
        return most
    revealed, both = reference.expect(reference.gains), first + second
    spread = reference.measure_variance(revealed)
    # Both parts measure the mean: its function was fixed by the fitted records alone.
    mean = bound_mean(revealed, both, float(revealed.max()), spread, _PARTS["mean"] * miss)
    if not reference.common.any():
        return min(most, mean)
    # w of the first part, which the second part measures: independent, and so without bias.
    weights = reference.differentiate(reference.release(first / n_first))
    function = reference.expect(weights)
    # From a centre that the second part has not moved, and farthest above it.
    centre = float((reference.joint * function).sum())
    spread = float((second * (function - centre) ** 2).sum()) / n_second
    # <w, m> is known; what is measured is <w, p>.
    cross = float((second * function).sum()) / n_second - float((weights * reference.masses).sum())
    measured = cross, spread, max(float(function.max()) - centre, 1e-300)
    shares = reference.release(both / both.sum())[:, reference.common]
    limits = _limit_shares(shares, n_first + n_second, miss)
    divergence = _bound_form(reference, measured, limits, (n_first, n_second), miss)
    return min(most, max(0.0, mean + divergence))


def _limit_gradient(reference: Reference, limits: tuple[FloatArray, ...]) -> tuple[float, float]:
    """C, and how far the true gradient may be below 0."""
    cells, symbols = reference.cells[:, reference.common], reference.symbols[reference.common]
    masses, totals = reference.masses[:, reference.common], reference.totals[reference.common]
    away = np.maximum(limits[2] / totals - 1, 0.0)
    return float((cells * limits[0] / masses).max()), float((cells + symbols * away).max())


def _bound_form(
    reference: Reference,
    measured: tuple[float, float, float],
    limits: tuple[FloatArray, ...],
    sizes: tuple[float, float],
    miss: float,
) -> float:
    """Upper bound on the divergence; infinite where records are too few for the tilt.

    Parameters
    ----------
    reference
    measured
        ``<w1, e>``, mean square of its terms about their centre, and the farthest above it.
    limits
        Of shares in S.
    sizes
        Records of the two parts.
    miss
    """
    common = reference.common
    cells, symbols = reference.cells[:, common], reference.symbols[common]
    true_cells, true_symbols = _find_coefficients(reference.masses[:, common], limits)
    # Of the form as foreseen, so much bounds the divergence in every symbol.
    rest = (true_cells - true_symbols) / (cells - symbols)
    short = max(1.0, float((true_cells / cells).max()), float(rest.max()))
    (cross, spread, highest), (first, second) = measured, sizes
    ratio, lowest = _limit_gradient(reference, limits)
    log = math.log(1 / (_PARTS["form"] * miss))
    # The tilt that is best if all is as foreseen; no number of the fresh records is in it.
    chi, foreseen, most = reference.foreseen
    slope = most / (2 * first)
    per_tilt = slope + math.sqrt(slope**2 + (foreseen / (2 * second) + slope * chi) / log)
    tilt = min(1 / per_tilt, second / most)
    away, near = tilt * lowest / (3 * first), tilt * highest / second
    if away >= 1 or near >= 1:
        return math.inf
    keep = 1 - tilt * ratio / (2 * first * (1 - away))
    reached = cross + log / tilt + tilt * spread / (2 * second * (1 - near))
    return short * max(reached, 0.0) / keep if keep > 0 else math.inf


def _divide_by_square(x: FloatArray) -> FloatArray:
    """``(x log x - x + 1) / (x - 1)**2``: 1 at 0, 1/2 at 1, and falling on.

    Near 1 by its series: from above below 1, from below above it.
    """
    away = x - 1
    near, safe = np.abs(away) < 0.01, np.where((np.abs(away) < 0.01) | (x <= 0), 0.5, x)
    found = (safe * np.log(safe) - safe + 1) / (safe - 1) ** 2
    series = 0.5 - away / np.where(away < 0, 3.0, 6.0)
    return np.asarray(np.where(near, series, np.where(x <= 0, 1.0, found)))
