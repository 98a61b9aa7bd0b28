"""Reduced-cost searches: for every column the cheapest symbols, for every symbol its partners.

The search of SPPM's Algorithm 2, equation (7), in float64 over all pairs. A block of columns is the
unit that is spread over a cluster. Every pair's value is computed by the same sequence of
operations whatever the block, so the answer does not depend on the partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.problem import programme
from privpipe.numerics.mapping.problem.programme import CodeDistance, Duals, Programme
from privpipe.protocols import FloatArray, IntArray

# No contraction or reassociation: the same pair must give the same bits in every block.
_LOOSE = {"nnan", "ninf", "nsz"}
# Costs whose least is taken at once.
_LANES = 64


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def count_differences(symbols: Any, column: Any, out: Any) -> Any:
    # One byte per attribute: fold each byte's bits to its lowest, then add the bytes up.
    for w in range(symbols.shape[0]):
        row, c = symbols[w], column[w]
        for i in range(row.shape[0]):
            x = row[i] ^ c
            x |= x >> np.uint64(4)
            x |= x >> np.uint64(2)
            x |= x >> np.uint64(1)
            x &= np.uint64(0x0101010101010101)
            count = (x * np.uint64(0x0101010101010101)) >> np.uint64(56)
            out[i] = np.float64(np.int32(count)) + (out[i] if w else 0.0)


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def sum_distances(kind: Any, symbols: Any, column: Any, out: Any) -> Any:
    for k in range(symbols.shape[0]):
        row, c = symbols[k], column[k]
        for i in range(row.shape[0]):
            t = row[i] - c
            if kind == 1:
                step = t * t
            elif kind == 2:
                step = abs(t)
            else:
                step = 1.0 if t != 0.0 else 0.0
            out[i] = step + (out[i] if k else 0.0)


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def find_cheapest(cost: Any, best: Any, values: Any) -> Any:
    """Indices of the smallest costs, in order; ties by index. Returns the least cost."""
    n, top = cost.shape[0], best.shape[0]
    values[:] = np.inf
    # The least of 64 costs vectorises; only few lanes are looked into.
    for start in range(0, n, _LANES):
        stop = min(start + _LANES, n)
        least = np.inf
        for i in range(start, stop):
            least = min(least, cost[i])
        if least >= values[top - 1]:
            continue
        for i in range(start, stop):
            c = cost[i]
            if c < values[top - 1]:
                k = top - 1
                while k > 0 and values[k - 1] > c:
                    values[k] = values[k - 1]
                    best[k] = best[k - 1]
                    k -= 1
                values[k] = c
                best[k] = i
    return values[0]


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def price_columns_kernel(
    operands: Any, g: Any, posterior: Any, lam: Any, group: Any, first: Any, levels: Any, found: Any
) -> Any:
    """Prices of columns: `operands` from `_operands`, `found` the arrays that are filled."""
    kind, words_s, words_c, x_s, x_c, dense = operands
    values, best, slack, partner = found
    n = g.shape[1]
    cost = np.empty(n)
    least = np.empty(best.shape[1])
    for j in range(posterior.shape[0]):
        if kind == 3:
            count_differences(words_s, words_c[j], cost)
        elif kind == 4:
            cost[:] = dense[j]
        else:
            sum_distances(kind, x_s, x_c[j], cost)
        for i in range(n):
            cost[i] *= lam
        for a in range(g.shape[0]):
            p, row = posterior[j, a], g[a]
            if p != 0.0:
                for i in range(n):
                    cost[i] += p * row[i]
        values[j] = find_cheapest(cost, best[j], least)
        if slack.shape[1]:
            low, who, v = slack[group[j]], partner[group[j]], values[j]
            if len(levels):
                v = levels[j]
            for i in range(n):
                c = cost[i] - v
                if c < low[i]:
                    low[i] = c
                    who[i] = first + j


_KINDS = {"hamming": 0, "squared": 1, "absolute": 2}


@dataclass(frozen=True, eq=False)
class PricingQuestion:
    """What the prices must say.

    Parameters
    ----------
    duals
    top
        Number of cheapest symbols to name for every column.
    partners
        Whether to name the best column of every group for every symbol.
    levels : (n_columns,), optional
        Column potentials nu that reduced costs of partners are counted from; the prices
        themselves when not given.
    near
        Largest reduced cost, counted from the levels, of a partner that is named and of a symbol
        named after a column's cheapest; nats, not negative. What is farther is left out.
    values
        Whether the prices themselves are needed, or only what they sum to, weighed.
    """

    duals: Duals
    top: int = 1
    partners: bool = False
    levels: FloatArray | None = None
    near: float = np.inf
    values: bool = True


@dataclass(frozen=True, eq=False)
class Prices:
    """Answer for some columns.

    Parameters
    ----------
    values : (n_columns,)
        ``nu_j = min_i [posterior_j . g_i + lam d_ij]`` over all symbols, nats. What comes from
        elsewhere leaves them out unless they were needed.
    best : (n_columns, top)
        Cheapest symbols in order of their value; equal values in order of the symbols; -1 after
        the last one that is near.
    slack : (n_symbols, n_groups)
        Least reduced cost of each symbol over the columns of a group, nats; no rows without
        `partners`, infinite where none is near. A column's group is its most likely private value
        relative to the prior. Of what comes from elsewhere those below 0 alone are exact, for
        nothing else is done with them; the others that are near are 0.
    partner : (n_symbols, n_groups)
        The column that attains it; -1 where none is near or the group is empty.
    total
        What the values weighed by the columns' masses sum to, where they did not come; see
        `sum_prices`.
    """

    values: FloatArray
    best: IntArray
    slack: FloatArray
    partner: IntArray
    total: float | None = None


PriceOracle = Callable[[Programme, PricingQuestion], Prices]
"""Answers for all columns of a problem: in memory, or block by block on workers."""


def column_groups(problem: Programme) -> IntArray:
    """Group of each column: its most likely private value relative to the prior."""
    return np.asarray(np.argmax(problem.posterior / problem.prior, axis=1))


def price_block(
    problem: Programme, question: PricingQuestion, start: int, stop: int, groups: IntArray
) -> Prices:
    """Price the columns start to stop against all symbols.

    Parameters
    ----------
    problem
        Its columns may be a part; `start` and `stop` count within it.
    question
    start, stop
    groups : (n_columns,)
        Group of each column, from the whole problem's prior.

    Returns
    -------
    prices
        Partners are counted within `problem`.
    """
    n, width, m = problem.n_symbols, stop - start, problem.n_private
    values, best = np.empty(width), np.empty((width, min(question.top, n)), np.int64)
    rows = n if question.partners else 0
    slack, partner = np.full((m, rows), np.inf), np.full((m, rows), -1, np.int64)
    levels = np.empty(0) if question.levels is None else question.levels
    g = np.ascontiguousarray(question.duals.potentials.T)
    posterior = np.ascontiguousarray(problem.posterior[start:stop])
    kernel: Any = price_columns_kernel
    inside, found = slice(start, stop), (values, best, slack, partner)
    lam, operands = float(question.duals.multiplier), _operands(problem, start, stop)
    kernel(operands, g, posterior, lam, groups[inside], start, levels[inside], found)
    if np.isfinite(question.near):
        far = slack > question.near
        slack[far], partner[far] = np.inf, -1
        _drop_far(problem, question, start, values, best)
    return Prices(values, best, slack.T, partner.T)


def _drop_far(
    problem: Programme, question: PricingQuestion, at: int, values: FloatArray, best: IntArray
) -> None:
    """Leave out the symbols beyond each column's cheapest that are not near, in place."""
    if best.shape[1] == 1:
        return
    columns = np.repeat(np.arange(at, at + len(best)), best.shape[1] - 1)
    symbols = best[:, 1:].ravel()
    # Priced once more for the named pairs alone: the kernel returns the cheapest cost only.
    cost = question.duals.multiplier * problem.distance.pairs(symbols, columns)
    for value in range(problem.n_private):
        cost += problem.posterior[columns, value] * question.duals.potentials[symbols, value]
    levels = values if question.levels is None else question.levels[at : at + len(best)]
    best[:, 1:][cost.reshape(len(best), -1) - levels[:, None] > question.near] = -1


def _operands(problem: Programme, start: int, stop: int) -> tuple[Any, ...]:
    """The kernel's view of the distances of some columns; what it does not read is empty."""
    codes, none = problem.distance, np.empty((0, 0))
    words = none.astype(np.uint64)
    if not isinstance(codes, CodeDistance):
        return 4, words, words, none, none, np.ascontiguousarray(codes.block(start, stop))
    if codes.kind == "hamming":
        symbols, columns = map(programme.pack_codes, (codes.symbols, codes.columns))
        if symbols is not None and columns is not None:
            return 3, symbols, np.ascontiguousarray(columns[:, start:stop].T), none, none, none
    x_s = np.ascontiguousarray(codes.symbols.T)
    x_c = np.ascontiguousarray(codes.columns[start:stop])
    return _KINDS[codes.kind], words, words, x_s, x_c, none


def merge_prices(parts: Sequence[Prices], starts: Sequence[int]) -> Prices:
    """Put the answers of consecutive blocks together.

    Parameters
    ----------
    parts
        Answers, in the order of their columns.
    starts
        What to add to the partners of each part to count within the whole problem.

    Returns
    -------
    prices
        Of equal slacks the earlier column is the partner.
    """
    slack, partner = parts[0].slack.copy(), parts[0].partner + starts[0]
    # -1 names no column, and must not become one by the shift.
    partner[parts[0].partner < 0] = -1
    for part, start in zip(parts[1:], starts[1:], strict=True):
        # Strictly: of equal slacks the earlier column stays, whatever the blocks.
        better = part.slack < slack
        slack[better] = part.slack[better]
        partner[better] = part.partner[better] + start
    values = np.concatenate([part.values for part in parts])
    return Prices(values, np.concatenate([part.best for part in parts]), slack, partner)


def price_in_memory(problem: Programme, question: PricingQuestion) -> Prices:
    """Price all columns by the search over all pairs, in this process."""
    return price_block(problem, question, 0, problem.n_columns, column_groups(problem))


def sum_prices(mass: FloatArray, prices: Prices) -> float:
    """Sum of all prices weighed by the columns' masses, nats: the same bits wherever it is taken.

    A sum and no product of matrices, whose order of additions is the linear algebra library's.
    """
    return prices.total if prices.total is not None else float(np.sum(mass * prices.values))


def measure_bound(problem: Programme, prices: Prices, duals: Duals) -> float:
    """Lower bound on the optimum in nats: ``sum_j p_j nu_j - lam * budget``, at least 0.

    Valid for any potentials with ``sum_a p_a exp(g_ia) <= 1`` and ``lam >= 0``. By convexity of
    x log x the information of a plan is at least the sum of its masses times
    ``posterior_j . g_i``.
    """
    return max(0.0, sum_prices(problem.mass, prices) - duals.multiplier * problem.budget)
