"""Mappings under further linear constraints: bounded posterior odds and maximal leakage.

The information is a sum over released symbols of convex functions, homogeneous of degree 1, of the
symbol's few masses, ``f(m) = sup {<g, m> : sum_a p_a exp(g_a) <= 1}`` (see `pair_pricing`). So a
linear programme over pairs, with a tangent g per symbol wherever a solution lay (Kelley 1960, an
epigraph per symbol), converges in a few rounds, and its multipliers are a certificate: with
``h_i = g_i + sum mu_iab (e_a / p_a - odds e_b / p_b) + sum nu_ia e_a / p_a`` and kappa no less than
any ``sum_a nu_ia``,

    optimum >= sum_j p_j min_i [p(.|j) . h_i + lam d_ij] - lam budget - kappa exp(leakage).

The least is over all pairs, by the oracle that prices any mapping; pairs that undercut join the
programme. The programme itself is HiGHS's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from privpipe.errors import ConvergenceError
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, PricingQuestion, sum_prices
from privpipe.numerics.mapping.problem.programme import (
    LOWEST,
    Duals,
    MappingProblem,
    Pairs,
    normalise_potentials,
)
from privpipe.numerics.mapping.problem.scale import measure_mean_distances
from privpipe.protocols import FloatArray

_ALL_PAIRS = 40_000
_TOP = 8
_ROUNDS = 60
_SHRINK = 1e-7
"""Of the budget that the programme leaves for its own rounding."""
_OUT_OF_BUDGET = 1e3
"""Nats per unit of distortion beyond the budget: more than any information is worth."""


@dataclass(frozen=True)
class Limits:
    """What a mapping must not exceed under the law given; None where nothing is asked.

    Parameters
    ----------
    odds
        Largest ratio of posterior to prior odds of two private values, above 1.
    leakage
        Largest maximal leakage, nats, positive.
    """

    odds: float | None = None
    leakage: float | None = None


@dataclass(frozen=True, eq=False)
class ConstrainedPlan:
    """What was found.

    Parameters
    ----------
    pairs
    weights : (n_pairs,)
        Joint masses, feasible to the programme's rounding.
    duals
        Potentials ``g`` alone, normalised, and the multiplier: a bound without the limits.
    bound
        No mapping within budget and limits has less information, nats; over all pairs.
    excess
        Distortion beyond the budget that the limits need; 0 where they can be met.
    stopped
    """

    pairs: Pairs
    weights: FloatArray
    duals: Duals
    bound: float
    excess: float
    stopped: str


def search_constrained(
    problem: MappingProblem, limits: Limits, *, gap: float, price: PriceOracle, max_seconds: float
) -> ConstrainedPlan:
    """Cutting planes and columns until the bound over all pairs is near.

    Parameters
    ----------
    problem, limits
    gap
        Wanted gap, nats.
    price
        Prices all columns for given potentials.
    max_seconds
        After which no new round begins; the programme under way is given up.
    """
    began, best = time.monotonic(), -np.inf
    pairs = _first_pairs(problem)
    tangents = _first_tangents(problem)
    duals, stopped = Duals(np.zeros((problem.n_symbols, problem.n_private)), 0.0), "rounds"
    weights, excess, kept = None, 0.0, pairs
    for number in range(_ROUNDS):
        programme = _Programme(problem, limits, pairs, tangents)
        solved = programme.solve(max_seconds - (time.monotonic() - began))
        if solved is None:
            stopped = "time limit"
            break
        weights, masses, excess, dual = solved
        kept = pairs
        bound, own, new = _price_all(problem, limits, dual, price)
        if bound > best:
            best, duals = bound, own
        value = float(np.sum(masses * _log_ratios(masses, problem.prior)))
        tangents = [*tangents, _log_ratios(masses, problem.prior)]
        joined = _join(problem, pairs, new)
        grown = len(joined) > len(pairs)
        if excess > 1e-6 * max(problem.budget, 1e-9) and number >= 3 and not grown:
            stopped = "no mapping within the limits"
            break
        if value - best <= gap:
            stopped = "gap reached"
            break
        if time.monotonic() - began > max_seconds:
            stopped = "time limit"
            break
        pairs = joined
    if weights is None:
        raise ConvergenceError(
            "max_seconds is over before any mapping within the limits was found.",
            remedy="Allow more seconds, or fewer profiles (most_frequent).",
            code="no-time",
        )
    return ConstrainedPlan(kept, weights, duals, max(best, 0.0), excess, stopped)


def _first_pairs(problem: MappingProblem) -> Pairs:
    """All of a small problem; else every column's own symbol and the best for all."""
    n, columns = problem.n_symbols, np.arange(problem.n_columns)
    if n * problem.n_columns <= _ALL_PAIRS:
        return Pairs.of(problem, np.tile(np.arange(n), problem.n_columns), np.repeat(columns, n))
    common = np.argsort(measure_mean_distances(problem), kind="stable")[:_TOP]
    symbols = np.concatenate([problem.stay, np.repeat(common, problem.n_columns)])
    return Pairs.of(problem, symbols, np.tile(columns, 1 + len(common)))


def _join(problem: MappingProblem, pairs: Pairs, new: Any) -> Pairs:
    if not len(new):
        return pairs
    symbols = np.concatenate([pairs.symbols, new[:, 0]])
    return Pairs.of(problem, symbols, np.concatenate([pairs.columns, new[:, 1]]))


def _first_tangents(problem: MappingProblem) -> list[FloatArray]:
    """At the prior, and at posteriors on the way from it to those of each column group."""
    prior, found = problem.prior, []
    extremes = [problem.posterior[np.argmax(problem.posterior[:, a])] for a in range(len(prior))]
    for share in (0.0, 0.1, 0.3, 0.6, 1.0):
        for extreme in extremes:
            posterior = (1 - share) * prior + share * (0.999 * extreme + 0.001 * prior)
            found.append(np.tile(np.log(posterior / prior), (problem.n_symbols, 1)))
    return found


def _log_ratios(masses: FloatArray, prior: FloatArray) -> FloatArray:
    """Tangents at masses (n_symbols, n_private), normalised; at the prior where there are none."""
    total = masses.sum(axis=1, keepdims=True)
    share = np.where(total > 1e-300, masses, prior) / np.where(total > 1e-300, total, 1.0)
    with np.errstate(divide="ignore"):
        return normalise_potentials(np.maximum(np.log(share / prior), -60.0), prior)


def _price_all(
    problem: MappingProblem, limits: Limits, dual: dict[str, Any], price: PriceOracle
) -> tuple[float, Duals, Any]:
    """The bound over all pairs, the duals without limits, and pairs that undercut."""
    prior = problem.prior
    own = normalise_potentials(dual["potentials"], prior)
    shifted, paid = own.copy(), 0.0
    if limits.odds is not None:
        mu = np.maximum(dual["odds"], 0.0)  # (n_symbols, n_private, n_private)
        shifted += (mu.sum(axis=2) - limits.odds * mu.sum(axis=1)) / prior
    if limits.leakage is not None:
        nu = np.maximum(dual["leakage"], 0.0)
        shifted += nu / prior
        paid = float(nu.sum(axis=1).max()) * float(np.exp(limits.leakage))
    question = PricingQuestion(Duals(shifted, dual["multiplier"]), top=min(_TOP, problem.n_symbols))
    prices = price(problem, question)
    total = sum_prices(problem.mass, prices)
    size = float(np.sum(problem.mass * np.abs(prices.values))) + paid
    rounding = 2.0**-52 * (problem.n_columns + 64) * (size + float(np.abs(shifted).max()))
    bound = total - dual["multiplier"] * problem.budget - paid - rounding
    columns = np.repeat(np.arange(problem.n_columns), prices.best.shape[1])
    named = prices.best.ravel() >= 0
    new = np.stack([prices.best.ravel()[named], columns[named]], axis=1)
    if problem.n_symbols * problem.n_columns <= _ALL_PAIRS:
        new = new[:0]
    return bound, Duals(own, dual["multiplier"]), new


class _Programme:
    """The linear programme over pairs: masses, their sums per symbol, epigraphs, limits."""

    def __init__(
        self, problem: MappingProblem, limits: Limits, pairs: Pairs, tangents: list[FloatArray]
    ) -> None:
        self.problem, self.limits, self.pairs, self.tangents = problem, limits, pairs, tangents
        used = np.unique(pairs.symbols)
        self.used, self.place = used, np.searchsorted(used, pairs.symbols)
        self.n_used, self.k = len(used), problem.n_private
        self.at_masses = len(pairs)
        self.at_values = self.at_masses + self.n_used * self.k
        self.at_peaks = self.at_values + self.n_used
        self.at_excess = self.at_peaks + (self.n_used if limits.leakage is not None else 0)
        self.n_variables = self.at_excess + 1

    def solve(self, seconds: float) -> tuple[FloatArray, FloatArray, float, dict[str, Any]] | None:
        """Masses of pairs, masses of symbols, excess and multipliers; None when time is over."""
        upper, limit, rows = self._inequalities()
        equal, right = self._equalities()
        cost = np.zeros(self.n_variables)
        cost[self.at_values : self.at_peaks] = 1.0
        cost[-1] = _OUT_OF_BUDGET
        free = np.zeros((self.n_variables, 2))
        free[:, 1] = np.inf
        free[self.at_values : self.at_peaks, 0] = -np.inf
        limits = {} if seconds == np.inf else {"time_limit": max(seconds, 0.0)}
        found = linprog(
            cost, upper, limit, equal, right, bounds=free, method="highs", options=limits
        )
        if found.status == 1:
            return None
        if found.status != 0:
            raise ConvergenceError(
                "the linear programme of a constrained mapping was not solved.",
                remedy="Loosen max_posterior_odds, max_leakage or distortion_budget.",
                code="programme",
            )
        n, k, symbols = self.problem.n_symbols, self.k, self.used
        masses = np.zeros((n, k))
        masses[symbols] = found.x[self.at_masses : self.at_values].reshape(-1, k)
        marginals = -found.ineqlin.marginals
        return (
            np.maximum(found.x[: len(self.pairs)], 0.0),
            np.maximum(masses, 0.0),
            float(found.x[-1]),
            self._read_duals(marginals, rows),
        )

    def _read_duals(self, marginals: FloatArray, rows: dict[str, slice]) -> dict[str, Any]:
        n, k, symbols = self.problem.n_symbols, self.k, self.used
        shares = np.maximum(marginals[rows["tangents"]].reshape(len(self.tangents), -1), 0.0)
        total = shares.sum(axis=0)
        potentials = np.tile(np.float64(0.0), (n, k))
        stacked = np.stack([tangent[symbols] for tangent in self.tangents])
        mixed = (shares[:, :, None] * stacked).sum(axis=0)
        potentials[symbols] = mixed / np.where(total > 0, total, 1.0)[:, None]
        dual: dict[str, Any] = {
            "potentials": np.maximum(potentials, LOWEST),
            "multiplier": max(0.0, float(marginals[rows["budget"]][0])),
        }
        if self.limits.odds is not None:
            mu = np.zeros((n, k, k))
            off = ~np.eye(k, dtype=bool)
            block = np.zeros((self.n_used, k, k))
            block[:, off] = marginals[rows["odds"]].reshape(self.n_used, k * (k - 1))
            mu[symbols] = block
            dual["odds"] = mu
        if self.limits.leakage is not None:
            nu = np.zeros((n, k))
            nu[symbols] = marginals[rows["peaks"]].reshape(self.n_used, k)
            dual["leakage"] = nu
        return dual

    def _inequalities(self) -> tuple[sp.csr_array, FloatArray, dict[str, slice]]:
        problem, k, n = self.problem, self.k, self.n_used
        mass_at = self.at_masses + np.arange(n * k).reshape(n, k)
        parts: list[tuple[str, sp.csr_array, FloatArray]] = []
        rows, columns, values = [], [], []
        for t, tangent in enumerate(self.tangents):
            row = t * n + np.arange(n)
            rows += [np.repeat(row, k), row]
            columns += [mass_at.ravel(), self.at_values + np.arange(n)]
            values += [tangent[self.used].ravel(), -np.ones(n)]
        parts.append(self._part("tangents", rows, columns, values, len(self.tangents) * n, 0.0))
        spent = [np.zeros(len(self.pairs), int), np.zeros(1, int)]
        places = [np.arange(len(self.pairs)), np.array([self.at_excess])]
        sizes = [self.pairs.distances, -np.ones(1)]
        room = problem.budget * (1 - _SHRINK)
        parts.append(self._part("budget", spent, places, sizes, 1, room))
        if self.limits.odds is not None:
            a, b = np.nonzero(~np.eye(k, dtype=bool))
            ratio = np.arange(n * len(a)).reshape(n, len(a))
            parts.append(
                self._part(
                    "odds",
                    [ratio.ravel(), ratio.ravel()],
                    [mass_at[:, a].ravel(), mass_at[:, b].ravel()],
                    [
                        np.tile(1 / problem.prior[a], n),
                        np.tile(-self.limits.odds / problem.prior[b], n),
                    ],
                    ratio.size,
                    0.0,
                )
            )
        if self.limits.leakage is not None:
            cell, peak = np.arange(n * k), np.repeat(self.at_peaks + np.arange(n), k)
            sizes = [np.tile(1 / problem.prior, n), -np.ones(n * k)]
            parts.append(
                self._part("peaks", [cell, cell], [mass_at.ravel(), peak], sizes, n * k, 0.0)
            )
            top = float(np.exp(self.limits.leakage))
            places = [self.at_peaks + np.arange(n)]
            parts.append(self._part("leakage", [np.zeros(n, int)], places, [np.ones(n)], 1, top))
        slices, start = {}, 0
        for name, part, _ in parts:
            slices[name] = slice(start, start + part.shape[0])
            start += part.shape[0]
        matrix = sp.csr_array(sp.vstack([part for _, part, _ in parts]))
        return matrix, np.concatenate([limit for _, _, limit in parts]), slices

    def _part(
        self,
        name: str,
        rows: list[Any],
        columns: list[Any],
        values: list[Any],
        n_rows: int,
        limit: float,
    ) -> tuple[str, sp.csr_array, FloatArray]:
        where = (np.concatenate(rows), np.concatenate(columns))
        shape = (n_rows, self.n_variables)
        matrix = sp.csr_array((np.concatenate(values), where), shape=shape)
        return name, matrix, np.full(n_rows, limit)

    def _equalities(self) -> tuple[sp.csr_array, FloatArray]:
        """Columns keep their probabilities; masses of symbols are what the pairs bring."""
        problem, pairs, k = self.problem, self.pairs, self.k
        n_columns, every = problem.n_columns, np.arange(len(pairs))
        private = np.arange(k)
        rows = [
            pairs.columns,
            (n_columns + self.place[:, None] * k + private).ravel(),
            n_columns + np.arange(self.n_used * k),
        ]
        columns = [every, np.repeat(every, k), self.at_masses + np.arange(self.n_used * k)]
        values = [
            np.ones(len(pairs)),
            problem.posterior[pairs.columns].ravel(),
            -np.ones(self.n_used * k),
        ]
        shape = (n_columns + self.n_used * k, self.n_variables)
        where = (np.concatenate(rows), np.concatenate(columns))
        matrix = sp.csr_array((np.concatenate(values), where), shape=shape)
        return matrix, np.concatenate([problem.mass, np.zeros(self.n_used * k)])
