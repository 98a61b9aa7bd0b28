"""Kernels of the interior point: one pass over the pairs each, columns in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit


@njit(cache=True, nogil=True)
def fill_slacks(
    pointers: Any, symbols: Any, distances: Any, posterior: Any, g: Any, lam: Any, nu: Any, z: Any
) -> Any:
    for j in range(len(pointers) - 1):
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            c = lam * distances[k] - nu[j]
            for a in range(g.shape[1]):
                if posterior[j, a] != 0.0:
                    c += posterior[j, a] * g[i, a]
            z[k] = c


@njit(cache=True, nogil=True)
def fill_normal_terms(
    pointers: Any,
    symbols: Any,
    distances: Any,
    posterior: Any,
    r: Any,
    y: Any,
    z: Any,
    anchor: Any,
    blocks: Any,
    d1: Any,
    c: Any,
    a2: Any,
    a1: Any,
) -> Any:
    n, f = len(r), c.shape[1]
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
    for i in range(n):
        for a in range(f):
            for b in range(a + 1):
                blocks[i, a, b] += q[i] * ((r[i, a] if a == b else 0.0) - r[i, a] * r[i, b])
                blocks[i, b, a] = blocks[i, a, b]
            blocks[i, a, a] *= 1 + 1e-12
    return dd


@njit(cache=True, nogil=True)
def fill_right_sides(
    pointers: Any,
    symbols: Any,
    distances: Any,
    posterior: Any,
    r: Any,
    y: Any,
    z: Any,
    rc: Any,
    mass: Any,
    b1: Any,
    b2: Any,
) -> Any:
    """Adds to b2 (symbols), fills b1 (columns); returns the multiplier's part and the spent."""
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
    pointers: Any,
    symbols: Any,
    distances: Any,
    posterior: Any,
    r: Any,
    y: Any,
    z: Any,
    rc: Any,
    dt: Any,
    dnu: Any,
    dlam: Any,
    dy: Any,
    dz: Any,
) -> Any:
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
        v = low - mu * (last - first) / mass[j]
        for _ in range(60):
            s, s2 = 0.0, 0.0
            for k in range(first, last):
                w = mu / (cost[k] - v)
                s += w
                s2 += w / (cost[k] - v)
            if abs(s - mass[j]) <= 1e-13 * mass[j]:
                break
            new = v + (1 / s - 1 / mass[j]) * s * s / s2
            v = new if new < low else 0.5 * (v + low)
        nu[j] = v
        for k in range(first, last):
            y[k] = mu / (cost[k] - v)
