"""The dual with each column's minimum smoothed at a temperature, maximised by Newton-CG.

For a temperature tau > 0 and a set of pairs V, with logits t and multiplier lam,

    F(t, lam) = - tau sum_j p_j log sum_{i in V_j} exp(-(c_ij(t_i) + lam d_ij) / tau) - lam Delta

is smooth and concave; its softmin weights are a mapping, and at the maximum that mapping spends
the budget exactly and its posteriors are softmax(t). The gap between them is of the order tau.

Conditioning. With q_i the released masses and r_i = softmax(t_i), minus the Hessian lies between
``q_i Cov(r_i)`` and ``(1 + 1/tau) q_i Cov(r_i)`` at a stationary point, because the posteriors
that meet in symbol i have mean r_i and stay in the simplex. Conjugate gradients preconditioned
by the diagonal blocks therefore need O(tau**-1/2) products whatever the size of the alphabet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privpipe.numerics.mapping.problem.pair_kernels import (
    multiply_curvature,
    smooth_minimum,
    sum_slopes,
)
from privpipe.numerics.mapping.problem.programme import Duals, MappingProblem, Pairs
from privpipe.protocols import FloatArray

_STRIDES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Nats that a logit may move in one step; the next where that does not climb."""
_MOST_OF = 0.3


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


@dataclass(frozen=True, eq=False)
class SmoothedDual:
    """A (nearly) stationary point of the smoothed dual.

    Parameters
    ----------
    logits : (n_symbols, n_private - 1)
    multiplier
    weights : (n_pairs,)
        Softmin masses; columns are exact, the budget is met to the tolerance.
    converged
    """

    logits: FloatArray
    multiplier: float
    weights: FloatArray
    converged: bool


class _Point:
    """Value, slope and curvature of the smoothed dual at one point."""

    def __init__(
        self,
        problem: MappingProblem,
        pairs: Pairs,
        tau: float,
        anchor: FloatArray,
        logits: FloatArray,
        lam: float,
    ) -> None:
        self.problem, self.pairs, self.tau, self.anchor = problem, pairs, tau, anchor
        self.logits, self.lam = logits, lam
        self.graph = pairs.graph(problem)
        g = potentials_of(logits, problem.prior)
        self.r = np.exp(g) * problem.prior
        cost, self.weights = np.empty(len(pairs)), np.empty(len(pairs))
        smooth = smooth_minimum(self.graph, g, lam, tau, cost, self.weights)
        self.value = smooth - lam * problem.budget + float((anchor * g).sum())

    def moved(self, dt: FloatArray, dl: float) -> _Point:
        return _Point(
            self.problem, self.pairs, self.tau, self.anchor, self.logits + dt, self.lam + dl
        )

    def differentiate(self) -> None:
        n, f = self.logits.shape
        self.grad, blocks, self.q = np.empty((n, f)), np.empty((n, f, f)), np.empty(n)
        total = self.anchor.sum(1)
        spent, spread = sum_slopes(
            self.graph, self.r, self.weights, self.tau, total, self.grad, blocks, self.q
        )
        self.grad += (self.anchor - total[:, None] * self.r)[:, :f]
        self.grad_lam = spent - self.problem.budget
        self.curve_lam = max(spread, 1e-300)
        index = np.arange(f)
        blocks[:, index, index] += 1e-300
        self.inverse = np.linalg.inv(blocks) if f > 1 else 1.0 / blocks

    def curve(self, dt: FloatArray, dl: float) -> tuple[FloatArray, float]:
        """Minus the Hessian times a direction."""
        out = np.empty_like(dt)
        part = multiply_curvature(self.graph, self.r, self.weights, self.q, self.tau, dt, dl, out)
        return out, part

    def precondition(self, bt: FloatArray, bl: float) -> tuple[FloatArray, float]:
        return np.einsum("iab,ib->ia", self.inverse, bt), bl / self.curve_lam


def softmin_masses(
    problem: MappingProblem, pairs: Pairs, logits: FloatArray, multiplier: float, tau: float
) -> FloatArray:
    """Joint masses of the pairs: each column's softmin at a temperature.

    Parameters
    ----------
    problem
    pairs
    logits : (n_symbols, n_private - 1)
    multiplier
        Nats per unit of distortion.
    tau
        Temperature, nats.

    Returns
    -------
    weights : (n_pairs,)
    """
    cost, weights = np.empty(len(pairs)), np.empty(len(pairs))
    g = potentials_of(logits, problem.prior)
    smooth_minimum(pairs.graph(problem), g, multiplier, tau, cost, weights)
    return weights


def column_minima(
    problem: MappingProblem, pairs: Pairs, duals: Duals
) -> tuple[FloatArray, FloatArray]:
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


def spend_budget(
    problem: MappingProblem,
    pairs: Pairs,
    logits: FloatArray,
    tau: float,
    late: Callable[[], bool] = lambda: False,
) -> float:
    """The multiplier at which the softmin masses spend the budget, by bisection while in time."""
    low, high = 1e-9 / problem.budget, 1e4 / problem.budget
    for _ in range(50):
        if late():
            break
        middle = float(np.sqrt(low * high))
        spent = float(softmin_masses(problem, pairs, logits, middle, tau) @ pairs.distances)
        low, high = (middle, high) if spent > problem.budget else (low, middle)
    return float(np.sqrt(low * high))


def _newton_direction(
    point: _Point, max_products: int, late: Callable[[], bool]
) -> tuple[FloatArray, float]:
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
    most = min(1.0, 0.9 * point.lam / -dl) if dl < 0 else 1.0
    for stride in _STRIDES:
        short = np.clip(dt, -stride, stride)
        slope = float((short * point.grad).sum()) + dl * point.grad_lam
        if slope < _MOST_OF * whole:
            break
        new = point.moved(most * short, most * dl)
        if new.value >= point.value + 1e-4 * most * slope:
            return new
    scale = min(1.0, _STRIDES[0] / max(float(np.abs(dt).max()), 1e-300))
    length = scale * most
    while length > 1e-10 * scale:
        new = point.moved(length * dt, length * dl)
        if new.value >= point.value + 1e-4 * length * whole:
            return new
        length *= 0.5
    return None


def maximise_smoothed_dual(
    problem: MappingProblem,
    pairs: Pairs,
    tau: float,
    logits: FloatArray,
    multiplier: float,
    *,
    anchor: FloatArray,
    max_steps: int = 60,
    max_products: int = 400,
    late: Callable[[], bool] = bool,
) -> SmoothedDual:
    """Newton's method with a line search from a starting point.

    Parameters
    ----------
    problem
    pairs
    tau
        Temperature, nats.
    logits : (n_symbols, n_private - 1)
    multiplier
    anchor : (n_symbols, n_private)
        Tiny masses that pull the posterior of a symbol without visitors towards something
        sensible, and keep every posterior inside the simplex.
    max_steps, max_products
        Newton steps, and products with the Hessian per step.
    late
        Asked before each product; once true, the search ends where it stands.

    Returns
    -------
    solved
        `converged` when what is left to gain is below ``1e-4 tau`` and the budget is met to
        ``tau / 50`` of itself.
    """
    point, converged = _Point(problem, pairs, tau, anchor, logits, multiplier), False
    for _ in range(max_steps):
        point.differentiate()
        dt, dl = _newton_direction(point, max_products, late)
        gain = 0.5 * (float((dt * point.grad).sum()) + dl * point.grad_lam)
        missed = abs(point.grad_lam) / problem.budget
        converged = gain <= 1e-4 * tau and missed <= 0.02 * tau
        new = None if converged else _climb(point, dt, dl)
        if new is None or late():
            point = new or point
            break
        point = new
    return SmoothedDual(point.logits, point.lam, point.weights, converged)


def logits_of(potentials: FloatArray, prior: FloatArray) -> FloatArray:
    """Logits whose normalised potentials are the given ones."""
    full = potentials + np.log(prior)
    return np.asarray(full[:, :-1] - full[:, -1:])
