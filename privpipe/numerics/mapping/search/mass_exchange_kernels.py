"""Kernels of the exchange of masses: a sweep, in which each column moves what it gains most by."""

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit

# Potential, in nats, of a symbol that no column releases: none moves there alone.
ABSENT = 1e3
# By how much the price of distortion grows, relatively, with what is spent beyond the budget.
STIFFNESS = 10.0
# Nats per unit of mass below which a move is rounding; and Newton steps of a line search, and
# their relative end.
_LEAST_GAIN = 1e-9
_STEPS = 30
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
    for step in range(_STEPS):
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

    `held` and `mass` are the slots of every column, (n_columns, n_slots); `released` the masses of
    every symbol and `g` its log-ratios to the prior, both up to date; `named` further symbols
    that a column looks at. The price of distortion rises with what is `spent` beyond the budget:
    an augmented Lagrangian. Returns what is spent then, but for what slots that were needed held.
    """
    xs, xq = positions
    p, log_prior, square = law
    multiplier, budget, spent = price
    held, mass, released, g = state
    n, width = held.shape
    for turn in range(n):
        j = n - 1 - turn if backwards else turn
        # Raised within a sweep: a price corrected only after it lags, and the budget swings.
        lam = multiplier * max(0.0, 1.0 + STIFFNESS * (spent / budget - 1.0))
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
            g[i, a] = ABSENT
