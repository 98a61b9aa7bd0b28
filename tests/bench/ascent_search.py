"""The full ordered alphabet where few symbols are near a column's price: ascent, interior point.

The ascent cools with a multiplier that follows what is spent. Its masses miss the budget, since a
few heavy columns move far or not at all. So the interior point has the pairs that carried mass on
either side of the budget: their mapping is near optimal, and its multiplier exact. The next cycle
begins with that one.

``python -m tests.bench.ascent_search "line, gamma, 20011, absolute, 3.7"`` solves a problem of
`bench_mapping_scale` with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from unittest import mock

import numpy as np

from privpipe.numerics.mapping.problem import programme
from privpipe.numerics.mapping.problem.programme import CodeDistance, Duals
from privpipe.numerics.mapping.problem.search_progress import SearchProgress
from privpipe.numerics.mapping.problem.smoothed_dual import DualPoint
from privpipe.numerics.mapping.search import coarse_to_fine_search
from privpipe.numerics.mapping.search.interior_point import solve_interior_point
from privpipe.numerics.mapping.search.mass_exchange import exchange_masses
from privpipe.protocols import IntArray
from tests.bench.dual_ascent import REACH, DualAscent
from tests.bench.near_pairs import list_near, price_from

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
_KEPT, _TIGHT = 1e-4, 3.0
# Pairs of a round: 400 MB. Where warm rounds have more, the search begins colder.
_MOST = 2**23
# Share of the gap that a cycle must win.
_WORTH = 0.1


def is_thin(progress: SearchProgress) -> bool:
    """Whether few symbols are near a price at the best duals, and private values are two."""
    problem, duals = progress.problem, progress.duals
    if problem.n_private != 2:
        return False
    values = price_from(problem, duals, problem.stay.copy())
    return list_near(problem, duals, values, REACH * _COLD * progress.gap, _MOST) is not None


def search_full(progress: SearchProgress) -> None:
    """Search the full alphabet, of two private values, from the best duals so far."""
    ascent = DualAscent(progress, progress.duals, _MOST)
    gap, before = progress.gap, np.inf
    for cycle in range(_MOST_CYCLES):
        warm = max(_AGAIN * gap, progress.reached if cycle else _WARM)
        _cool(progress, ascent, warm, cycle == 0)
        carriers, spent = [(progress.plan.symbols, progress.plan.columns)], [1.0]
        # Without both sides of the budget no mapping of the pairs may spend it.
        while len(spent) <= _ROUNDS or not min(spent) < 1 < max(spent):
            found = _climb(progress, ascent, _COLD * gap, cycle == 0)
            if found is None or progress.stop:
                return
            carriers.append(found[:2])
            spent.append(found[2])
            if len(spent) > _MOST_ROUNDS:
                break
        _finish(progress, ascent, carriers)
        if progress.stop or progress.reached > (1 - _WORTH) * before:
            return
        before = progress.reached


def _cool(progress: SearchProgress, ascent: DualAscent, tau: float, follows: bool) -> None:
    """Rounds at falling temperatures, nats, at each while the bound climbs."""
    gap = progress.gap
    while tau > _COLD * gap:
        for number in range(_MOST_ROUNDS):
            before = ascent.bound
            if _climb(progress, ascent, tau, follows) is None:
                break
            if number >= _ROUNDS - 1 and ascent.bound - before < _CLIMBS * gap:
                break
        tau *= _COOLING
        ascent.cool()


def _climb(
    progress: SearchProgress, ascent: DualAscent, tau: float, follows: bool
) -> tuple[IntArray, IntArray, float] | None:
    """A round; the pairs that carried mass, and what they spent."""
    pairs = None if progress.is_late() else ascent.list_pairs(tau)
    if pairs is None:
        return None
    ascent.climb(pairs, tau)
    weights = ascent.masses(pairs, tau)
    spent = programme.dot(weights, pairs.distances) / progress.problem.budget
    if follows and tau <= max(_SETTLED, _COLD * progress.gap):
        ascent.follow(spent)
    carried = weights > _KEPT * progress.problem.mass[pairs.columns]
    return pairs.symbols[carried], pairs.columns[carried], spent


def _finish(
    progress: SearchProgress, ascent: DualAscent, carriers: list[tuple[IntArray, IntArray]]
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
        solved = solve_interior_point(
            problem, start, anchor, start_gap=1e-3, gap=0.1 * gap, late=progress.is_late
        )
    except (np.linalg.LinAlgError, RuntimeError):
        return
    if solved is not None:
        plan = programme.make_feasible(problem, pairs, solved.y[:-1], 1e-9)
        ascent.restart(ascent.logits, float(solved.z[-1]))
        progress.offer(plan, ascent.duals, ascent.bound, len(pairs), "interior")


# Cells and groups of posteriors where every column has a posterior of its own: first, where few
# symbols are near a price, and where many are. There groups matter more than cells: at 65,537
# symbols 128 cells and 64 groups bring the bound to 2e-5 of the optimum, 256 and 24 to 6e-5.
_NOISY, _NOISY_THIN, _NOISY_THICK = (128, 24), (256, 24), (128, 64)
# Gaps from which ever finer cells suffice.
_NEARLY = 5.0


def _search_noisy(progress: SearchProgress, duals: Duals | None) -> Duals | None:
    """Cells to begin with; the full alphabet where few symbols are near a price, or neighbours.

    By absolute distance with a large budget potentials climb as distances do, over thousands of
    symbols of all but one price: lists of near pairs would be of no use.
    """
    search = coarse_to_fine_search._search_cells
    *_, duals = search(progress, *_NOISY, duals)
    if progress.stop:
        return duals
    thin, distance = is_thin(progress), cast(CodeDistance, progress.problem.distance)
    squared = distance.kind == "squared"
    shape = _NOISY_THIN if thin and not squared else _NOISY_THICK
    level, plan, duals = search(progress, *shape, duals)
    # By squared distance neighbours alone are often near enough, in a tenth of the time.
    if not progress.stop and (squared or not thin):
        exchange_masses(progress, level, plan, duals)
    if thin and progress.reached > _NEARLY * progress.gap and not progress.is_late():
        search_full(progress)
        return progress.duals
    return duals


@contextmanager
def searching_full() -> Iterator[None]:
    """Searches of large ordered alphabets go by the ascent where it is thin."""
    with mock.patch.object(coarse_to_fine_search, "_search_noisy", _search_noisy):
        yield


if __name__ == "__main__":
    from tests.bench.bench_mapping_scale import GRID, PROBLEMS, certify

    with searching_full():
        print(*certify(sys.argv[1], (GRID | PROBLEMS)[sys.argv[1]]), sep="\n")
