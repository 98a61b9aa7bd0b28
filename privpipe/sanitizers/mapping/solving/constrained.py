"""solve_constrained_mapping: the least information within a budget and limits on the worst case."""

from dataclasses import replace

import numpy as np

from privpipe.errors import ConvergenceError, OptionError
from privpipe.numerics.mapping.problem import programme
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, price_in_memory
from privpipe.numerics.mapping.problem.programme import Plan, Programme
from privpipe.numerics.mapping.problem.search_progress import Deadline, Search
from privpipe.numerics.mapping.search import cutting_planes
from privpipe.protocols import ArrayLike, FloatArray
from privpipe.sanitizers.mapping.alphabet import Distortion, prepare_alphabet
from privpipe.sanitizers.mapping.solving import solve
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, UnseenPolicy

# Released symbols of less probability are left out: their limits are rounding alone.
_LEAST_MASS = 1e-9
_SAFETY = 1e-12


def solve_constrained_mapping(
    joint: ArrayLike,
    codes: ArrayLike,
    distortion: Distortion = "hamming",
    *,
    distortion_budget: float,
    max_posterior_odds: float | None = None,
    max_leakage: float | None = None,
    gap: float = 1e-4,
    price: PriceOracle | None = None,
    max_seconds: float = np.inf,
    unseen: UnseenPolicy = "nearest",
) -> SparseMapping:
    """Find the mapping of least information within a budget and limits on the worst case.

    Parameters
    ----------
    joint, codes, distortion, distortion_budget, gap, price, max_seconds, unseen
        As of `solve_privacy_mapping`.
    max_posterior_odds
        No released symbol multiplies the odds of two private values by more; above 1.
    max_leakage
        Largest maximal leakage of the whole mapping, nats, positive (Issa, Wagner, Kamath 2020).

    Returns
    -------
    mapping
        Its `lower_bound` is over all mappings within budget and limits.

    Raises
    ------
    OptionError
        If no mapping within the budget keeps the limits; the budget that is needed is said.
    ConvergenceError
        If the time is over before one was found.

    Notes
    -----
    Guarantee: for the joint given, the limits hold for the probabilities as stored, in rational
    arithmetic. The programme's solution is mixed with a release that does not look at the record,
    until they do.
    """
    solve.check_solve_options(distortion_budget, gap, "auto", 1, max_seconds)
    deadline = Deadline(max_seconds)
    limits = _check_limits(max_posterior_odds, max_leakage)
    alphabet = prepare_alphabet(joint, codes, distortion, distortion_budget)
    problem = alphabet.problem
    progress = Search(problem, gap)
    if max_seconds < np.inf:
        needed = solve.forecast_certificate(alphabet, progress.duals, max_seconds)
        deadline = deadline.end_earlier(needed)
    found = cutting_planes.search_constrained(
        # Half the target: mixing until the limits hold takes some of the rest.
        problem,
        limits,
        gap=gap / 2,
        price=price or price_in_memory,
        deadline=deadline,
    )
    plan = _keep_limits(problem, found, limits)
    spent = plan.distortion
    if spent > problem.budget and found.stopped == "time limit":
        raise cutting_planes.explain_time_limit()
    if spent > problem.budget:
        raise OptionError(
            f"no mapping of mean distortion {distortion_budget:g} keeps the worst-case limits.",
            remedy=f"Set distortion_budget to {1.001 * spent * alphabet.unit:.4g} or more, or "
            "loosen max_posterior_odds or max_leakage.",
            code="limits-need-budget",
        )
    progress.plan, progress.duals = plan, found.duals
    stored = solve.store_plan(alphabet, progress, found.stopped, unseen)
    bound = min(max(found.bound, stored.lower_bound), stored.information)
    reached = stored.information - bound <= gap * (1 + 1e-9)
    # What mixing takes may be more than what the search left of the gap.
    stopped = "gap reached" if reached else found.stopped.replace("gap reached", "rounds")
    return replace(stored, lower_bound=bound, stopped=stopped)


def _check_limits(odds: float | None, leakage: float | None) -> cutting_planes.Limits:
    if odds is not None and not 1 < odds < np.inf:
        raise OptionError(f"max_posterior_odds is {odds}.", remedy="Use a number above 1.")
    if leakage is not None and not 0 < leakage < np.inf:
        raise OptionError(f"max_leakage is {leakage} nats.", remedy="Use a positive number.")
    return cutting_planes.Limits(odds, leakage)


def _keep_limits(
    problem: Programme, found: cutting_planes.ConstrainedPlan, limits: cutting_planes.Limits
) -> Plan:
    """The programme's masses made a mapping, then mixed until the limits hold exactly."""
    pairs = found.pairs
    traces = np.bincount(pairs.symbols, found.weights, problem.n_symbols)
    large: FloatArray = (traces[pairs.symbols] >= _LEAST_MASS).astype(np.float64)
    weights = np.asarray(found.weights * large, dtype=np.float64)
    sums = np.bincount(pairs.columns, weights, problem.n_columns)
    if (sums <= 0).any():
        raise ConvergenceError(
            "the linear programme left a symbol without a release.",
            remedy="Loosen max_posterior_odds, max_leakage or distortion_budget.",
            code="programme",
        )
    weights = weights * (problem.mass / sums)[pairs.columns]
    released = np.bincount(pairs.symbols, weights, problem.n_symbols).astype(np.float64)
    share = _find_share(problem, found, weights, released, limits)
    used = weights > 0
    plan = programme.measure_plan(problem, pairs.symbols[used], pairs.columns[used], weights[used])
    return plan if share == 0 else _mix(problem, plan, released / released.sum(), share)


def _find_share(
    problem: Programme,
    found: cutting_planes.ConstrainedPlan,
    weights: FloatArray,
    released: FloatArray,
    limits: cutting_planes.Limits,
) -> float:
    """How much of a release that does not look at the record brings the limits about."""
    pairs, prior = found.pairs, problem.prior
    posterior = problem.posterior[pairs.columns]
    masses = programme.released_masses(pairs.symbols, weights, posterior, problem.n_symbols)
    given: FloatArray = masses[released > 0].T / prior[:, None]
    common, share = released[released > 0] / released.sum(), 0.0
    if limits.odds is not None:
        excess = given.max(axis=0) * (1 + 1e3 * _SAFETY) - limits.odds * given.min(axis=0)
        # (1 - share) given + share common has the odds where share / (1 - share) is this.
        ratio = excess / (common * (limits.odds - 1))
        share = float(np.max(ratio / (1 + ratio), initial=0.0, where=ratio > 0))
    if limits.leakage is not None:
        total = float(given.max(axis=0).sum()) * (1 + 1e3 * _SAFETY)
        top = float(np.exp(limits.leakage))
        if total > top:
            share = max(share, (total - top) / (total - 1))
    # A little more than solves the equation, for the stored probabilities' rounding.
    return min(1.0, share * (1 + 1e-6) + _SAFETY) if share > 0 else 0.0


def _mix(problem: Programme, plan: Plan, common: FloatArray, share: float) -> Plan:
    """Every column releases `common` with this probability, and else what it did."""
    used, n = np.flatnonzero(common > 0), problem.n_columns
    symbols = np.concatenate([plan.symbols, np.tile(used, n)])
    columns = np.concatenate([plan.columns, np.repeat(np.arange(n), len(used))])
    extra = np.outer(problem.mass, share * common[used]).ravel()
    weights = np.concatenate([(1 - share) * plan.weights, extra])
    return programme.add_up(problem, symbols, columns, weights)
