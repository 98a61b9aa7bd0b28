"""The full ordered alphabet where few symbols are near a column's price: ascent, interior point.

The ascent cools with a multiplier that follows what is spent. Its masses miss the budget, since a
few heavy columns move far or not at all. So the interior point has the pairs that carried mass on
either side of the budget: their mapping is near optimal, and its multiplier exact. The next cycle
begins with that one.
"""

from collections.abc import Sequence

import numpy as np

from privpipe.numerics.mapping.problem import programme
from privpipe.numerics.mapping.problem.ordered_pricing import list_near, price_from
from privpipe.numerics.mapping.problem.programme import Pairs
from privpipe.numerics.mapping.problem.search_progress import Search
from privpipe.numerics.mapping.problem.smoothed_dual import DualPoint
from privpipe.numerics.mapping.search.dual_ascent import REACH, DualAscent
from privpipe.numerics.mapping.search.interior_point import solve_interior_point
from privpipe.protocols import IntArray

# Temperatures: of the first round and of the multiplier's first move, nats, since cells leave what
# they leave; of another cycle's first round and of the last, in targets of the gap.
_WARM, _SETTLED = 1.5e-3, 8e-4
_AGAIN, _COLD = 5.0, 2.0
_COOLING = 0.7
_ROUNDS, _MOST_ROUNDS, _MOST_CYCLES = 4, 20, 6
# Targets of the gap that a round of more than these must win.
_CLIMBS = 0.1
# Share of a column's mass from which a pair is retained for the interior point; targets of the gap
# from a column's price up to which it has any pair.
_RETAINED, _TIGHT = 1e-4, 3.0
# Pairs of a round: 400 MB. Where warm rounds have more, the search begins colder. And seconds that
# a limit must leave for each symbol: the mapping comes last, and neighbours have one all along.
_MOST, _SECONDS = 2**23, 6e-3
# Share of the gap that a cycle must win.
_WORTH = 0.1


def is_thin(progress: Search) -> bool:
    """Whether few symbols are near a price, private values are two, and the time may do.

    By absolute distance with a large budget potentials climb as distances do, over thousands of
    symbols of all but one price. Lists of near pairs would be of no use there.
    """
    problem, duals, left = progress.problem, progress.duals, progress.max_seconds - progress.seconds
    if problem.n_private != 2 or left < _SECONDS * problem.n_symbols:
        return False
    values = price_from(problem, duals, problem.stay.copy())
    return list_near(problem, duals, values, REACH * _COLD * progress.gap, _MOST) is not None


def search_full(progress: Search) -> None:
    """Search the full alphabet, of two private values, from the best duals so far."""
    ascent = DualAscent(progress, progress.duals, _MOST)
    gap, before = progress.gap, np.inf
    for cycle in range(_MOST_CYCLES):
        _cool(progress, ascent, max(_AGAIN * gap, progress.reached if cycle else _WARM), cycle == 0)
        carriers, spent = [(progress.plan.symbols, progress.plan.columns)], [1.0]
        # Without both sides of the budget no mapping of the pairs may spend it.
        while len(spent) <= _ROUNDS or not min(spent) < 1 < max(spent):
            pairs = _climb(progress, ascent, _COLD * gap)
            if pairs is None or progress.stop:
                return
            symbols, columns, share = _carry(progress, ascent, pairs, _COLD * gap, cycle == 0)
            carriers.append((symbols, columns))
            spent.append(share)
            if len(spent) > _MOST_ROUNDS:
                break
        _finish(progress, ascent, carriers)
        if progress.stop or progress.reached > (1 - _WORTH) * before:
            return
        before = progress.reached


def _cool(progress: Search, ascent: DualAscent, tau: float, follows: bool) -> None:
    """Rounds at falling temperatures, nats, at each while the bound climbs."""
    while tau > _COLD * progress.gap:
        for number in range(_MOST_ROUNDS):
            before, pairs = ascent.bound, _climb(progress, ascent, tau)
            if pairs is None:
                break
            if follows and tau <= _SETTLED:
                _carry(progress, ascent, pairs, tau, True)
            if number >= _ROUNDS - 1 and ascent.bound - before < _CLIMBS * progress.gap:
                break
        tau *= _COOLING
        ascent.cool()


def _climb(progress: Search, ascent: DualAscent, tau: float) -> Pairs | None:
    """A round; its pairs."""
    pairs = None if progress.is_late() else ascent.list_pairs(tau)
    if pairs is not None:
        ascent.climb(pairs, tau)
    return pairs


def _carry(
    progress: Search, ascent: DualAscent, pairs: Pairs, tau: float, follows: bool
) -> tuple[IntArray, IntArray, float]:
    """The pairs that carry mass, and the share of the budget that they spend."""
    weights = ascent.masses(pairs, tau)
    spent = programme.dot(weights, pairs.distances) / progress.problem.budget
    if follows:
        ascent.follow(spent)
    carry = weights > _RETAINED * progress.problem.mass[pairs.columns]
    return pairs.symbols[carry], pairs.columns[carry], spent


def _finish(
    progress: Search, ascent: DualAscent, carriers: Sequence[tuple[IntArray, IntArray]]
) -> None:
    """The interior point on what is all but tight and what carried mass."""
    problem, duals, gap = progress.problem, ascent.duals, progress.gap
    pairs = list_near(problem, duals, ascent.values, _TIGHT * gap, ascent.most_pairs)
    if pairs is None:
        return
    pairs = pairs.join(problem, *map(np.concatenate, zip(*carriers, strict=True)))
    anchor = np.exp(duals.potentials) * problem.prior * (1e-2 * gap / problem.n_symbols)
    start = DualPoint(pairs, ascent.logits[:, None], duals.multiplier, 0.0)
    try:
        solved = solve_interior_point(progress, start, anchor, start_gap=1e-3, gap=0.1 * gap)
    except (np.linalg.LinAlgError, RuntimeError):
        return
    if solved is not None:
        plan = programme.make_feasible(problem, pairs, solved.y[:-1], 1e-9)
        ascent.restart(ascent.logits, float(solved.z[-1]))
        progress.offer(plan, ascent.duals, ascent.bound, len(pairs), "interior")
