"""Primal-dual interior point on the dual, restricted to pairs, and column generation around it.

Variables are the logits t of the symbols' posteriors, the multiplier lam and the columns'
potentials nu. Constraints are the reduced costs ``z_ij = c_ij(t_i) + lam d_ij - nu_j >= 0`` of the
pairs; their multipliers y are the mapping's masses. At each step the slacks are computed exactly
and nu is lowered where needed. So the dual stays feasible on the pairs and its bound never lags. A
tiny anchored mass per symbol keeps the posteriors inside the simplex.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.problem import programme, smoothed_dual
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Programme
from privpipe.numerics.mapping.problem.search_progress import Explorer, Search
from privpipe.numerics.mapping.problem.smoothed_dual import DualPoint
from privpipe.protocols import FloatArray, IntArray

_NEAR = 0.02  # nats of slack of a pair worth adding
_MOST_STEPS, _MOST_ROUNDS = 60, 10
_INNER = 0.2  # of the target: what the pairs alone may leave, so that pricing has the rest
_USABLE = 0.05  # nats: a dual point farther off is no start, the last one is used again


@njit(cache=True, nogil=True)
def fill_slacks(graph: Any, g: Any, lam: Any, nu: Any, z: Any) -> Any:
    """Reduced costs ``z_ij = posterior_j . g_i + lam d_ij - nu_j`` of the pairs."""
    pointers, symbols, distances, posterior, _ = graph
    for j in range(len(pointers) - 1):
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            c = lam * distances[k] - nu[j]
            for a in range(g.shape[1]):
                if posterior[j, a] != 0.0:
                    c += posterior[j, a] * g[i, a]
            z[k] = c


@njit(cache=True, nogil=True)
def fill_normal_terms(graph: Any, r: Any, y: Any, z: Any, anchor: Any, terms: Any) -> Any:
    """Fill blocks of symbols, diagonal of columns, edges, and the multiplier's two borders.

    Returns the multiplier's own entry.
    """
    pointers, symbols, distances, posterior, _ = graph
    blocks, d1, c, a2, a1 = terms
    f = c.shape[1]
    q = anchor.copy()
    blocks[:] = 0.0
    a2[:] = 0.0
    dd = 0.0
    for j in range(len(pointers) - 1):
        s1, s2 = 0.0, 0.0
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            theta = y[k] / z[k]
            q[i] += y[k]
            s1 += theta
            s2 += theta * distances[k]
            dd += theta * distances[k] ** 2
            for a in range(f):
                te = theta * (posterior[j, a] - r[i, a])
                c[k, a] = te
                a2[i, a] += te * distances[k]
                for b in range(a + 1):
                    blocks[i, a, b] += te * (posterior[j, b] - r[i, b])
        d1[j] = s1
        a1[j] = s2
    smoothed_dual.add_covariances(blocks, q, r)
    return dd


@njit(cache=True, nogil=True)
def fill_right_sides(graph: Any, r: Any, y: Any, z: Any, rc: Any, b1: Any, b2: Any) -> Any:
    """Adds to b2 (symbols), fills b1 (columns); returns the multiplier's part and the spent."""
    pointers, symbols, distances, posterior, mass = graph
    b3, spent = 0.0, 0.0
    for j in range(len(pointers) - 1):
        s = mass[j]
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            w = rc[k] / z[k]
            s -= y[k] + w
            b3 += distances[k] * w
            spent += distances[k] * y[k]
            for a in range(b2.shape[1]):
                b2[i, a] += (posterior[j, a] - r[i, a]) * (w + y[k])
        b1[j] = s
    return b3, spent


@njit(cache=True, nogil=True)
def fill_directions(arcs: Any, r: Any, y: Any, z: Any, rc: Any, step: Any, dy: Any, dz: Any) -> Any:
    """Steps of masses and slacks that follow from those of logits, columns and multiplier."""
    pointers, symbols, distances, posterior, _ = arcs
    dt, dnu, dlam = step
    for j in range(len(pointers) - 1):
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            v = distances[k] * dlam - dnu[j]
            for a in range(dt.shape[1]):
                v += (posterior[j, a] - r[i, a]) * dt[i, a]
            dz[k] = v
            dy[k] = (rc[k] - y[k] * v) / z[k]


@njit(cache=True, nogil=True)
def centre_columns(pointers: Any, cost: Any, mass: Any, mu: Any, nu: Any, y: Any) -> Any:
    """Column potentials with sum_i mu / (cost_ij - nu_j) = p_j, by Newton on the reciprocal."""
    for j in range(len(pointers) - 1):
        first, last = pointers[j], pointers[j + 1]
        low = np.inf
        for k in range(first, last):
            low = min(low, cost[k])
        # At the root or below it: each term is at least mu / (cost - v), and there are so many.
        v = low - mu * (last - first) / mass[j]
        for _ in range(60):
            s, s2 = 0.0, 0.0
            for k in range(first, last):
                w = mu / (cost[k] - v)
                s += w
                s2 += w / (cost[k] - v)
            if abs(s - mass[j]) <= 1e-13 * mass[j]:
                break
            # The reciprocal of the sum is nearly linear in v; a step past the pole is halved.
            new = v + (1 / s - 1 / mass[j]) * s * s / s2
            v = new if new < low else 0.5 * (v + low)
        nu[j] = v
        for k in range(first, last):
            y[k] = mu / (cost[k] - v)


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
        # Where each entry goes is found once per set of pairs; a step only gathers numbers.
        self._take = np.argsort(inverse[col] * size + inverse[row])
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


def _symmetric_lu(matrix: Any, spec: str) -> Any:
    return spl.splu(matrix, permc_spec=spec, diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def _fill_reducing_order(row: IntArray, col: IntArray, size: int) -> IntArray:
    """Minimum degree on a diagonally dominant matrix of the same pattern."""
    # SciPy (1.17.1) has no minimum-degree order of its own: SuperLU's is read off a factorisation.
    off = row != col
    graph = sp.csc_array((np.full(int(off.sum()), -1.0), (row[off], col[off])), shape=(size, size))
    degree = np.bincount(col[off], minlength=size) + 1.0
    factor = _symmetric_lu(sp.csc_array(graph + sp.diags_array(degree)), "MMD_AT_PLUS_A")
    order = np.empty(size, np.int64)
    order[factor.perm_c] = np.arange(size)
    return order


class _State:
    """The iterate, its Newton matrix and its directions.

    `y` and `z` hold masses and slacks of the pairs and, last, of the budget: what is left of it and
    the multiplier.
    """

    def __init__(self, problem: Programme, start: DualPoint, anchor: FloatArray, mu: float) -> None:
        self.problem, self.pairs, self.anchor = problem, start.pairs, anchor
        self.graph, pairs = start.pairs.graph(problem), start.pairs
        n, f, k, w = problem.n_symbols, problem.n_private - 1, len(pairs), problem.n_columns
        self.matrix = SparseNewton(pairs, n, w, f)
        self.t, self.nu, y = start.logits.copy(), np.zeros(w), np.empty(k)
        self.blocks, self.c = np.empty((n, f, f)), np.empty((k, f))
        self.d1, self.a1, self.a2 = np.empty(w), np.empty(w), np.empty((n, f))
        lam = max(start.multiplier, 1e-300)
        cost = self.slacks(self.t, lam, self.nu)
        centre_columns(pairs.pointers, cost, problem.mass, mu, self.nu, y)
        self.y = np.append(y, max(problem.budget - programme.dot(pairs.distances, y), mu / lam))
        self.z = np.append(self.slacks(self.t, lam, self.nu), lam)

    def slacks(self, t: FloatArray, lam: float, nu: FloatArray) -> FloatArray:
        """Of the pairs, (n_pairs,)."""
        z = np.empty(len(self.pairs))
        fill_slacks(self.graph, smoothed_dual.potentials_of(t, self.problem.prior), lam, nu, z)
        return z

    @property
    def complementarity(self) -> float:
        return programme.dot(self.y, self.z) / len(self.y)

    def infeasibility(self) -> float:
        """Relative violation of the columns' sums and the budget."""
        sums = np.bincount(self.pairs.columns, self.y[:-1], self.problem.n_columns)
        over = programme.dot(self.pairs.distances, self.y[:-1]) / self.problem.budget - 1
        return float(np.abs(sums - self.problem.mass).sum()) + max(0.0, over)

    def factor(self) -> None:
        """Factorise the Newton matrix here, for any number of directions."""
        prior = self.problem.prior
        self.r = np.exp(smoothed_dual.potentials_of(self.t, prior)) * prior
        terms = self.blocks, self.d1, self.c, self.a2, self.a1
        here = self.graph, self.r, self.y[:-1], self.z[:-1]
        dd = fill_normal_terms(*here, self.anchor.sum(1), terms)
        self.matrix.factor(self.blocks, self.d1, self.c)
        # The multiplier's row and column are a border of the sparse matrix.
        self.ub, self.vb = self.matrix.solve(self.a2, -self.a1)
        border = float((self.a2 * self.ub).sum()) - programme.dot(self.a1, self.vb)
        self.pivot = dd + self.y[-1] / self.z[-1] - border

    def direction(self, rc: FloatArray) -> _Step:
        """Newton's direction for products ``y z`` that change by `rc`, (n_pairs + 1,)."""
        here = self.graph, self.r, self.y[:-1], self.z[:-1], rc[:-1]
        b2 = (self.anchor - self.anchor.sum(1, keepdims=True) * self.r)[:, : self.t.shape[1]].copy()
        b1, left, lam = np.empty(self.problem.n_columns), self.y[-1], self.z[-1]
        part, spent = fill_right_sides(*here, b1, b2)
        b3 = part + rc[-1] / lam - (self.problem.budget - spent - left)
        ua, va = self.matrix.solve(b2, b1)
        dlam = (b3 - float((self.a2 * ua).sum()) + programme.dot(self.a1, va)) / self.pivot
        step = _Step(ua - dlam * self.ub, va - dlam * self.vb, *np.empty((2, len(rc))))
        fill_directions(*here, (step.dt, step.dnu, dlam), step.dy[:-1], step.dz[:-1])
        step.dy[-1], step.dz[-1] = (rc[-1] - left * dlam) / lam, dlam
        return step


class _Step(NamedTuple):
    """A direction of logits, columns' potentials, and of `y` and `z`."""

    dt: FloatArray
    dnu: FloatArray
    dy: FloatArray
    dz: FloatArray


def _longest(v: FloatArray, dv: FloatArray) -> float:
    """Largest step that leaves everything positive."""
    down = dv < 0
    return float((v[down] / -dv[down]).min()) if down.any() else np.inf


def _predict_and_correct(state: _State) -> _Step:
    """Mehrotra's direction."""
    y, z = state.y, state.z
    affine = state.direction(-y * z)
    ap, ad = min(1.0, _longest(y, affine.dy)), min(1.0, _longest(z, affine.dz))
    after = programme.dot(y + ap * affine.dy, z + ad * affine.dz) / len(y)
    # Mehrotra's centring from the affine step, with a square where he has a cube.
    mu = state.complementarity
    sigma = min(0.8, max(0.02, (after / mu) ** 2))
    return state.direction(sigma * mu - y * z - affine.dy * affine.dz)


def _advance(state: _State, step: _Step) -> None:
    """Move along the step; true slacks replace the linear ones."""
    # A hundredth short of the boundary.
    length = min(1.0, 0.99 * min(_longest(state.y, step.dy), _longest(state.z, step.dz)))
    # Logits of symbols without visitors have steps out of all proportion, and hardly matter.
    dt = np.clip(step.dt, -5.0, 5.0)
    before = programme.dot(state.y[:-1], state.z[:-1])
    starts, columns = state.pairs.pointers[:-1], state.pairs.columns
    for _ in range(15):
        y, line = state.y + length * step.dy, state.z + length * step.dz
        nu = state.nu + length * step.dnu
        z = state.slacks(state.t + length * dt, line[-1], nu)
        # c is concave in t: true slacks fall short of the linear ones; lower nu where needed.
        shift = np.maximum(np.maximum.reduceat(0.1 * line[:-1] - z, starts), 0.0)
        z += shift[columns]
        if programme.dot(y[:-1], z) <= max(1.1 * before, 2 * programme.dot(y[:-1], line[:-1])):
            break
        length *= 0.6
    state.t, state.nu = state.t + length * dt, nu - shift
    state.y, state.z = y, np.append(z, line[-1])


def solve_interior_point(
    progress: Search, start: DualPoint, anchor: FloatArray, *, start_gap: float, gap: float
) -> _State | None:
    """Solve on the pairs of a dual point; None where it did not come out.

    Its masses are then feasible to 1e-6, and its gap on the pairs is near `gap`, nats.
    """
    pairs = start.pairs
    state = _State(progress.problem, start, anchor, start_gap / len(pairs))
    for _ in range(_MOST_STEPS):
        if progress.is_late():
            break
        state.factor()
        _advance(state, _predict_and_correct(state))
        left = state.complementarity * len(pairs)
        if not np.isfinite(left) or left <= 1e-4 * gap:
            break
        if left <= gap and state.infeasibility() <= 1e-9:
            break
    close = state.complementarity * len(pairs) <= max(gap, 0.3 * start_gap)
    finite = np.isfinite(state.y).all() and np.isfinite(state.nu).all()
    return state if close and finite and state.infeasibility() <= 1e-6 else None


def polish(progress: Search, explore: Explorer, start: DualPoint, start_gap: float) -> Pairs:
    """Alternate interior point and pricing until the certified gap is reached.

    Parameters
    ----------
    progress
    explore
    start
        A dual point whose gap is known to be about `start_gap`.
    start_gap
        Nats; the interior point begins that far from the boundary.

    Returns
    -------
    pairs
        The last set of pairs.
    """
    problem, gap = progress.problem, progress.gap
    # A hundredth of the target in all: the optimum moves by less than is looked for.
    anchor = np.tile(problem.prior, (problem.n_symbols, 1)) * (1e-2 * gap / problem.n_symbols)
    idle, before, stalled = False, np.inf, 0
    for _ in range(_MOST_ROUNDS):
        pairs = start.pairs
        try:
            near = _INNER * gap
            solved = solve_interior_point(progress, start, anchor, start_gap=start_gap, gap=near)
        except (np.linalg.LinAlgError, RuntimeError):  # splu says a singular factor by the latter
            solved = None
        if solved is None:
            # A start that far from the boundary is centred better.
            if start_gap >= 1.0 or progress.stop:
                break
            start_gap = min(30 * start_gap, 1.0)
            continue
        duals = Duals(smoothed_dual.potentials_of(solved.t, problem.prior), float(solved.z[-1]))
        found = explore(problem, duals, solved.nu, _NEAR)
        plan = programme.make_feasible(problem, pairs, solved.y[:-1], 1e-9)
        progress.offer(plan, found.duals, found.bound, len(pairs), "interior")
        if progress.stop:
            break
        grown = pairs.join(problem, found.symbols, found.columns)
        # Twice nothing new: the gap is the interior point's, not the set's.
        if len(grown) == len(pairs) and idle:
            break
        idle = len(grown) == len(pairs)
        start = replace(start, pairs=grown)
        here = plan.information - found.bound
        stalled = stalled + 1 if here > 0.9 * before else 0
        if stalled >= 2:
            break
        before = min(here, before)
        if here < _USABLE:
            logits = smoothed_dual.logits_of(found.duals.potentials, problem.prior)
            start = DualPoint(grown, logits, duals.multiplier, 0.0)
            start_gap = min(max(10 * gap, 3 * here), 1e-2)
        else:
            start_gap = min(10 * start_gap, 1.0)
    return start.pairs
