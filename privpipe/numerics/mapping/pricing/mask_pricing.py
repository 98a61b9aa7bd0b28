"""Hamming distances and two private values: prices over all pairs in near linear time.

``min_i [p(.|j) . g_i + lam d_ij]`` is the least over sets S of attributes of ``lam (K - |S|)`` plus
the least ``p(.|j) . g_i`` over the symbols that agree with j in S: where more than S agrees the set
counts too much, and a larger one counts right. With two private values the inner least is that of
lines in one number, the posterior of j, over a group of equal codes: a lower envelope. So
``2**K n log n`` operations do for n squared. Partners are the same question with the roles of
symbols and columns exchanged.

Of many attributes only the sets that leave out a few are searched so. What differs in more must
have potentials that are cheaper by as many multipliers than the best found: symbols in order of
their slopes are passed over in runs until some are, near an optimum a few in a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privpipe.numerics.mapping.pricing.mask_kernels import (
    build_envelopes,
    search_envelopes,
    search_far,
    sort_into_groups,
)
from privpipe.numerics.mapping.pricing.pair_pricing import Prices, PricingQuestion, column_groups
from privpipe.numerics.mapping.problem.distortion import CodeDistance
from privpipe.numerics.mapping.problem.programme import MappingProblem
from privpipe.protocols import FloatArray, IntArray

_MOST_ATTRIBUTES = 16
_MOST_MASKS = 64
_MOST_COMPARED = 12


def suits_masks(problem: MappingProblem) -> bool:
    """Whether sets of attributes and lines in one posterior do."""
    distance = problem.distance
    hamming = isinstance(distance, CodeDistance) and distance.kind == "hamming"
    return hamming and problem.n_private == 2 and _codes(problem)[0].shape[1] <= _MOST_ATTRIBUTES


@dataclass(eq=False)
class MaskPricing:
    """A pricing oracle, exact to the rounding of its costs; see the head of the module.

    Its `Prices.best` names the cheapest symbol of each set of attributes, fewer than are asked for
    where these coincide; the first is the cheapest of all. It keeps at most 64 numbers of 4 bytes a
    symbol and a column from round to round.
    """

    _problem: MappingProblem | None = field(default=None, init=False, repr=False)
    _masks: list[tuple[int, IntArray, IntArray, int]] = field(
        default_factory=list, init=False, repr=False
    )
    _digits: tuple[IntArray, ...] = field(default=(), init=False, repr=False)

    @property
    def _beyond(self) -> int:
        """In how many attributes pairs differ that agree in no set, at least; 0 without any."""
        fewest = min(n_kept for n_kept, *_ in self._masks)
        return max(n_kept for n_kept, *_ in self._masks) + 1 - fewest if fewest else 0

    def __call__(self, problem: MappingProblem, question: PricingQuestion) -> Prices:
        """Price all columns of a problem."""
        if problem is not self._problem:
            self._masks, self._problem = _group_by_masks(problem), problem
            self._digits = _digits(problem)
        symbols, every = self._find_cheapest(problem, question), np.arange(problem.n_columns)
        costs = _cost(problem, question, symbols, every[:, None])
        if self._beyond:
            far = self._find_far(problem, question, costs.min(axis=1))
            far = np.where(far < 0, symbols[:, 0], far)
            symbols = np.column_stack([symbols, far])
            costs = np.column_stack([costs, _cost(problem, question, far, every)])
        ranked = np.lexsort((symbols, costs), axis=1)
        costs = np.take_along_axis(costs, ranked, axis=1)
        symbols = np.take_along_axis(symbols, ranked, axis=1)
        values = costs[:, 0].copy()
        levels = values if question.levels is None else question.levels
        best = _keep_near(symbols, costs, levels, question)
        slack, partner = self._find_partners(problem, question, levels)
        return Prices(values, best, slack, partner)

    def _find_cheapest(self, problem: MappingProblem, question: PricingQuestion) -> IntArray:
        """The cheapest symbols that agree in some set of attributes, (n_columns, n_compared).

        Of the sets those whose costs, counted as if nothing else agreed, are the least.
        """
        g, lam = question.duals.potentials, question.duals.multiplier
        slope, height = np.ascontiguousarray(g[:, 1] - g[:, 0]), np.ascontiguousarray(g[:, 0])
        order = np.lexsort((np.arange(len(g)), height, -slope))
        n_attributes = _codes(problem)[0].shape[1]
        found = np.empty((len(self._masks), problem.n_columns), np.int64)
        about = np.empty(found.shape)
        at = np.ascontiguousarray(problem.posterior[:, 1])
        for k, (n_kept, of_symbol, of_column, n) in enumerate(self._masks):
            row = found[k]
            _search(order, of_symbol, n, slope, height, of_column, at, row)
            row[row < 0] = problem.stay[row < 0]
            about[k] = height[row] + slope[row] * at + lam * (n_attributes - n_kept)
        width = min(_MOST_COMPARED, len(found))
        least = np.argpartition(about, width - 1, axis=0)[:width]
        return np.ascontiguousarray(np.take_along_axis(found, least, axis=0).T)

    def _find_far(
        self, problem: MappingProblem, question: PricingQuestion, low: FloatArray
    ) -> IntArray:
        """A cheaper symbol of every column among those beyond all sets, -1 for none."""
        g = question.duals.potentials
        slope, at = g[:, 1] - g[:, 0], problem.posterior[:, 1]
        order = np.argsort(slope, kind="stable")
        given = self._digits[0][order], self._digits[1], at, question.duals.multiplier
        return _search_far(order, g[:, 0], slope, *given, self._beyond, low)

    def _find_partners(
        self, problem: MappingProblem, question: PricingQuestion, levels: FloatArray
    ) -> tuple[FloatArray, IntArray]:
        """The column of least reduced cost of every symbol and group of columns."""
        n, m = problem.n_symbols, problem.n_private
        if not question.partners:
            return np.empty((0, m)), np.empty((0, m), np.int64)
        g, side = question.duals.potentials, column_groups(problem)
        slope, height = np.ascontiguousarray(problem.posterior[:, 1]), -levels
        order = np.lexsort((np.arange(len(slope)), height, -slope))
        at = np.ascontiguousarray(g[:, 1] - g[:, 0])
        slack, partner = np.full((n, m), np.inf), np.full((n, m), -1, np.int64)
        found, every = np.empty(n, np.int64), np.arange(n)
        for value in range(m):
            mine = order[side[order] == value]
            for _, of_symbol, of_column, n_groups in self._masks:
                _search(mine, of_column, n_groups, slope, height, of_symbol, at, found)
                known = found >= 0
                cost = np.full(n, np.inf)
                cost[known] = (
                    _cost(problem, question, every[known], found[known]) - levels[found[known]]
                )
                _take(slack[:, value], partner[:, value], cost, found, question.near)
            if self._beyond:
                mine = mine[::-1]
                given = self._digits[1][mine], self._digits[0], at, question.duals.multiplier
                low = np.minimum(slack[:, value], question.near) - g[:, 0]
                far = _search_far(mine, height, slope, *given, self._beyond, low)
                known = far >= 0
                cost = np.full(n, np.inf)
                cost[known] = (
                    _cost(problem, question, every[known], far[known]) - levels[far[known]]
                )
                _take(slack[:, value], partner[:, value], cost, far, question.near)
        return slack, partner


def _take(
    slack: FloatArray, partner: IntArray, cost: FloatArray, found: IntArray, near: float
) -> None:
    """Keep what is cheaper, in place."""
    better = (cost < slack) & (cost <= near)
    slack[better], partner[better] = cost[better], found[better]


def _search_far(
    order: IntArray,
    height: FloatArray,
    slope: FloatArray,
    lines: IntArray,
    queries: IntArray,
    at: FloatArray,
    lam: float,
    beyond: int,
    low: FloatArray,
) -> IntArray:
    """Of lines by `order`, codes in that order too, the lowest of each query; -1 for none."""
    found = np.empty(len(at), np.int64)
    search: Any = search_far
    search(height[order], slope[order], lines, queries, at.copy(), lam, float(beyond), low, found)
    return np.where(found < 0, -1, order[found])


def _search(
    order: IntArray,
    group: IntArray,
    n_groups: int,
    slope: FloatArray,
    height: FloatArray,
    group_of_query: IntArray,
    at: FloatArray,
    found: IntArray,
) -> None:
    sort: Any = sort_into_groups
    build: Any = build_envelopes
    search: Any = search_envelopes
    members, starts = sort(order, group, n_groups)
    hull, size = build(members, starts, slope, height)
    search(hull, starts, size, slope, height, group_of_query, at, found)


def _codes(problem: MappingProblem) -> tuple[FloatArray, FloatArray]:
    distance: Any = problem.distance
    return distance.symbols, distance.columns


def _digits(problem: MappingProblem) -> tuple[IntArray, IntArray]:
    """Codes of symbols and of columns as numbers from 0 on, (n, n_attributes) each."""
    symbols, columns = _codes(problem)
    both = np.concatenate([symbols, columns])
    digits = [np.unique(column, return_inverse=True)[1].ravel() for column in both.T]
    table = np.stack(digits, axis=1).astype(np.int32)
    return np.ascontiguousarray(table[: len(symbols)]), np.ascontiguousarray(table[len(symbols) :])


def _choose_masks(n_attributes: int) -> list[int]:
    """All sets of attributes where they are few, else those that leave out least."""
    masks: list[int] = []
    for left_out in range(n_attributes + 1):
        more = [m for m in range(2**n_attributes) if n_attributes - m.bit_count() == left_out]
        if len(masks) + len(more) > _MOST_MASKS and left_out > 1:
            break
        masks += more
    return masks


def _group_by_masks(problem: MappingProblem) -> list[tuple[int, IntArray, IntArray, int]]:
    """For each set its size, the group of every symbol and column, and how many groups."""
    symbols, columns = _digits(problem)
    both, n = np.concatenate([symbols, columns]).astype(np.int64), len(symbols)
    sizes = both.max(axis=0) + 1
    found: list[tuple[int, IntArray, IntArray, int]] = []
    for mask in _choose_masks(both.shape[1]):
        key = np.zeros(len(both), np.int64)
        for k in range(both.shape[1]):
            if mask >> k & 1:
                _, key = np.unique(key * sizes[k] + both[:, k], return_inverse=True)
        key = key.ravel().astype(np.int32)
        found.append((mask.bit_count(), key[:n].copy(), key[n:].copy(), int(key.max()) + 1))
    return found


def _cost(
    problem: MappingProblem, question: PricingQuestion, symbols: IntArray, columns: IntArray
) -> FloatArray:
    """Costs of pairs, by the operations of the search over all pairs, in their order."""
    shape = np.broadcast_shapes(symbols.shape, columns.shape)
    i, j = np.broadcast_to(symbols, shape).ravel(), np.broadcast_to(columns, shape).ravel()
    cost = problem.distance.pairs(i, j) * question.duals.multiplier
    for value in range(problem.n_private):
        cost += problem.posterior[j, value] * question.duals.potentials[i, value]
    return np.asarray(cost.reshape(shape))


def _keep_near(
    symbols: IntArray, costs: FloatArray, levels: FloatArray, question: PricingQuestion
) -> IntArray:
    """The cheapest symbols, each once, that are near; -1 after the last."""
    again = np.zeros(symbols.shape, bool)
    for k in range(1, symbols.shape[1]):
        again[:, k] = (symbols[:, :k] == symbols[:, k : k + 1]).any(axis=1)
    far = costs - levels[:, None] > question.near
    far[:, 0] = False
    drop = again | far
    kept = np.where(drop, -1, symbols)
    order = np.argsort(drop, axis=1, kind="stable")[:, : question.top]
    return np.ascontiguousarray(np.take_along_axis(kept, order, axis=1))
