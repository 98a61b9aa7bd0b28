"""Ascent of the smoothed dual of an ordered alphabet, one symbol's potential after the other.

Potentials of a full alphabet are rough at single symbols, which no cells see. A round lists all
pairs within a few temperatures of their column's price. Over these each symbol's logit goes to
the exact maximum of the smoothed dual, the others held. Then all pairs are priced again, so that
a bound is always over all pairs.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.problem import smoothed_dual
from privpipe.numerics.mapping.problem.ordered_pricing import list_near, price_from
from privpipe.numerics.mapping.problem.programme import Duals, Pairs
from privpipe.numerics.mapping.problem.search_progress import Search
from privpipe.protocols import FloatArray, IntArray

# Temperatures from a column's price up to which its pairs are listed, and no logit moves farther
# in a round than a share of that, so that hardly an unlisted pair can undercut.
REACH = 14.0
_SWEEPS = 4
# Mass of a symbol without visitors, of what an average one has: holds its potential.
_HOLD = 1e-3
# Share of the reach that a logit may move: at first, and where it stays at its end; after its
# symbol undercut a column that had not listed it, and at least.
_ROOM, _WIDEST, _WIDER, _NARROWER, _NARROWEST = 1.0, 1.5, 1.2, 0.6, 0.3
# Temperatures by which a column may be undercut.
_UNDERCUT = 0.2
# The multiplier follows what is spent, by this power and at most so much a round.
_POWER, _MOST_MOVED = 0.05, 0.01


@njit(cache=True, nogil=True)
def sweep_symbols(
    graph: Any, t: Any, g: Any, log_prior: Any, tau: Any, ends: Any, backwards: Any
) -> Any:
    """Every symbol's logit in turn to the maximum of the smoothed dual.

    `graph` is by symbols: pointers, columns, costs without potentials, posterior and mass of the
    columns. Then come their least cost, their sum of ``exp((least - cost) / tau)``, and held mass.
    `ends` is how far each logit may go.
    """
    by, columns, base, p, _, least, total, _ = graph
    for turn in range(len(t)):
        i = len(t) - 1 - turn if backwards else turn
        if by[i] == by[i + 1]:
            continue
        # What the columns have without this symbol.
        for k in range(by[i], by[i + 1]):
            j = columns[k]
            cost = p[j, 0] * g[i, 0] + p[j, 1] * g[i, 1] + base[k]
            total[j] = max(total[j] - np.exp((least[j] - cost) / tau), 0.0)
        t[i] = _best_logit(graph, i, t[i], log_prior, tau, ends[0][i], ends[1][i])
        g[i, 0] = -np.log1p(np.exp(-t[i])) - log_prior[0]
        g[i, 1] = -np.log1p(np.exp(t[i])) - log_prior[1]
        for k in range(by[i], by[i + 1]):
            j = columns[k]
            cost = p[j, 0] * g[i, 0] + p[j, 1] * g[i, 1] + base[k]
            total[j] += np.exp((least[j] - cost) / tau)
            # Far below the old least cost, or the only one: counted from here on.
            if cost < least[j] - 20.0 * tau or total[j] < 1e-9:
                total[j] = max(total[j] * np.exp((cost - least[j]) / tau), 1.0)
                least[j] = cost


@njit(cache=True, nogil=True)
def _best_logit(graph: Any, i: Any, t: Any, log_prior: Any, tau: Any, low: Any, high: Any) -> Any:
    """The maximum over one logit between two ends, by safeguarded Newton steps."""
    by, columns, base, p, mass, least, total, anchor = graph
    held, open_low, open_high = 1.0 / (1.0 + np.exp(-t)), True, True
    for _ in range(8):
        r = 1.0 / (1.0 + np.exp(-t))
        g0, g1 = -np.log1p(np.exp(-t)) - log_prior[0], -np.log1p(np.exp(t)) - log_prior[1]
        slope, bend = anchor * (held - r), anchor * r * (1.0 - r)
        for k in range(by[i], by[i + 1]):
            j = columns[k]
            x = (least[j] - p[j, 0] * g0 - p[j, 1] * g1 - base[k]) / tau
            if x > -30.0:  # below, exp adds nothing
                e = np.exp(x)
                w, d = e / (total[j] + e), p[j, 0] - r
                slope += mass[j] * w * d
                bend += mass[j] * w * (r * (1.0 - r) + (1.0 - w) * d * d / tau)
        if slope > 0.0:
            low, open_low = t, False
        else:
            high, open_high = t, False
        new = t + (slope / bend if bend > 0.0 else 0.0)
        if new >= high:
            new = high if open_high else 0.5 * (low + high)
        elif new <= low:
            new = low if open_low else 0.5 * (low + high)
        t, moved = new, abs(new - t)
        if moved < 1e-2 * tau:
            break
    return t


@dataclass(eq=False)
class DualAscent:
    """Potentials and multiplier of a problem with two private values, on their way up.

    Parameters
    ----------
    progress
        Of the full alphabet; is offered every bound.
    duals
        To begin with.
    most_pairs
        For which there is room in a round.
    """

    progress: Search
    duals: Duals
    most_pairs: int
    first: IntArray = field(init=False)
    logits: FloatArray = field(init=False)
    values: FloatArray = field(init=False)
    bound: float = field(init=False)

    def __post_init__(self) -> None:
        problem = self.progress.problem
        self.first, self._ceiling = problem.stay.copy(), np.full(problem.n_symbols, _WIDEST)
        self.restart(smoothed_dual.logits_of(self.duals.potentials, problem.prior)[:, 0].copy())
        self.cool()

    def cool(self) -> None:
        """A new temperature: every logit has its first room, or what undercutting left."""
        self._room = np.minimum(_ROOM, self._ceiling)

    def restart(self, logits: FloatArray, multiplier: float | None = None) -> None:
        """Price other logits (n_symbols,) or another multiplier."""
        problem, self.logits = self.progress.problem, logits
        lam = self.duals.multiplier if multiplier is None else multiplier
        self.duals = Duals(smoothed_dual.potentials_of(logits[:, None], problem.prior), lam)
        self.values = price_from(problem, self.duals, self.first)
        self.bound = float(np.sum(problem.mass * self.values)) - lam * problem.budget
        self.progress.take_bound(self.duals, self.bound)

    def list_pairs(self, tau: float) -> Pairs | None:
        """All pairs that matter at a temperature; None where they are too many."""
        near = REACH * tau
        return list_near(self.progress.problem, self.duals, self.values, near, self.most_pairs)

    def climb(self, pairs: Pairs, tau: float) -> None:
        """One round over listed pairs.

        Parameters
        ----------
        pairs
        tau
            Temperature, nats.
        """
        before, box = self.logits, self._room * REACH * tau
        logits = self._sweep(pairs, tau, before - box, before + box)
        self.restart(logits)
        at_end = np.abs(logits - before) > 0.99 * box
        self._room[at_end] = np.minimum(_WIDER * self._room[at_end], self._ceiling[at_end])
        _, on_pairs = smoothed_dual.column_minima(self.progress.problem, pairs, self.duals)
        bad = np.unique(self.first[on_pairs - self.values > _UNDERCUT * tau])
        if len(bad):  # who undercut without being listed goes back, and less far from now on
            self._ceiling[bad] = np.maximum(_NARROWER * self._room[bad], _NARROWEST)
            self._room[bad] = np.minimum(self._room[bad], self._ceiling[bad])
            logits[bad] = before[bad]
            self.restart(logits)

    def _sweep(self, pairs: Pairs, tau: float, low: FloatArray, high: FloatArray) -> FloatArray:
        """The logits after sweeps to and fro."""
        problem, base = self.progress.problem, self.duals.multiplier * pairs.distances
        n, law = problem.n_symbols, (np.ascontiguousarray(problem.posterior), problem.mass)
        cost, least = smoothed_dual.column_minima(problem, pairs, self.duals)
        total = np.add.reduceat(np.exp((least[pairs.columns] - cost) / tau), pairs.pointers[:-1])
        by = sp.csr_array((base, pairs.symbols, pairs.pointers), (problem.n_columns, n)).tocsc()
        graph = by.indptr, by.indices, by.data, *law, least, total, _HOLD / n
        t, sweep, g = self.logits.copy(), cast(Any, sweep_symbols), self.duals.potentials.copy()
        for turn in range(_SWEEPS):
            sweep(graph, t, g, np.log(problem.prior), tau, (low, high), turn % 2 == 1)
        return t

    def masses(self, pairs: Pairs, tau: float) -> FloatArray:
        """Softmin masses of the pairs, (n_pairs,)."""
        point = smoothed_dual.DualPoint(pairs, self.logits[:, None], self.duals.multiplier, tau)
        return point.masses(self.progress.problem)

    def follow(self, spent: float) -> None:
        """Move the multiplier towards the budget, of which so much (a share) is spent."""
        step = np.clip(spent**_POWER, 1 - _MOST_MOVED, 1 + _MOST_MOVED)
        self.restart(self.logits, self.duals.multiplier * float(step))
