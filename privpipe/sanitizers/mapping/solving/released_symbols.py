"""Fewer released symbols, where what they reveal cannot be measured otherwise.

The optimum on counts releases most profiles, many of them rarely. Nothing can be said with
confidence about what a rare one reveals, so a promise counts it as if it gave much away. Here
each set of released symbols is charged for that. The programme is solved with the heaviest symbols
alone, for falling numbers of them and within the same distortion. The mapping of the least
*expected bound* is taken. All of it is a function of the fitted records.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from privpipe.numerics.mapping.mapping_search import search_mapping
from privpipe.numerics.mapping.problem.programme import CodeDistance, MatrixDistance, Programme
from privpipe.numerics.mapping.problem.search_progress import Deadline
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet
from privpipe.sanitizers.mapping.solving import solve
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

# From one number of symbols to the next: the expected bound is flat about its least.
_STEP = 0.8
# Numbers of symbols after the best one that may be worse, before no fewer are tried.
_WORSE = 1
# Distances held at once: 32 MiB.
_MOST_PAIRS = 2**22
# Of the budget: with less left to choose by, a mapping is a mere merging of symbols.
_LEAST_LEFT = 0.02


def charge_symbols(
    mapping: SparseMapping,
    joint: FloatArray,
    expect_bound: Callable[[sp.csc_array], float],
    *,
    gap: float,
    max_seconds: float = math.inf,
    solve_all: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = map,
) -> SparseMapping:
    """The mapping, or one that releases fewer symbols and is expected to promise more.

    Parameters
    ----------
    mapping
        Solved for `joint`, with a named distortion.
    joint : (n_private, n_symbols)
    expect_bound
        Of the probabilities of released symbols (rows) given original ones: nats.
    gap
        Target of the certified gap within each set of symbols, nats.
    max_seconds
        Of all of it, the certificate included; with 0 nothing is tried.
    solve_all
        Solves some sets apart, in order, and may begin some that will not be needed.

    Returns
    -------
    mapping
        Its lower bound is still that of all mappings within the budget: the difference to its
        information is what the measuring cost.
    """
    if mapping.stopped in ("perfect privacy", "nothing to hide"):
        return mapping
    if max_seconds <= 0:
        return _end(mapping, mapping, late=True)
    deadline, best, least = Deadline(max_seconds), mapping, expect_bound(mapping.mapping)
    one = deadline.spent
    kind, budget = mapping.distortion_kind, mapping.distortion_budget
    alphabet = prepare_alphabet(joint, mapping.codes, kind, budget)
    problem = alphabet.problem
    if max_seconds < math.inf:  # its potentials stay
        duals = solve.read_start(alphabet, mapping)
        one += solve.forecast_certificate(alphabet, duals, max_seconds)
        deadline = deadline.end_earlier(one)
    worse = 0
    try_set = partial(_try_set, problem, alphabet.order, expect_bound, gap)
    for tried in solve_all(try_set, _list_sets(problem, deadline)):
        if tried is None:
            break
        ordered, expected = tried
        worse = 0 if expected < least else worse + 1
        if expected < least:
            least = expected
            best = replace(mapping, **solve.list_columns(ordered))
        if worse > _WORSE:
            break
    found = mapping if best is mapping else solve.certify_plan(alphabet, best, gap)
    return _end(mapping, found, late=deadline.is_over)


def _list_sets(problem: Programme, deadline: Deadline) -> Iterator[tuple[IntArray, float]]:
    """The heaviest symbols, fewer and fewer, each with the seconds that are left by then."""
    heaviest = np.argsort(-problem.mass, kind="stable")
    size = _STEP * min(problem.n_columns, _MOST_PAIRS / problem.n_columns / _STEP)
    while size >= 2 and not deadline.is_over:
        yield np.sort(problem.stay[heaviest[: int(size)]]), deadline.left
        size *= _STEP


def _try_set(
    problem: Programme,
    order: IntArray,
    expect_bound: Callable[[sp.csc_array], float],
    gap: float,
    timed: tuple[IntArray, float],
) -> tuple[sp.csc_array, float] | None:
    """The best mapping onto a set of symbols, and its expected bound; see `_solve_within`."""
    found = _solve_within(problem, timed[0], gap, timed[1])
    return None if found is None else (ordered := _in_order(order, found), expect_bound(ordered))


def _end(mapping: SparseMapping, found: SparseMapping, *, late: bool) -> SparseMapping:
    """With all reasons: one must not hide another."""
    ended = [mapping.stopped]
    ended += ["symbols charged"] * (found is not mapping)
    ended += ["time limit"] * (late and mapping.stopped != "time limit")
    return replace(found, stopped=", ".join(ended))


def _solve_within(
    problem: Programme, chosen: IntArray, gap: float, max_seconds: float
) -> sp.csc_array | None:
    """The best mapping onto some of the symbols; None where the budget does not reach that far.

    A column's distances are counted from its nearest chosen symbol, which takes the place of
    itself. What all go at least is taken off the budget: the same programme, the same search.
    """
    whole = problem.distance
    assert isinstance(whole, CodeDistance)
    to_chosen = CodeDistance(whole.kind, whole.symbols[chosen], whole.columns)
    distance = to_chosen.block(0, problem.n_columns)
    nearest = distance.min(axis=1)
    left = problem.budget - float(problem.mass @ nearest)
    if left < _LEAST_LEFT * problem.budget:
        return None
    # Of symbols equally near the heaviest: whom it takes in is what it hides.
    weight = np.zeros(problem.n_symbols)
    weight[problem.stay] = problem.mass
    stay = np.where(distance == nearest[:, None], weight[chosen], -1.0).argmax(axis=1)
    excess = MatrixDistance(distance - nearest[:, None])
    within = replace(problem, distance=excess, budget=left, stay=stay)
    with np.errstate(all="ignore"):  # as in `solve_privacy_mapping`
        plan = search_mapping(within, gap=gap, max_seconds=max_seconds)[0].plan
    shape = (problem.n_symbols, problem.n_symbols)
    shares = plan.weights / problem.mass[plan.columns]
    return sp.csc_array((shares, (chosen[plan.symbols], problem.stay[plan.columns])), shape=shape)


def _in_order(order: IntArray, mapping: sp.csc_array) -> sp.csc_array:
    """The mapping by the user's numbers; symbols without records stay themselves."""
    pairs = mapping.tocoo()
    idle = np.setdiff1d(np.arange(len(order)), pairs.col)
    rows, columns = np.concatenate([pairs.row, idle]), np.concatenate([pairs.col, idle])
    shares = np.concatenate([pairs.data, np.ones(len(idle))])
    return sp.csc_array((shares, (order[rows], order[columns])), shape=mapping.shape)
