"""The convex programme of a privacy mapping in pairs, and the dual numbers that bound it.

Salamatian et al., SPPM, section 2 and problem (2), written in joint masses ``y_ij = p_j x_ij``.
Columns are the original symbols with positive probability; symbols are all that may be released.
A distance answers for given pairs and for blocks of columns, and never holds n x n numbers unless
the user gave them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import rel_entr

from privpipe.protocols import FloatArray, IntArray, WordArray

DistanceKind = Literal["hamming", "squared", "absolute"]

# In place of the logarithm of nothing: exp of it is still a normal float64.
LOWEST = -690.0
_SHARES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)


@dataclass(frozen=True, eq=False)
class CodeDistance:
    """A distance between rows of codes.

    Parameters
    ----------
    kind
        "hamming": number of differing attributes. "squared": sum of squared differences.
        "absolute": sum of absolute differences.
    symbols : (n_symbols, n_attributes)
        Codes or positions of the symbols that may be released, float64.
    columns : (n_columns, n_attributes)
        Those of the original symbols.
    """

    kind: DistanceKind
    symbols: FloatArray
    columns: FloatArray

    @property
    def n_symbols(self) -> int:
        return len(self.symbols)

    def pairs(self, symbols: IntArray, columns: IntArray) -> FloatArray:
        total = np.zeros(len(symbols))
        for k in range(self.symbols.shape[1]):
            total += self._one(self.symbols[symbols, k], self.columns[columns, k])
        return total

    def block(self, start: int, stop: int) -> FloatArray:
        total = np.zeros((stop - start, self.n_symbols))
        for k in range(self.symbols.shape[1]):
            total += self._one(self.symbols[:, k], self.columns[start:stop, k, None])
        return total

    def columns_of(self, columns: IntArray) -> CodeDistance:
        return CodeDistance(self.kind, self.symbols, self.columns[columns])

    def divide(self, unit: float) -> CodeDistance:
        step = math.sqrt(unit) if self.kind == "squared" else unit
        return CodeDistance(self.kind, self.symbols / step, self.columns / step)

    def find_extremes(self) -> tuple[float, float]:
        if self.kind == "hamming":
            return 1.0, float(self.symbols.shape[1])
        power = 2 if self.kind == "squared" else 1
        tables = [np.unique(column) for column in self.symbols.T]
        gaps = [np.diff(table).min() for table in tables if len(table) > 1]
        # Of NumPy: what overflows is infinite, and refused as such.
        least = float(np.min(gaps or [1.0]) ** power)
        spans = np.array([table[-1] - table[0] for table in tables])
        return least, float(max((spans**power).sum(), least))

    def measure_means(self, mass: FloatArray) -> FloatArray:
        pairs = zip(self.symbols.T, self.columns.T, strict=True)
        return np.asarray(np.sum([_mean_along(self.kind, s, c, mass) for s, c in pairs], axis=0))

    def _one(self, a: FloatArray, b: FloatArray) -> FloatArray:
        if self.kind == "hamming":
            return np.asarray(a != b, dtype=np.float64)
        return np.asarray((a - b) ** 2) if self.kind == "squared" else np.abs(a - b)


@dataclass(frozen=True, eq=False)
class MatrixDistance:
    """A distance given as numbers, (n_columns, n_symbols), for small alphabets."""

    matrix: FloatArray

    @property
    def n_symbols(self) -> int:
        return int(self.matrix.shape[1])

    def pairs(self, symbols: IntArray, columns: IntArray) -> FloatArray:
        return np.asarray(self.matrix[columns, symbols])

    def block(self, start: int, stop: int) -> FloatArray:
        return np.asarray(self.matrix[start:stop])

    def columns_of(self, columns: IntArray) -> MatrixDistance:
        return MatrixDistance(self.matrix[columns])

    def divide(self, unit: float) -> MatrixDistance:
        return MatrixDistance(self.matrix / unit)

    def find_extremes(self) -> tuple[float, float]:
        least = self.matrix.min(initial=math.inf, where=self.matrix > 0)
        return (float(least), float(self.matrix.max())) if least < math.inf else (1.0, 1.0)

    def measure_means(self, mass: FloatArray) -> FloatArray:
        return np.asarray(mass @ self.matrix)


Distance = CodeDistance | MatrixDistance
"""From the columns (original symbols) to the symbols (what may be released).

`pairs` gives the distances of the pairs (symbols[k], columns[k]), (n_pairs,). `block` gives those
of the columns start to stop to all symbols, (stop - start, n_symbols). `columns_of` is the same
distance for some of the columns; `divide` is the same in units, a power of four. `find_extremes`
finds the least positive and the largest between different symbols, 1 and 1 without any.
`measure_means` finds the mean distortion of releasing one symbol for all, for each symbol,
(n_symbols,), in closed form for codes.
"""


def _mean_along(kind: str, s: FloatArray, c: FloatArray, mass: FloatArray) -> FloatArray:
    if kind == "squared":
        centre = float(mass @ c)
        return np.asarray((s - centre) ** 2 + float(mass @ (c - centre) ** 2))
    values, inverse = np.unique(c, return_inverse=True)
    weight = np.bincount(inverse.ravel(), mass)
    if kind == "hamming":
        place = np.minimum(np.searchsorted(values, s), len(values) - 1)
        return np.asarray(1.0 - np.where(values[place] == s, weight[place], 0.0))
    below = np.searchsorted(values, s, side="right")
    mass_below = np.concatenate([[0.0], np.cumsum(weight)])[below]
    moment = np.concatenate([[0.0], np.cumsum(weight * values)])
    return np.asarray(s * (2 * mass_below - 1) + moment[-1] - 2 * moment[below])


def pack_codes(codes: FloatArray) -> WordArray | None:
    """Pack up to eight attributes in each 64-bit word, one byte each, for counting differences.

    Parameters
    ----------
    codes : (n, n_attributes)
        Integer codes.

    Returns
    -------
    words : (n_words, n), or None where a code is outside -1 .. 254 or no whole number.
    """
    # -1 is a missing attribute, and +1 makes it 0: 256 values fit a byte.
    if codes.size and (codes.min() < -1 or codes.max() > 254 or (codes % 1).any()):
        return None
    n, n_attributes = codes.shape
    table = np.zeros((n, -(-n_attributes // 8) * 8), np.uint8)
    table[:, :n_attributes] = (codes + 1).astype(np.uint8)
    return np.ascontiguousarray(table.view(np.uint64).T)


@dataclass(frozen=True, eq=False)
class Programme:
    """Minimise the information of the released symbol within a budget of mean distortion.

    Parameters
    ----------
    mass : (n_columns,)
        Probability of each original symbol, positive, sum 1.
    posterior : (n_columns, n_private)
        Probabilities of the private values given the original symbol; rows sum to 1.
    distance
        From columns to symbols.
    budget
        Largest mean distortion, in the distance's unit; positive.
    stay : (n_columns,)
        The symbol at distance 0 of each column: itself.
    """

    mass: FloatArray
    posterior: FloatArray
    distance: Distance
    budget: float
    stay: IntArray

    @cached_property
    def prior(self) -> FloatArray:
        """Probabilities of the private values, (n_private,)."""
        return np.asarray(self.mass @ self.posterior)

    @property
    def n_columns(self) -> int:
        return len(self.mass)

    @property
    def n_symbols(self) -> int:
        return self.distance.n_symbols

    @property
    def n_private(self) -> int:
        return int(self.posterior.shape[1])


@dataclass(frozen=True, eq=False)
class Duals:
    """Numbers from which anyone can compute a lower bound on the optimum.

    Parameters
    ----------
    potentials : (n_symbols, n_private)
        In nats, with ``sum_a p_a exp(g_ia) <= 1`` for every symbol i.
    multiplier
        Nats per unit of distortion, not negative.
    """

    potentials: FloatArray
    multiplier: float


@dataclass(frozen=True, eq=False)
class Pairs:
    """A sparse set of pairs (symbol, column), ordered by column, then symbol.

    Parameters
    ----------
    pointers : (n_columns + 1,)
        Where each column's pairs begin.
    symbols : (n_pairs,)
    columns : (n_pairs,)
    distances : (n_pairs,)
    """

    pointers: IntArray
    symbols: IntArray
    columns: IntArray
    distances: FloatArray

    @classmethod
    def of(cls, problem: Programme, symbols: IntArray, columns: IntArray) -> Pairs:
        """Sort, drop doubles and look the distances up."""
        if len(symbols) and symbols.min() < 0:  # prices that are no numbers name no symbol
            raise FloatingPointError("prices are not finite")
        # Not np.unique, which hashes whole numbers since NumPy 2.3: 24 times as slow for keys like
        # these, most of them in order.
        key = np.sort(columns.astype(np.int64) * problem.n_symbols + symbols, kind="stable")
        key = key[np.diff(key, prepend=-1) > 0]
        column, symbol = np.divmod(key, problem.n_symbols)
        return cls._in_order(problem, symbol, column)

    @classmethod
    def sort(
        cls, problem: Programme, symbols: IntArray, columns: IntArray, weights: FloatArray
    ) -> tuple[Pairs, FloatArray]:
        """Pairs named once, in order, and their weights in the same order."""
        order = np.lexsort((symbols, columns))
        return cls._in_order(problem, symbols[order], columns[order]), weights[order]

    @classmethod
    def _in_order(cls, problem: Programme, symbols: IntArray, columns: IntArray) -> Pairs:
        counts = np.bincount(columns, minlength=problem.n_columns)
        pointers = np.concatenate([[0], np.cumsum(counts)])
        return cls(pointers, symbols, columns, problem.distance.pairs(symbols, columns))

    def join(self, problem: Programme, symbols: IntArray, columns: IntArray) -> Pairs:
        """These and more, each once."""
        both = np.concatenate([self.symbols, symbols]), np.concatenate([self.columns, columns])
        return Pairs.of(problem, *both)

    def keep_near(self, problem: Programme, slack: FloatArray, most: float) -> Pairs:
        """Those of less slack (n_pairs,), nats, and each column's own symbol."""
        keep = (slack < most) | (self.symbols == problem.stay[self.columns])
        return Pairs.of(problem, self.symbols[keep], self.columns[keep])

    def __len__(self) -> int:
        return len(self.symbols)

    def graph(
        self, problem: Programme
    ) -> tuple[IntArray, IntArray, FloatArray, FloatArray, FloatArray]:
        """What the kernels read; see `smoothed_dual`."""
        return self.pointers, self.symbols, self.distances, problem.posterior, problem.mass


@dataclass(frozen=True, eq=False)
class Plan:
    """A feasible mapping in joint masses with what it achieves.

    Parameters
    ----------
    symbols, columns : (n_pairs,)
        Pairs that carry mass, in no particular order, none twice.
    weights : (n_pairs,)
        Joint masses, not negative; those of column j sum to its probability.
    information
        Nats.
    distortion
        Mean distortion, at most the budget.
    """

    symbols: IntArray
    columns: IntArray
    weights: FloatArray
    information: float
    distortion: float


def dot(a: FloatArray, b: FloatArray) -> float:
    """Inner product, by one thread: those of BLAS take longer to wake than vectors of pairs do."""
    return float(np.einsum("i,i->", a, b))


def measure_information(masses: FloatArray) -> float:
    """Mutual information of private value and released symbol, in nats.

    Parameters
    ----------
    masses : (n_symbols, n_private)
        Joint probabilities; an empty cell adds nothing.

    Returns
    -------
    information
        ``sum(masses * log(masses / (p_a * q_i)))``, not negative.

    References
    ----------
    Salamatian et al., equation (1).

    Examples
    --------
    >>> round(measure_information(np.eye(2) / 2), 6)
    0.693147
    """
    product = masses.sum(1, keepdims=True) * masses.sum(0, keepdims=True)
    return max(0.0, float(rel_entr(masses, product / masses.sum()).sum()))


def log_ratios(masses: FloatArray) -> FloatArray:
    """Gradient of the information: log of posterior over prior of each private value.

    The derivative for the joint mass of (symbol i, column j) is the inner product of row i with the
    posterior of column j. The second term of the gradient printed in the paper (section 3.4)
    cancels identically.

    Parameters
    ----------
    masses : (n_symbols, n_private)

    Returns
    -------
    ratios : (n_symbols, n_private)
        In nats; `LOWEST` where the posterior is 0, and 0 for symbols never released, which is
        a subgradient there.
    """
    # The second gradient term that the paper prints (section 3.4) cancels identically.
    q = masses.sum(1, keepdims=True)
    prior = masses.sum(0) / masses.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(masses / (prior * q))
    return np.where(q > 0, np.maximum(ratios, LOWEST), 0.0)


def normalise_potentials(potentials: FloatArray, prior: FloatArray) -> FloatArray:
    """Shift each symbol's potentials so that ``sum_a p_a exp(g_ia) = 1``.

    Parameters
    ----------
    potentials : (n_symbols, n_private)
        In nats.
    prior : (n_private,)

    Returns
    -------
    potentials : (n_symbols, n_private)
    """
    # From the largest on, so that no exponential overflows.
    top = potentials.max(axis=1, keepdims=True)
    return np.asarray(potentials - top - np.log(np.exp(potentials - top) @ prior)[:, None])


def identity_duals(problem: Programme) -> Duals:
    """Duals that certify the identity where no distortion is allowed.

    Potentials are the log-ratios of the symbols' own posteriors; the multiplier is so large
    that no column gains by leaving its own symbol.
    """
    law = np.tile(problem.prior, (problem.n_symbols, 1))
    law[problem.stay] = problem.posterior
    with np.errstate(divide="ignore"):
        ratios = np.log(law / problem.prior)
    potentials = normalise_potentials(np.maximum(ratios, LOWEST), problem.prior)
    # Twice the largest difference of potentials, over the nearest neighbour.
    return Duals(potentials, -2 * LOWEST / min(1.0, problem.distance.find_extremes()[0]))


def released_masses(
    symbols: IntArray, weights: FloatArray, posterior: FloatArray, n_symbols: int
) -> FloatArray:
    """Joint masses of released symbol and private value from the masses of pairs.

    Parameters
    ----------
    symbols : (n_pairs,)
        Released symbol of each pair.
    weights : (n_pairs,)
        Joint mass of each pair.
    posterior : (n_pairs, n_private)
        Probabilities of the private values given the pair's original symbol.
    n_symbols

    Returns
    -------
    masses : (n_symbols, n_private)
    """
    columns = [np.bincount(symbols, weights * shares, n_symbols) for shares in posterior.T]
    return np.stack(columns, axis=1)


def measure_plan(
    problem: Programme, symbols: IntArray, columns: IntArray, weights: FloatArray
) -> Plan:
    """Information and distortion of joint masses that are known to be feasible."""
    masses = released_masses(symbols, weights, problem.posterior[columns], problem.n_symbols)
    spent = dot(problem.distance.pairs(symbols, columns), weights)
    return Plan(symbols, columns, weights, measure_information(masses), spent)


def add_up(problem: Programme, symbols: IntArray, columns: IntArray, mass: FloatArray) -> Plan:
    """A plan of feasible masses, some of whose pairs are named twice."""
    keys, place = np.unique(columns * problem.n_symbols + symbols, return_inverse=True)
    column, symbol = np.divmod(keys, problem.n_symbols)
    total = np.bincount(place.ravel(), mass, len(keys)).astype(np.float64)
    used = total > 0
    return measure_plan(problem, symbol[used], column[used], total[used])


def make_feasible(
    problem: Programme, pairs: Pairs, weights: FloatArray, smallest: float = 0.0
) -> Plan:
    """Turn nearly feasible masses into a feasible plan.

    Columns are scaled to their probabilities after dropping shares below `smallest`. What is then
    spent beyond the budget is won back by mixing with the identity, which costs nothing.

    Parameters
    ----------
    problem
    pairs
    weights : (n_pairs,)
        Not negative; a column without mass stays at itself.
    smallest
        Least share of a column that is not dropped.

    Returns
    -------
    plan
        Its distortion is at most the budget in float64.
    """
    start = pairs.pointers[:-1]
    total = np.add.reduceat(np.append(weights, 0.0), start)
    total[pairs.pointers[1:] == start] = 0.0
    share = weights / np.where(total > 0, total, 1.0)[pairs.columns]
    # Before the columns are scaled: what is dropped is given to the rest of its column.
    share[share < smallest] = 0.0
    left = np.bincount(pairs.columns, share, problem.n_columns)
    share /= np.where(left > 0, left, 1.0)[pairs.columns]
    weights = share * problem.mass[pairs.columns]
    spent = dot(pairs.distances, weights)
    # A hair below the budget, for the rounding of the sum that measures it again.
    keep = min(1.0, problem.budget * (1 - 1e-14) / spent) if spent > 0 else 1.0
    rest = problem.mass * np.where(left > 0, 1 - keep, 1.0)
    return _with_identity(problem, pairs, keep * weights, rest)


def _with_identity(problem: Programme, pairs: Pairs, weights: FloatArray, rest: FloatArray) -> Plan:
    home = pairs.symbols == problem.stay[pairs.columns]
    weights = weights.copy()
    weights[home] += rest[pairs.columns[home]]
    rest = rest.copy()
    rest[pairs.columns[home]] = 0.0
    extra, used = np.flatnonzero(rest > 0), np.flatnonzero(weights > 0)
    symbols = np.concatenate([pairs.symbols[used], problem.stay[extra]])
    columns = np.concatenate([pairs.columns[used], extra])
    return measure_plan(problem, symbols, columns, np.concatenate([weights[used], rest[extra]]))


def thin_plan(problem: Programme, plan: Plan, most_information: float) -> Plan:
    """Drop the smallest shares of each column while the information stays low enough.

    Interior points leave a trace of mass on every pair; releases want few symbols per column.

    Parameters
    ----------
    problem
    plan
    most_information
        Nats that the thinner plan may have.

    Returns
    -------
    plan
        The thinnest that fits, or the plan itself.
    """
    pairs, weights = _sort_plan(problem, plan)
    # From the boldest on: the first that fits is the thinnest.
    for share in _SHARES:
        thinner = make_feasible(problem, pairs, weights, share)
        if thinner.information <= most_information:
            return thinner
    return plan


def _sort_plan(problem: Programme, plan: Plan) -> tuple[Pairs, FloatArray]:
    return Pairs.sort(problem, plan.symbols, plan.columns, plan.weights)


def draw_into_budget(problem: Programme, plan: Plan) -> Plan:
    """The plan, mixed with the identity where rounding carried it over the budget."""
    if plan.distortion <= problem.budget:
        return plan
    return make_feasible(problem, *_sort_plan(problem, plan))


def keep_free_pairs(problem: Programme, plan: Plan) -> Plan:
    """The plan without what costs distortion; columns keep the proportions of the rest."""
    pairs, weights = _sort_plan(problem, plan)
    return make_feasible(problem, pairs, np.where(pairs.distances > 0, 0.0, weights))
