"""The dual with each column's minimum smoothed at a temperature, maximised by Newton-CG.

For a temperature tau > 0 and a set of pairs V, with logits t and multiplier lam,

    F(t, lam) = - tau sum_j p_j log sum_{i in V_j} exp(-(c_ij(t_i) + lam d_ij) / tau) - lam Delta

is smooth and concave. Its softmin weights are a mapping. At the maximum that mapping spends the
budget exactly and its posteriors are softmax(t). The gap between them is of the order tau.

Conditioning. Let q_i be the released masses and r_i = softmax(t_i). At a stationary point minus the
Hessian lies between ``q_i Cov(r_i)`` and ``(1 + 1/tau) q_i Cov(r_i)``. This holds because the
posteriors that meet in symbol i have mean r_i and stay in the simplex. Conjugate gradients
preconditioned by the diagonal blocks therefore need O(tau**-1/2) products whatever the size of the
alphabet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Programme, dot
from privpipe.protocols import FloatArray

Late = Callable[[], bool]
"""Whether the time is over."""

# Nats that a logit may move in one step; the next where that does not climb.
_STRIDES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
# Share of the whole direction's slope that cutting its long components must leave.
_MOST_OF = 0.3
# Newton steps, and products with the Hessian in one.
_MOST_STEPS, _MOST_PRODUCTS = 60, 400

# Kernels, here and in `interior_point`: one pass over the sparse pairs each, columns in order.
# `graph` is (pointers, symbols, distances, posterior, mass) of the pairs and columns: a tuple costs
# numba nothing, and keeps calls as short as they are read.


@njit(cache=True, nogil=True)
def smooth_minimum(graph: Any, g: Any, lam: Any, tau: Any, cost: Any, weights: Any) -> Any:
    """Softmin weights (joint masses) of all pairs; returns sum_j p_j softmin_j."""
    pointers, symbols, distances, posterior, mass = graph
    total = 0.0
    m = g.shape[1]
    for j in range(len(pointers) - 1):
        first, last = pointers[j], pointers[j + 1]
        low = np.inf
        for k in range(first, last):
            i = symbols[k]
            c = lam * distances[k]
            for a in range(m):
                # A potential may be -inf where no record has the private value: 0 * inf is none.
                if posterior[j, a] != 0.0:
                    c += posterior[j, a] * g[i, a]
            cost[k] = c
            low = min(low, c)
        z = 0.0
        for k in range(first, last):
            w = np.exp((low - cost[k]) / tau)  # from the least on: no exponential overflows
            weights[k] = w
            z += w
        scale = mass[j] / z
        for k in range(first, last):
            weights[k] *= scale
        total += mass[j] * (low - tau * np.log(z))
    return total


@njit(cache=True, nogil=True)
def add_covariances(blocks: Any, q: Any, r: Any) -> Any:
    """Add ``q_i Cov(r_i)`` to the lower halves of the blocks, and mirror them."""
    for i in range(len(q)):
        for a in range(blocks.shape[1]):
            for b in range(a + 1):
                blocks[i, a, b] += q[i] * ((r[i, a] if a == b else 0.0) - r[i, a] * r[i, b])
                blocks[i, b, a] = blocks[i, a, b]
            # Rounding may leave a block of one visitor singular; a few units in the last place
            # on the diagonal make it definite.
            blocks[i, a, a] *= 1 + 1e-12


@njit(cache=True, nogil=True)
def sum_slopes(
    graph: Any, r: Any, weights: Any, tau: Any, anchor: Any, grad: Any, blocks: Any, q: Any
) -> Any:
    """Gradient for the logits, the Hessian's diagonal blocks; spent distortion, its variance."""
    pointers, symbols, distances, posterior, mass = graph
    m = grad.shape[1]
    grad[:] = 0.0
    blocks[:] = 0.0
    q[:] = anchor
    spent, spread = 0.0, 0.0
    for j in range(len(pointers) - 1):
        mean_d = 0.0
        for k in range(pointers[j], pointers[j + 1]):
            mean_d += weights[k] * distances[k]
        mean_d /= mass[j]
        spent += mean_d * mass[j]
        for k in range(pointers[j], pointers[j + 1]):
            i, y = symbols[k], weights[k]
            q[i] += y
            spread += y * (distances[k] - mean_d) ** 2
            left = y * (1.0 - y / mass[j]) / tau
            for a in range(m):
                e = posterior[j, a] - r[i, a]
                grad[i, a] += y * e
                for b in range(a + 1):
                    blocks[i, a, b] += left * e * (posterior[j, b] - r[i, b])
    add_covariances(blocks, q, r)
    return spent, spread / tau


@njit(cache=True, nogil=True)
def multiply_curvature(
    graph: Any, r: Any, weights: Any, q: Any, tau: Any, dt: Any, dl: Any, out: Any
) -> Any:
    """Minus the Hessian times (dt, dl): fills out, returns the multiplier's part."""
    pointers, symbols, distances, posterior, mass = graph
    m = dt.shape[1]
    level = np.empty(len(q))
    for i in range(len(q)):
        s = 0.0
        for a in range(m):
            s += r[i, a] * dt[i, a]
        level[i] = s
        for a in range(m):
            out[i, a] = q[i] * r[i, a] * (dt[i, a] - s)
    part = 0.0
    for j in range(len(pointers) - 1):
        mean = 0.0
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            v = dl * distances[k] - level[i]
            for a in range(m):
                v += posterior[j, a] * dt[i, a]
            mean += weights[k] * v
        mean /= mass[j]
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            v = dl * distances[k] - level[i] - mean
            for a in range(m):
                v += posterior[j, a] * dt[i, a]
            v *= weights[k] / tau
            part += v * distances[k]
            for a in range(m):
                out[i, a] += v * (posterior[j, a] - r[i, a])
    return part


def potentials_of(logits: FloatArray, prior: FloatArray) -> FloatArray:
    """Potentials log(softmax([t, 0]) / p) of logits t, normalised for any t.

    Parameters
    ----------
    logits : (n_symbols, n_private - 1)
    prior : (n_private,)

    Returns
    -------
    potentials : (n_symbols, n_private)
    """
    full = np.concatenate([logits, np.zeros((len(logits), 1))], axis=1)
    full = full - full.max(axis=1, keepdims=True)
    return np.asarray(full - np.log(np.exp(full).sum(axis=1, keepdims=True)) - np.log(prior))


def logits_of(potentials: FloatArray, prior: FloatArray) -> FloatArray:
    """Logits whose normalised potentials are the given ones."""
    full = potentials + np.log(prior)
    return np.asarray(full[:, :-1] - full[:, -1:])


@dataclass(frozen=True, eq=False)
class DualPoint:
    """Where a search is.

    Parameters
    ----------
    pairs
        That the dual is restricted to.
    logits : (n_symbols, n_private - 1)
    multiplier
        Nats per unit of distortion.
    temperature
        Of the columns' softmin, nats; 0 where there is none.
    """

    pairs: Pairs
    logits: FloatArray
    multiplier: float
    temperature: float

    def duals(self, problem: Programme) -> Duals:
        """As anyone can compute a bound from them."""
        return Duals(potentials_of(self.logits, problem.prior), self.multiplier)

    def masses(self, problem: Programme) -> FloatArray:
        """Joint masses of the pairs, (n_pairs,): each column's softmin at the temperature."""
        cost, weights = np.empty(len(self.pairs)), np.empty(len(self.pairs))
        g = potentials_of(self.logits, problem.prior)
        graph = self.pairs.graph(problem)
        smooth_minimum(graph, g, self.multiplier, self.temperature, cost, weights)
        return weights


class _Point:
    """Value, slope and curvature of the smoothed dual at one point."""

    def __init__(self, problem: Programme, at: DualPoint, anchor: FloatArray) -> None:
        self.problem, self.at, self.anchor = problem, at, anchor
        self.logits, self.lam, self.tau = at.logits, at.multiplier, at.temperature
        self.graph = at.pairs.graph(problem)
        g = potentials_of(self.logits, problem.prior)
        self.r = np.exp(g) * problem.prior
        cost, self.weights = np.empty(len(at.pairs)), np.empty(len(at.pairs))
        smooth = smooth_minimum(self.graph, g, self.lam, self.tau, cost, self.weights)
        self.value = smooth - self.lam * problem.budget + float((anchor * g).sum())

    def moved(self, dt: FloatArray, dl: float) -> _Point:
        at = replace(self.at, logits=self.logits + dt, multiplier=self.lam + dl)
        return _Point(self.problem, at, self.anchor)

    def differentiate(self) -> None:
        n, f = self.logits.shape
        self.grad, blocks, self.q = np.empty((n, f)), np.empty((n, f, f)), np.empty(n)
        total = self.anchor.sum(1)
        spent, spread = sum_slopes(
            self.graph, self.r, self.weights, self.tau, total, self.grad, blocks, self.q
        )
        self.grad += (self.anchor - total[:, None] * self.r)[:, :f]
        self.grad_lam = spent - self.problem.budget
        # Where all distances of each column are one, the multiplier has no curvature.
        self.curve_lam = max(spread, 1e-300)
        index = np.arange(f)
        blocks[:, index, index] += 1e-300
        # The diagonal blocks bound the condition number by 1 + 1 / temperature, see above.
        self.inverse = np.linalg.inv(blocks) if f > 1 else 1.0 / blocks

    def curve(self, dt: FloatArray, dl: float) -> tuple[FloatArray, float]:
        """Minus the Hessian times a direction."""
        out = np.empty_like(dt)
        part = multiply_curvature(self.graph, self.r, self.weights, self.q, self.tau, dt, dl, out)
        return out, part

    def precondition(self, bt: FloatArray, bl: float) -> tuple[FloatArray, float]:
        return np.einsum("iab,ib->ia", self.inverse, bt), bl / self.curve_lam


def column_minima(problem: Programme, pairs: Pairs, duals: Duals) -> tuple[FloatArray, FloatArray]:
    """Cost of every pair, and the least of each column.

    Returns
    -------
    cost : (n_pairs,)
        ``posterior_j . g_i + lam d_ij``, nats.
    level : (n_columns,)
    """
    posterior = problem.posterior[pairs.columns]
    cost = duals.multiplier * pairs.distances
    for a in range(problem.n_private):
        cost += posterior[:, a] * duals.potentials[pairs.symbols, a]
    return cost, np.minimum.reduceat(cost, pairs.pointers[:-1])


def spend_budget(problem: Programme, at: DualPoint, late: Late = bool) -> DualPoint:
    """The point at which the softmin masses spend the budget, by bisection while in time."""
    # From a free distortion to one that is dearer than any information.
    low, high = 1e-9 / problem.budget, 1e4 / problem.budget
    for _ in range(50):
        if late():
            break
        middle = replace(at, multiplier=float(np.sqrt(low * high)))
        over = dot(middle.masses(problem), at.pairs.distances) > problem.budget
        low, high = (middle.multiplier, high) if over else (low, middle.multiplier)
    return replace(at, multiplier=float(np.sqrt(low * high)))


def _newton_direction(point: _Point, max_products: int, late: Late) -> tuple[FloatArray, float]:
    """Preconditioned conjugate gradients on the Newton system, to a relative 1e-3."""
    x, xl = np.zeros_like(point.grad), 0.0
    b, bl = point.grad.copy(), point.grad_lam
    s, sl = point.precondition(b, bl)
    d, dl = s.copy(), sl
    rho = first = float((b * s).sum()) + bl * sl
    for _ in range(max_products):
        if rho <= 1e-3 * first or late():
            break
        h, hl = point.curve(d, dl)
        # Not positive by rounding alone: the Hessian is definite.
        bend = float((d * h).sum()) + dl * hl
        if not bend > 0.0:
            break
        step = rho / bend
        x, xl = x + step * d, xl + step * dl
        b, bl = b - step * h, bl - step * hl
        s, sl = point.precondition(b, bl)
        new = float((b * s).sum()) + bl * sl
        d, dl = s + new / rho * d, sl + new / rho * dl
        rho = new
    return x, xl


def _climb(point: _Point, dt: FloatArray, dl: float) -> _Point | None:
    """Go along a direction, with its long components cut short; None when nothing climbs.

    A few symbols without visitors have directions out of all proportion and hardly anything to
    gain. While cutting them shorter leaves most of the gain, the others need not wait for them.
    """
    whole = float((dt * point.grad).sum()) + dl * point.grad_lam
    # The multiplier stays positive.
    most = min(1.0, 0.9 * point.lam / -dl) if dl < 0 else 1.0
    for stride in _STRIDES:
        short = np.clip(dt, -stride, stride)
        slope = float((short * point.grad).sum()) + dl * point.grad_lam
        if slope < _MOST_OF * whole:
            break
        new = point.moved(most * short, most * dl)
        if new.value >= point.value + 1e-4 * most * slope:
            return new
    # Cutting does not climb: the whole direction, shorter and shorter (Armijo's rule).
    scale = min(1.0, _STRIDES[0] / max(float(np.abs(dt).max()), 1e-300))
    length = scale * most
    while length > 1e-10 * scale:
        new = point.moved(length * dt, length * dl)
        if new.value >= point.value + 1e-4 * length * whole:
            return new
        length *= 0.5
    return None


def maximise_smoothed_dual(
    problem: Programme, start: DualPoint, *, anchor: FloatArray, late: Late = bool
) -> tuple[DualPoint, FloatArray, bool]:
    """Newton's method with a line search from a starting point.

    Parameters
    ----------
    problem
    start
        Its pairs and temperature stay.
    anchor : (n_symbols, n_private)
        Tiny masses that pull the posterior of a symbol without visitors towards something
        sensible, and keep every posterior inside the simplex.
    late
        Called before each product; once true, the search ends where it is.

    Returns
    -------
    point
    masses : (n_pairs,)
        Softmin masses there; columns are exact, the budget is met to the tolerance.
    converged
        When what is left to gain is below ``1e-4 tau`` and the budget is met to ``tau / 50`` of
        itself.
    """
    point, converged = _Point(problem, start, anchor), False
    for _ in range(_MOST_STEPS):
        point.differentiate()
        dt, dl = _newton_direction(point, _MOST_PRODUCTS, late)
        gain = 0.5 * (float((dt * point.grad).sum()) + dl * point.grad_lam)
        missed = abs(point.grad_lam) / problem.budget
        converged = gain <= 1e-4 * start.temperature and missed <= 0.02 * start.temperature
        new = None if converged else _climb(point, dt, dl)
        if new is None or late():
            point = new or point
            break
        point = new
    return point.at, point.weights, converged
