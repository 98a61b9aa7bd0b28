"""Primal-dual interior point on the dual, restricted to pairs, and column generation around it.

Variables are the logits t of the symbols' posteriors, the multiplier lam and the columns'
potentials nu; constraints are the reduced costs ``z_ij = c_ij(t_i) + lam d_ij - nu_j >= 0`` of
the pairs, whose multipliers y are the mapping's masses. The slacks are computed exactly at each
step and nu lowered where needed, so the dual stays feasible on the pairs and its bound never
lags. A tiny anchored mass per symbol keeps the posteriors inside the simplex.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from privpipe.numerics.mapping.problem.pair_kernels import (
    centre_columns,
    fill_directions,
    fill_normal_terms,
    fill_right_sides,
    fill_slacks,
)
from privpipe.numerics.mapping.problem.programme import Duals, MappingProblem, Pairs, make_feasible
from privpipe.numerics.mapping.problem.search_progress import SearchProgress
from privpipe.numerics.mapping.problem.smoothed_dual import logits_of, potentials_of
from privpipe.numerics.mapping.search.column_generation import AnnealState, Explorer
from privpipe.protocols import FloatArray, IntArray

_NEAR = 0.02  # nats of slack of a pair worth adding


class SparseNewton:
    """Sparse factorisation of the whole matrix; the order is found once per set of pairs."""

    def __init__(self, pairs: Pairs, n_symbols: int, n_columns: int, n_free: int) -> None:
        self._shape = (n_symbols, n_free)
        size = self._size = n_symbols * n_free + n_columns
        block = np.arange(n_symbols * n_free).reshape(n_symbols, n_free)
        symbol = block[pairs.symbols].ravel()
        column = n_symbols * n_free + np.repeat(pairs.columns, n_free)
        diagonal = np.arange(n_symbols * n_free, size)
        rows = [np.repeat(block, n_free, axis=1).ravel(), diagonal, symbol, column]
        columns = [np.tile(block, (1, n_free)).ravel(), diagonal, column, symbol]
        row, col = np.concatenate(rows), np.concatenate(columns)
        self._order = _fill_reducing_order(row, col, size)
        inverse = np.empty(size, np.int64)
        inverse[self._order] = np.arange(size)
        key = inverse[col] * size + inverse[row]
        self._take = np.argsort(key)
        self._indices = inverse[row][self._take].astype(np.int32)
        self._pointers = np.zeros(size + 1, np.int32)
        np.cumsum(np.bincount(inverse[col], minlength=size), out=self._pointers[1:])

    def factor(self, blocks: FloatArray, d1: FloatArray, c: FloatArray) -> None:
        """Factorise; blocks (n_symbols, f, f), d1 (n_columns,), c (n_pairs, f)."""
        edges = -c.ravel()
        data = np.concatenate([blocks.ravel(), d1, edges, edges])[self._take]
        matrix = sp.csc_array((data, self._indices, self._pointers), shape=(self._size,) * 2)
        self._factor = _symmetric_lu(matrix, "NATURAL")

    def solve(self, bt: FloatArray, bn: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Solve for the symbols' and the columns' unknowns."""
        x = np.empty(self._size)
        x[self._order] = self._factor.solve(np.concatenate([bt.ravel(), bn])[self._order])
        n = self._shape[0] * self._shape[1]
        return x[:n].reshape(self._shape), x[n:]


def _symmetric_lu(matrix: Any, order: str) -> Any:
    return spl.splu(
        matrix, permc_spec=order, diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )


def _fill_reducing_order(row: IntArray, col: IntArray, size: int) -> IntArray:
    """Minimum degree on a diagonally dominant matrix of the same pattern."""
    off = row != col
    graph = sp.csc_array((np.full(int(off.sum()), -1.0), (row[off], col[off])), shape=(size, size))
    degree = np.bincount(col[off], minlength=size) + 1.0
    factor = _symmetric_lu(sp.csc_array(graph + sp.diags_array(degree)), "MMD_AT_PLUS_A")
    order = np.empty(size, np.int64)
    order[factor.perm_c] = np.arange(size)
    return order


@dataclass(frozen=True, eq=False)
class InteriorPoint:
    """Where the interior point stopped.

    Parameters
    ----------
    logits : (n_symbols, n_private - 1)
    multiplier
    column_potentials : (n_columns,)
    weights : (n_pairs,)
        Masses; nearly feasible.
    bound
        Lower bound on the problem restricted to the pairs, nats.
    converged
        Whether the masses are feasible to 1e-6 and the gap on the pairs is near the wanted.
    """

    logits: FloatArray
    multiplier: float
    column_potentials: FloatArray
    weights: FloatArray
    bound: float
    converged: bool


class _State:
    """The iterate, its Newton matrix and its directions."""

    def __init__(
        self,
        problem: MappingProblem,
        pairs: Pairs,
        anchor: FloatArray,
        logits: FloatArray,
        lam: float,
        mu: float,
    ) -> None:
        self.problem, self.pairs, self.anchor = problem, pairs, anchor
        self.graph = pairs.graph(problem)
        n, f, k, w = problem.n_symbols, problem.n_private - 1, len(pairs), problem.n_columns
        self.matrix = SparseNewton(pairs, n, w, f)
        self.t, self.lam, self.nu = logits.copy(), lam, np.zeros(w)
        self.y = np.empty(k)
        self.blocks, self.c = np.empty((n, f, f)), np.empty((k, f))
        self.d1, self.a1, self.a2 = np.empty(w), np.empty(w), np.empty((n, f))
        cost = self.slacks(self.t, lam, self.nu)
        centre_columns(pairs.pointers, cost, problem.mass, mu, self.nu, self.y)
        self.z = self.slacks(self.t, lam, self.nu)
        self.s = max(problem.budget - float(pairs.distances @ self.y), mu / lam)

    def slacks(self, t: FloatArray, lam: float, nu: FloatArray) -> FloatArray:
        z = np.empty(len(self.pairs))
        fill_slacks(self.graph, potentials_of(t, self.problem.prior), lam, nu, z)
        return z

    @property
    def complementarity(self) -> float:
        return (float(self.y @ self.z) + self.lam * self.s) / (len(self.y) + 1)

    @property
    def bound(self) -> float:
        return float(self.problem.mass @ self.nu) - self.lam * self.problem.budget

    def infeasibility(self) -> float:
        """Relative violation of the columns' sums and the budget."""
        kept = np.bincount(self.pairs.columns, self.y, self.problem.n_columns)
        spent = float(self.pairs.distances @ self.y)
        return float(np.abs(kept - self.problem.mass).sum()) + max(
            0.0, spent / self.problem.budget - 1
        )

    def factor(self) -> None:
        self.r = np.exp(potentials_of(self.t, self.problem.prior)) * self.problem.prior
        terms = self.blocks, self.d1, self.c, self.a2, self.a1
        dd = fill_normal_terms(self.graph, self.r, self.y, self.z, self.anchor.sum(1), terms)
        self.matrix.factor(self.blocks, self.d1, self.c)
        self.ub, self.vb = self.matrix.solve(self.a2, -self.a1)
        self.pivot = (
            dd + self.s / self.lam - float((self.a2 * self.ub).sum()) + float(self.a1 @ self.vb)
        )

    def direction(self, rc: FloatArray, rs: float) -> _Step:
        f = self.t.shape[1]
        b2 = (self.anchor - self.anchor.sum(1, keepdims=True) * self.r)[:, :f].copy()
        b1 = np.empty(self.problem.n_columns)
        part, spent = fill_right_sides(self.graph, self.r, self.y, self.z, rc, b1, b2)
        b3 = part + rs / self.lam - (self.problem.budget - spent - self.s)
        ua, va = self.matrix.solve(b2, b1)
        dlam = (b3 - float((self.a2 * ua).sum()) + float(self.a1 @ va)) / self.pivot
        dt, dnu = ua - dlam * self.ub, va - dlam * self.vb
        dy, dz = np.empty_like(self.y), np.empty_like(self.y)
        fill_directions(self.graph, self.r, self.y, self.z, rc, (dt, dnu, dlam), dy, dz)
        return _Step(dt, dnu, dlam, dy, dz, (rs - self.s * dlam) / self.lam)


@dataclass(frozen=True, eq=False)
class _Step:
    dt: FloatArray
    dnu: FloatArray
    dlam: float
    dy: FloatArray
    dz: FloatArray
    ds: float

    def longest(self, state: _State) -> tuple[float, float]:
        """Largest primal and dual steps that keep everything positive."""
        primal = min(_longest(state.y, self.dy), _longest_one(state.s, self.ds))
        return primal, min(_longest(state.z, self.dz), _longest_one(state.lam, self.dlam))


def _longest(v: FloatArray, dv: FloatArray) -> float:
    down = dv < 0
    return float((v[down] / -dv[down]).min()) if down.any() else np.inf


def _longest_one(v: float, dv: float) -> float:
    return v / -dv if dv < 0 else np.inf


def _predict_and_correct(state: _State) -> _Step:
    """Mehrotra's direction."""
    mu = state.complementarity
    affine = state.direction(-state.y * state.z, -state.lam * state.s)
    ap, ad = (min(1.0, a) for a in affine.longest(state))
    after = float((state.y + ap * affine.dy) @ (state.z + ad * affine.dz))
    after += (state.s + ap * affine.ds) * (state.lam + ad * affine.dlam)
    sigma = min(0.8, max(0.02, (after / (len(state.y) + 1) / mu) ** 2))
    return state.direction(
        sigma * mu - state.y * state.z - affine.dy * affine.dz,
        sigma * mu - state.lam * state.s - affine.ds * affine.dlam,
    )


def _advance(state: _State, step: _Step) -> None:
    """Move along the step; true slacks replace the linear ones."""
    length = min(1.0, *(0.99 * a for a in step.longest(state)))
    dt = np.clip(step.dt, -5.0, 5.0)
    before = float(state.y @ state.z)
    starts, columns = state.pairs.pointers[:-1], state.pairs.columns
    for _ in range(15):
        lam, nu = state.lam + length * step.dlam, state.nu + length * step.dnu
        y, line = state.y + length * step.dy, state.z + length * step.dz
        z = state.slacks(state.t + length * dt, lam, nu)
        # c is concave in t: true slacks fall short of the linear ones; lower nu where needed.
        shift = np.maximum(np.maximum.reduceat(0.1 * line - z, starts), 0.0)
        if float(y @ (z + shift[columns])) <= max(1.1 * before, 2 * float(y @ line)):
            break
        length *= 0.6
    state.t, state.lam, state.nu = state.t + length * dt, lam, nu - shift
    state.y, state.z, state.s = y, z + shift[columns], state.s + length * step.ds


def solve_interior_point(
    problem: MappingProblem,
    pairs: Pairs,
    logits: FloatArray,
    multiplier: float,
    anchor: FloatArray,
    *,
    start_gap: float,
    gap: float,
    max_steps: int = 60,
    late: Callable[[], bool] = bool,
) -> InteriorPoint:
    """Solve on the pairs from a starting dual point; `late` is asked before each step."""
    mu = start_gap / len(pairs)
    state = _State(problem, pairs, anchor, logits, max(multiplier, 1e-300), mu)
    for _ in range(max_steps):
        if late():
            break
        state.factor()
        _advance(state, _predict_and_correct(state))
        left = state.complementarity * len(pairs)
        if not np.isfinite(left) or left <= 1e-4 * gap:
            break
        if left <= gap and state.infeasibility() <= 1e-9:
            break
    close = bool(state.complementarity * len(pairs) <= max(gap, 0.3 * start_gap))
    converged = close and state.infeasibility() <= 1e-6
    return InteriorPoint(state.t, state.lam, state.nu, state.y, state.bound, converged)


def polish(
    progress: SearchProgress,
    explore: Explorer,
    state: AnnealState,
    start_gap: float,
    max_rounds: int = 10,
) -> Pairs:
    """Alternate interior point and pricing until the certified gap is reached.

    Parameters
    ----------
    progress
    explore
    state
        A dual point whose gap is known to be about `start_gap`.
    start_gap
        Nats; the interior point begins that far from the boundary.
    max_rounds

    Returns
    -------
    pairs
        The last set of pairs.
    """
    problem, gap = progress.problem, progress.gap
    anchor = np.tile(problem.prior, (problem.n_symbols, 1)) * (1e-2 * gap / problem.n_symbols)
    pairs, logits, multiplier = state.pairs, state.logits, state.multiplier
    idle, before, stalled = False, np.inf, 0
    for _ in range(max_rounds):
        solved = _solve(progress, pairs, logits, multiplier, anchor, start_gap)
        if solved is None:
            if start_gap >= 1.0 or progress.stop:
                break
            start_gap = min(30 * start_gap, 1.0)
            continue
        duals = Duals(potentials_of(solved.logits, problem.prior), solved.multiplier)
        found = explore(problem, duals, solved.column_potentials, _NEAR)
        plan = make_feasible(problem, pairs, solved.weights, 1e-9)
        progress.offer(plan, found.duals, found.bound, len(pairs), "interior")
        if progress.stop:
            break
        grown = pairs.join(problem, found.symbols, found.columns)
        if len(grown) == len(pairs) and idle:
            break
        pairs, idle = grown, len(grown) == len(pairs)
        here = plan.information - found.bound
        stalled = stalled + 1 if here > 0.9 * before else 0
        if stalled >= 2:
            break
        before = min(here, before)
        if here < 0.05:
            logits, multiplier = logits_of(found.duals.potentials, problem.prior), duals.multiplier
            start_gap = min(max(10 * gap, 3 * here), 1e-2)
        else:
            start_gap = min(10 * start_gap, 1.0)
    return pairs


def _solve(
    progress: SearchProgress,
    pairs: Pairs,
    logits: FloatArray,
    multiplier: float,
    anchor: FloatArray,
    start_gap: float,
) -> InteriorPoint | None:
    """One interior point; None when it did not come out, which a farther start fixes."""
    problem = progress.problem
    try:
        solved = solve_interior_point(
            problem,
            pairs,
            logits,
            multiplier,
            anchor,
            start_gap=start_gap,
            gap=0.2 * progress.gap,
            late=progress.is_late,
        )
    except (np.linalg.LinAlgError, RuntimeError):
        return None
    usable = np.isfinite(solved.bound) and np.isfinite(solved.weights).all()
    if not usable or not solved.converged:
        return None
    return solved
