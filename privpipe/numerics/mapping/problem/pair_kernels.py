"""Kernels of the dual's two solvers: one pass over the sparse pairs each, columns in order.

`graph` is (pointers, symbols, distances, posterior, mass) of the pairs and columns. A tuple costs
numba nothing, and keeps calls as short as they are read.
"""

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit


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
def _add_covariances(blocks: Any, q: Any, r: Any) -> Any:
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
    _add_covariances(blocks, q, r)
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
    _add_covariances(blocks, q, r)
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
def fill_directions(
    graph: Any, r: Any, y: Any, z: Any, rc: Any, step: Any, dy: Any, dz: Any
) -> Any:
    """Steps of masses and slacks that follow from those of logits, columns and multiplier."""
    pointers, symbols, distances, posterior, _ = graph
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
