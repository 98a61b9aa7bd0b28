"""The last level of an ordered alphabet whose columns all have posteriors of their own.

The duals of a coarse problem are within the target of the gap long before its mapping is. Carried
back, columns of like posterior are spread over all symbols of their cell, which costs distortion.
The noise of single posteriors is only averaged where neighbours are released together. What remains
is a local question (who joins whom) with a global answer known. So what the coarse mapping moves
far stays moved, all else begins at its own place, and one of a few neighbours is released. Then
columns in turn move mass from the dearest of their symbols to the cheapest near by, by exact line
searches. That is descent by coordinates on the information and the price of distortion, .1 s a
sweep over 2**17.
"""

from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.problem import ordered_pricing, programme
from privpipe.numerics.mapping.problem.pair_pricing import PricingQuestion, measure_bound
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Plan, Programme
from privpipe.numerics.mapping.problem.search_progress import Search
from privpipe.numerics.mapping.search.coarsening import CoarseAlphabet
from privpipe.protocols import FloatArray, IntArray

# Of the spacing that balances noise against distortion: who joins whom is chosen here.
_CHOSEN = 0.15
_WIDEST = 8
_NEIGHBOURS = 4
# Short ones first, since each ends with a measurement on the full alphabet.
_BATCHES = (5, 5, 10, *(20,) * 8)
# Share of the gap that a long batch must win for another at this spacing.
_WORTH = 0.03
_STEPS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
# Symbols that a column may release; a 33rd takes the place of the smallest.
_SLOTS = 32
# Cells; what the coarse mapping moves less far begins at its own place.
_FAR = 2
_PRICING_BINS = 64
_SMALLEST_SHARE = 1e-9
# Potential, in nats, of a symbol that no column releases: none moves there alone.
_ABSENT = 1e3
# By how much the price of distortion grows, relatively, with what is spent beyond the budget.
_STIFFNESS = 10.0
# Nats per unit of mass below which a move is rounding; and Newton steps of a line search, and
# their relative end.
_LEAST_GAIN = 1e-9
_NEWTON_STEPS = 30
_CLOSE = 1e-3


@njit(cache=True, nogil=True)
def fill_slots(symbols: Any, columns: Any, weights: Any, held: Any, mass: Any) -> Any:
    """Put a plan's pairs into the slots of their columns; what finds none goes to the first."""
    used = np.zeros(len(held), np.int64)
    for k in range(len(symbols)):
        j = columns[k]
        if used[j] < held.shape[1]:
            held[j, used[j]] = symbols[k]
            mass[j, used[j]] = weights[k]
            used[j] += 1
        else:
            mass[j, 0] += weights[k]


@njit(cache=True, nogil=True)
def _price(j: Any, i: Any, p: Any, g: Any, lam: Any, square: Any, xs: Any, xq: Any) -> Any:
    step = abs(xs[i] - xq[j])
    cost = lam * (step * step if square else step)
    for a in range(p.shape[1]):
        cost += p[j, a] * g[i, a]
    return cost


@njit(cache=True, nogil=True)
def _slope(p: Any, left: Any, right: Any, t: Any, away: Any) -> Any:
    """Derivative and second derivative of the cost of moving t of a column from left to right."""
    # A tiny addition, not a branch: the target may be a symbol that no column releases yet.
    q, r = -t, t + 1e-300
    for a in range(len(p)):
        q += left[a]
        r += right[a]
    first, second = away, 0.0
    for a in range(len(p)):
        if p[a] > 0.0:
            # What is taken away may be all there is; the logarithm then stops at a millionth of it.
            source = max(left[a] - t * p[a], 1e-6 * left[a], 1e-300)
            target = max(right[a] + t * p[a], 1e-300)
            first += p[a] * (np.log(target / r) - np.log(source / max(q, 1e-300)))
            second += p[a] * p[a] * (1.0 / target + 1.0 / source)
    return first, second - 1.0 / max(q, 1e-300) - 1.0 / r


@njit(cache=True, nogil=True)
def _best_share(p: Any, left: Any, right: Any, most: Any, away: Any) -> Any:
    """How much of a column to move, by safeguarded Newton steps; the cost is convex in it."""
    low, high, t = 0.0, most, most
    for step in range(_NEWTON_STEPS):
        slope, bend = _slope(p, left, right, t, away)
        # Still falling at the end of the segment: all of it moves.
        if slope <= 0.0 and step == 0:
            return most
        if slope > 0.0:
            high = t
        else:
            low = t
        new = t - slope / bend if bend > 0.0 else -1.0
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - t) <= _CLOSE * new:
            return new
        t = new
    return t


@njit(cache=True, nogil=True)
def _move(held: Any, mass: Any, place: Any, to: Any, t: Any, p: Any, released: Any) -> Any:
    """Move t from a slot to a symbol; the smallest slot makes room where all are taken."""
    n_slots, slot, free, least = len(held), -1, -1, 0
    mass[place] = mass[place] - t if t < mass[place] else 0.0
    for k in range(n_slots):
        if mass[k] <= 0.0:
            free = k
        elif held[k] == to:
            slot = k
        elif mass[k] < mass[least] or mass[least] <= 0.0:
            least = k
    extra = 0.0
    # No room: the smallest slot's mass goes along, which `released` must follow.
    if slot < 0 and free < 0:
        slot, extra = least, mass[least]
        for a in range(len(p)):
            released[held[least], a] = max(released[held[least], a] - extra * p[a], 0.0)
            released[to, a] += extra * p[a]
        held[least] = to
    elif slot < 0:
        slot = free
        held[slot], mass[slot] = to, 0.0
    mass[slot] += t


@njit(cache=True, nogil=True)
def sweep_columns(
    positions: Any, law: Any, price: Any, state: Any, offsets: Any, named: Any, backwards: Any
) -> Any:
    """Every column moves mass from its dearest symbol to the cheapest near those it goes to.

    `held` and `mass` are the slots of every column, (n_columns, n_slots). `released` are the masses
    of every symbol and `g` its log-ratios to the prior, both up to date. `named` are further
    symbols that a column looks at. The price of distortion rises with what is `spent` beyond the
    budget: an augmented Lagrangian. Returns what is spent then, but for what slots that were needed
    held.
    """
    xs, xq = positions
    p, log_prior, square = law
    multiplier, budget, spent = price
    held, mass, released, g = state
    n, width = held.shape
    for turn in range(n):
        j = n - 1 - turn if backwards else turn
        # Raised within a sweep: a price corrected only after it lags, and the budget swings.
        lam = multiplier * max(0.0, 1.0 + _STIFFNESS * (spent / budget - 1.0))
        dearest, place, cheapest, to = -np.inf, -1, np.inf, -1
        for k in range(width):
            if mass[j, k] <= 0.0:
                continue
            cost = _price(j, held[j, k], p, g, lam, square, xs, xq)
            if cost > dearest:
                dearest, place = cost, k
            for offset in offsets:
                i = held[j, k] + offset
                if 0 <= i < len(xs):
                    cost = _price(j, i, p, g, lam, square, xs, xq)
                    if cost < cheapest:
                        cheapest, to = cost, i
        for k in range(named.shape[1]):
            cost = _price(j, named[j, k], p, g, lam, square, xs, xq)
            if cost < cheapest:
                cheapest, to = cost, named[j, k]
        if place < 0 or dearest - cheapest < _LEAST_GAIN or held[j, place] == to:
            continue
        at = held[j, place]
        here, there = abs(xs[at] - xq[j]), abs(xs[to] - xq[j])
        away = there * there - here * here if square else there - here
        t = _best_share(p[j], released[at], released[to], mass[j, place], lam * away)
        if not t > 0.0:
            continue
        spent += t * away
        _move(held[j], mass[j], place, to, t, p[j], released)
        for a in range(p.shape[1]):
            released[at, a] = max(released[at, a] - t * p[j, a], 0.0)
            released[to, a] += t * p[j, a]
        _refresh(released, g, at, log_prior)
        _refresh(released, g, to, log_prior)
    return spent


@njit(cache=True, nogil=True)
def _refresh(released: Any, g: Any, i: Any, log_prior: Any) -> Any:
    total = 0.0
    for a in range(released.shape[1]):
        total += released[i, a]
    for a in range(released.shape[1]):
        # Below it a posterior is rounding alone.
        if total > 1e-15:
            g[i, a] = np.log(max(released[i, a], 1e-300) / total) - log_prior[a]
        else:
            g[i, a] = _ABSENT


def exchange_masses(progress: Search, level: CoarseAlphabet, plan: Plan, duals: Duals) -> None:
    """Offer mappings of the full alphabet made from a coarse one.

    Parameters
    ----------
    progress
        Of the full alphabet.
    level, plan
        The coarse problem and its mapping.
    duals
        Of the coarse problem, on the full alphabet.
    """
    problem = progress.problem
    bins = ordered_pricing.bin_posteriors(problem.posterior, _PRICING_BINS)
    assert bins is not None, "ordered solves are only planned where the posteriors have bins"
    prices = ordered_pricing.price_ordered(problem, PricingQuestion(duals), bins)
    bound = measure_bound(problem, prices, duals)
    first = _choose_spacing(problem, duals.multiplier)
    # The rule is a guess: half and double of it are tried where it stops short.
    for spacing in (first, max(1, first // 2), 2 * first):
        slots = _Slots(problem, duals.multiplier, _begin(level, plan, spacing))
        offsets = spacing * np.unique(np.concatenate([-_STEPS, _STEPS]))
        named = np.ascontiguousarray(_snap(prices.best, spacing, problem.n_symbols))
        for n_sweeps in _BATCHES:
            before = progress.reached
            slots.sweep(n_sweeps, offsets, named)
            progress.offer(slots.as_plan(), duals, bound, slots.n_pairs, "exchange")
            if progress.stop:
                return
            if n_sweeps == _BATCHES[-1] and progress.reached > (1 - _WORTH) * before:
                break


def measure_noise(problem: Programme) -> float:
    """Nats that single posteriors reveal more than their neighbours' mean, but for a few jumps."""
    joint = problem.mass[:, None] * problem.posterior
    starts = np.arange(0, len(joint), _NEIGHBOURS)
    apart = np.add.reduceat(_sum_terms(joint, problem.prior), starts)
    lost = apart - _sum_terms(np.add.reduceat(joint, starts), problem.prior)
    # A hundredth of the groups may straddle a jump, which is no noise.
    return float(np.sort(lost)[: len(lost) - len(lost) // 100].sum())


def _sum_terms(masses: FloatArray, prior: FloatArray) -> FloatArray:
    """The information's term of each row of masses, nats."""
    share = masses / masses.sum(axis=1, keepdims=True) / prior
    return np.asarray((masses * np.log(np.where(masses > 0, share, 1.0))).sum(axis=1))


def _choose_spacing(problem: Programme, multiplier: float) -> int:
    """How many neighbours share a released symbol, a power of two.

    Of `s` neighbours at random the noise is an s-th. Going to the middle one costs a quarter of s
    steps, by squared distance a twelfth of their square. The spacing balances both, and is a
    seventh of that, since who joins whom is chosen.
    """
    line: Any = problem.distance
    x = line.symbols[:, 0]
    step, noise = float(x[-1] - x[0]) / len(x), measure_noise(problem)
    if line.kind == "squared":
        balanced = (6.0 * noise / (multiplier * step**2)) ** (1 / 3)
    else:
        balanced = (4.0 * noise / (multiplier * step)) ** 0.5
    return int(2.0 ** np.clip(np.round(np.log2(max(_CHOSEN * balanced, 1.0))), 0, _WIDEST))


def _snap(symbols: IntArray, spacing: int, n_symbols: int) -> IntArray:
    """The released symbol of the run of `spacing` each lies in."""
    return np.asarray(np.minimum(symbols // spacing * spacing + spacing // 2, n_symbols - 1))


def _begin(level: CoarseAlphabet, plan: Plan, spacing: int) -> Plan:
    """Far moves of the coarse mapping, all else at its own place."""
    problem, fine = level.fine, level.refine_plan(plan, spacing)
    home = problem.stay[fine.columns]
    stays = np.abs(fine.symbols - home) < _FAR * problem.n_symbols // level.problem.n_symbols
    symbols = _snap(np.where(stays, home, fine.symbols), spacing, problem.n_symbols)
    return programme.add_up(problem, symbols, fine.columns, fine.weights)


@dataclass(eq=False)
class _Slots:
    """A mapping as a few symbols and their masses for every column."""

    problem: Programme
    multiplier: float
    plan: InitVar[Plan]
    held: IntArray = field(init=False)
    mass: FloatArray = field(init=False)

    def __post_init__(self, plan: Plan) -> None:
        shape = self.problem.n_columns, _SLOTS
        self.held, self.mass = np.zeros(shape, np.int64), np.zeros(shape)
        fill: Any = fill_slots
        fill(plan.symbols, plan.columns, plan.weights, self.held, self.mass)

    @property
    def n_pairs(self) -> int:
        return int(np.count_nonzero(self.mass))

    def sweep(self, n_sweeps: int, offsets: IntArray, named: IntArray) -> None:
        """So many sweeps, to and fro."""
        problem, distance = self.problem, self.problem.distance
        line: Any = distance
        positions = line.symbols[:, 0].copy(), line.columns[:, 0].copy()
        columns, places = np.nonzero(self.mass)
        weights, symbols = self.mass[columns, places], self.held[columns, places]
        laws = problem.posterior[columns]
        released = programme.released_masses(symbols, weights, laws, problem.n_symbols)
        total = released.sum(axis=1, keepdims=True)
        log_prior = np.log(problem.prior)
        share = np.maximum(released, 1e-300) / np.where(total > 0, total, 1.0)
        g = np.where(total > 0, np.log(share) - log_prior, _ABSENT)
        sweep: Any = sweep_columns
        spent = float(line.pairs(symbols, columns) @ weights)
        law = np.ascontiguousarray(problem.posterior), log_prior, line.kind == "squared"
        state = self.held, self.mass, released, g
        for turn in range(n_sweeps):
            price = self.multiplier, problem.budget, spent
            spent = sweep(positions, law, price, state, offsets, named, turn % 2 == 1)
        # The augmented Lagrangian's update of its multiplier, which is at most halved at once.
        self.multiplier *= max(0.5, 1.0 + _STIFFNESS * (spent / problem.budget - 1.0))

    def as_plan(self) -> Plan:
        """The mapping, feasible and measured."""
        columns, places = np.nonzero(self.mass)
        symbols, weights = self.held[columns, places], self.mass[columns, places]
        pairs, weights = Pairs.sort(self.problem, symbols, columns, weights)
        return programme.make_feasible(self.problem, pairs, weights, _SMALLEST_SHARE)
