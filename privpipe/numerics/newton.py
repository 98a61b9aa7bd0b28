"""Convex inner problems solved in rounds: damped Newton steps for a head, warm from call to call.

One `HeadSolver` holds what is known about one head between rounds: its best parameters, loss,
slope and curvature. It proposes a trial, is told what the records answered, and accepts or
shortens the step. It never sees a record.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import scipy.linalg as sl

from privpipe.numerics.logistic import unpack_symmetric
from privpipe.protocols import FloatArray

__all__ = ["HeadSolver"]

ARMIJO = 1e-4
MEMORY = 10
SLOW = 0.03
"""A step with an old curvature should shrink the gap at least by this factor."""


class HeadSolver:
    """Damped Newton for ``min_V f(V)``, f convex, asked for in rounds.

    With the full Hessian (of all q entries) the steps are Newton's; with one block shared by all
    scores (least squares, where it is exact, or a bound on a softmax curvature) it starts
    quasi-Newton steps. The loss of optimality is judged by the Newton decrement
    ``gap = g^T H^-1 g / 2``, which is the distance to the minimum in the quadratic model.

    Parameters
    ----------
    head : (n_inputs, n_scores)
        Where to start.
    ridge
        Weight of ``|V|**2``; the last `n_free` rows (an intercept) are not penalised.
    n_free
        Number of unpenalised rows at the end.
    quasi
        Keep pairs of steps and slopes: for a curvature that is a bound rather than a Hessian.
    """

    def __init__(self, head: FloatArray, *, ridge: float, n_free: int, quasi: bool) -> None:
        self.head = head
        self.trial = head
        self.value = np.inf
        self.gap = np.inf
        self.stalled = False
        self.is_slow = False
        self.quasi = quasi
        self._penalty = np.full(len(head), 2.0 * ridge)
        self._penalty[len(head) - n_free :] = 0.0
        self._slope = np.zeros_like(head)
        self._direction = np.zeros_like(head)
        self._step = 1.0
        self._factor: tuple[FloatArray, bool] | None = None
        self._pairs: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=MEMORY)

    def restart(self) -> None:
        """Forget values and curvature, for they belong to another filter; keep the head."""
        self.trial = self.head
        self.value, self.gap, self.stalled, self.is_slow = np.inf, np.inf, False, False
        self._factor = None
        self._pairs.clear()

    def penalty(self, head: FloatArray) -> float:
        """Ridge term of the loss at a head."""
        return float(0.5 * (self._penalty[:, None] * head**2).sum())

    def receive(self, loss: float, slope: FloatArray, curvature: FloatArray | None) -> None:
        """Take the records' answer at `trial`: mean loss, its slope, packed curvature or None.

        A trial that does not lower the loss enough is refused and the step shortened by the
        secant rule; below 1e-12 of a step rounding rules, and the head stays, ``stalled``.
        """
        value = loss + self.penalty(self.trial)
        slope = slope + self._penalty[:, None] * self.trial
        expected = ARMIJO * self._step * float((self._direction * self._slope).sum())
        if np.isfinite(self.value) and value > self.value + expected + 1e-13 * (1 + abs(value)):
            self._step *= self._shorten(slope)
            self.stalled = self._step < 2.0**-40
            self.trial = self.head if self.stalled else self.head + self._step * self._direction
            return
        if curvature is not None:
            self._factor = self._factorise(curvature, slope.shape[1])
        if self.quasi and np.isfinite(self.value):
            self._remember(self.trial - self.head, slope - self._slope)
        self.head, self.value, self._slope = self.trial, value, slope
        self._direction = -self._solve(slope)
        before, self.gap = self.gap, float(-0.5 * (self._direction * slope).sum())
        self.is_slow = curvature is None and self.gap > SLOW * before
        self._step = 1.0

    def propose(self) -> None:
        """Move the trial one full step from an accepted head; a refused one is left as it is."""
        if self.trial is self.head and not self.stalled:
            self.trial = self.head + self._direction

    @property
    def accepted(self) -> bool:
        """Whether the last answer was for the head itself."""
        return self.trial is self.head

    def _shorten(self, slope: FloatArray) -> float:
        """Share of the refused step at which the slope along it should vanish (secant)."""
        before = float((self._direction * self._slope).sum())
        after = float((self._direction * slope).sum())
        share = before / (before - after) if after > 0 else 0.5
        return float(np.clip(share, 1e-3, 0.5))

    def _factorise(self, packed: FloatArray, n_scores: int) -> tuple[FloatArray, bool]:
        matrix = unpack_symmetric(packed)
        shared = len(matrix) == len(self.head)
        penalty = self._penalty if shared else np.tile(self._penalty, n_scores)
        # A constant filter output has no curvature: the jitter keeps the step finite there.
        jitter = 1e-12 * np.trace(matrix) / len(matrix) + 1e-300
        matrix[np.diag_indices_from(matrix)] += penalty + jitter
        factor: tuple[FloatArray, bool] = sl.cho_factor(matrix, lower=True, check_finite=False)
        return factor

    def _solve(self, slope: FloatArray) -> FloatArray:
        return self._two_loops(slope) if self.quasi else self._divide(slope)

    def _divide(self, slope: FloatArray) -> FloatArray:
        assert self._factor is not None
        shared = len(self._factor[0]) == len(slope)
        right = slope if shared else slope.T.ravel()
        solution = sl.cho_solve(self._factor, right, check_finite=False)
        return np.asarray(solution if shared else solution.reshape(slope.T.shape).T)

    def _two_loops(self, slope: FloatArray) -> FloatArray:
        """L-BFGS direction, with the curvature bound as its first matrix."""
        q, back = slope.copy(), []
        for s, y in reversed(self._pairs):
            a = float((s * q).sum() / (s * y).sum())
            q -= a * y
            back.append(a)
        q = self._divide(q)
        for (s, y), a in zip(self._pairs, reversed(back), strict=True):
            q += (a - float((y * q).sum() / (s * y).sum())) * s
        return q

    def _remember(self, s: FloatArray, y: FloatArray) -> None:
        if float((s * y).sum()) > 1e-12 * float(np.linalg.norm(s) * np.linalg.norm(y)):
            self._pairs.append((s, y))
