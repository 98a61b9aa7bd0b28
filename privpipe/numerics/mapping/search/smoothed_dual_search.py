"""Default search on any alphabet: the smoothed dual at falling temperatures.

Each round maximises the smoothed dual on a sparse set of pairs, prices the result over all pairs
and adds what was found. The temperature only falls when the bound over all pairs agrees with the
bound on the set. Otherwise the set is what is wrong, and grows first.
"""

from dataclasses import replace

import numpy as np

from privpipe.numerics.mapping.problem import programme, smoothed_dual
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Programme
from privpipe.numerics.mapping.problem.search_progress import Explorer, Search
from privpipe.numerics.mapping.problem.smoothed_dual import DualPoint, Late
from privpipe.protocols import FloatArray, IntArray

# What follows was chosen on the laws of `tests.bench mapping`. None of it is in a bound, which
# prices all pairs anew: a bad choice costs rounds, never truth.
_COOLING = 0.6
# Temperatures from its column's price; a pair there carries exp(-30) of the mass: none in float64.
_REACH = 30.0
# Posteriors of 0 have no logit; the prior's share of the start draws them in.
_SMOOTHING = 0.3
# The multiplier of the start is a guess: what is cheap below and above it is priced, too.
_GUESSES = (0.3, 1.0, 3.0)
# Of the target: smoothing costs about the temperature in nats, so lower ones buy nothing.
_LOWEST = 0.3
# Mass of the prior that every symbol is given, in temperatures: keeps the dual's Hessian from
# vanishing at symbols without visitors, and moves its value by less than the smoothing does.
_ANCHOR = 1e-2
# Least relative gain of a round, and how many rounds may pass without it.
_GAIN, _IDLE = 0.01, 6
# Temperatures by which the bound over all pairs may lag behind the bound on the set. Below the
# first the set is as good as whole, and cooling is safe; below the second the point may be
# returned; from the third on the pairs are what is wrong, from the fourth it must get warmer.
_WHOLE, _CONSISTENT, _BEHIND, _LOST = 0.3, 1.0, 2.0, 20.0
# New pairs are given this share of the mass, spread by a softmin that many times as warm, so that
# every posterior has seen those who want to come; and nothing is warmed beyond so many nats.
_NEWCOMERS, _SPREAD, _WARMEST = 0.02, 4.0, 0.05


def start_logits(problem: Programme) -> FloatArray:
    """Logits of each symbol's own posterior, drawn towards the prior.

    Returns
    -------
    logits : (n_symbols, n_private - 1)
    """
    return np.asarray(np.log(_reference(problem)[:, :-1] / _reference(problem)[:, -1:]))


def _reference(problem: Programme) -> FloatArray:
    posterior = np.tile(problem.prior, (problem.n_symbols, 1))
    posterior[problem.stay] = problem.posterior
    return (posterior + _SMOOTHING * problem.prior) / (1 + _SMOOTHING)


def start_state(
    problem: Programme, explore: Explorer, temperature: float, start: Duals | None, late: Late
) -> DualPoint:
    """Pairs and dual point to begin with.

    Parameters
    ----------
    problem
    explore
    temperature
        In nats.
    start
        A dual point from an earlier or a like problem, where there is one.
    late
        Whether the time is up.
    """
    if start is None:
        logits, middle = start_logits(problem), _SMOOTHING / problem.budget
    else:
        logits, middle = smoothed_dual.logits_of(start.potentials, problem.prior), start.multiplier
    g = smoothed_dual.potentials_of(logits, problem.prior)
    pairs = Pairs.of(problem, problem.stay, np.arange(problem.n_columns))
    for factor in _GUESSES if start is None else (1.0,):
        found = explore(problem, Duals(g, middle * factor), None, np.inf)
        pairs = pairs.join(problem, found.symbols, found.columns)
    point = DualPoint(pairs, logits, max(middle, 1e-12 / problem.budget), temperature)
    return smoothed_dual.spend_budget(problem, point, late) if start is None else point


def anneal(
    progress: Search, explore: Explorer, state: DualPoint, target: float, most: int = 60
) -> DualPoint:
    """Search until the certified gap is at most `target`, or no round helps any more.

    Parameters
    ----------
    progress
        Takes every round's plan and bound.
    explore
    state
        From `start_state`.
    target
        Nats; at least about 1e-6, below which an interior point is the better tool.
    most

    Returns
    -------
    state
        The last one that was consistent over all pairs.
    """
    problem = progress.problem
    reference = _reference(problem) / problem.n_symbols
    lowest, idle, good = _LOWEST * target, 0, state
    for _ in range(most):
        before = progress.reached
        tau = state.temperature
        anchor = reference * (_ANCHOR * tau)
        solved, masses, converged = smoothed_dual.maximise_smoothed_dual(
            problem, state, anchor=anchor, late=progress.is_late
        )
        duals = solved.duals(problem)
        cost, level = smoothed_dual.column_minima(problem, state.pairs, duals)
        found = explore(problem, duals, level, _REACH * tau)
        plan = programme.make_feasible(problem, state.pairs, masses, 1e-7)
        progress.offer(plan, found.duals, found.bound, len(state.pairs), "anneal")
        on_pairs = programme.dot(problem.mass, level) - solved.multiplier * problem.budget
        lag = (on_pairs - found.raw_bound) / tau
        # A symbol without visitors spoils the bound as given; repaired, the set is nearly as good.
        behind = (on_pairs - max(found.raw_bound, found.bound)) / tau
        if lag < _CONSISTENT:
            good = solved
        if progress.stop or progress.reached <= target:
            break
        idle = 0 if progress.reached < (1 - _GAIN) * before else idle + 1
        if idle >= _IDLE:
            break
        # Pairs that carry nothing go, what was found joins.
        near = state.pairs.keep_near(problem, cost - level[state.pairs.columns], _REACH * tau)
        pairs = near.join(problem, found.symbols, found.columns)
        if behind >= _BEHIND:
            state = _mix_newcomers(progress, solved, masses, pairs, anchor, behind > _LOST)
            continue
        # Unrepaired it would draw all who were added to it; repaired it undercuts no column.
        logits = solved.logits
        if found.bound > found.raw_bound:
            logits = smoothed_dual.logits_of(found.duals.potentials, problem.prior)
        cooler = max(_COOLING * tau, lowest) if lag < _WHOLE and converged else tau
        state = DualPoint(pairs, logits, solved.multiplier, cooler)
    return good


def _mix_newcomers(
    progress: Search,
    solved: DualPoint,
    masses: FloatArray,
    pairs: Pairs,
    anchor: FloatArray,
    lost: bool,
) -> DualPoint:
    """Start from mixed masses, where the set lagged far: new pairs are given a little of each."""
    problem, tau = progress.problem, solved.temperature
    weights = _NEWCOMERS * replace(solved, pairs=pairs, temperature=_SPREAD * tau).masses(problem)
    before, after = _keys(problem, solved.pairs), _keys(problem, pairs)
    old = np.minimum(np.searchsorted(after, before), len(pairs) - 1)
    same = after[old] == before
    weights[old[same]] += (1 - _NEWCOMERS) * masses[same]
    posterior = problem.posterior[pairs.columns]
    mixed = programme.released_masses(pairs.symbols, weights, posterior, problem.n_symbols) + anchor
    logits = np.log(mixed[:, :-1] / mixed[:, -1:])
    # Far behind at a low temperature is easier to fix at a higher one.
    warmer = min(_WARMEST, 2.0 * tau) if lost else tau
    point = DualPoint(pairs, logits, solved.multiplier, warmer)
    return smoothed_dual.spend_budget(problem, point, progress.is_late)


def _keys(problem: Programme, pairs: Pairs) -> IntArray:
    return np.asarray(pairs.columns * problem.n_symbols + pairs.symbols)
