"""Convex inner problems solved in rounds: damped Newton steps for a head, warm from call to call.

One `HeadSolver` holds what is known about one head between rounds: its best parameters, loss,
slope and curvature. It proposes a trial, is told what the records answered, and accepts it or
retreats. It never sees a record.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import scipy.linalg as sl

from privpipe.errors import ConvergenceError
from privpipe.numerics.regression.logistic import unpack_symmetric
from privpipe.protocols import FloatArray

ARMIJO = 1e-4
SLOW = 0.03
"""A step with an old curvature should shrink the gap at least by this factor."""
FIRST_DAMPING = 1e-3
LIGHT = 0.1
"""Share of a step's model below which damping only shaves it, and is dropped."""
MORE_DAMPING = 30.0
TRUE = 0.75
"""Share of what a step promised that it has to gain for the next one to be bolder."""
ABSURD = 10.0
"""Times a loss that is left to gain by the model of a head: it is where the loss hardly bends."""
LITTLE = 0.01
"""Nats, below which what is left to gain may be rounding."""
ROUNDING = (0.0, 1e-12, 1e-9, 1e-6, 1e-3)
"""Dampings that are tried where a Hessian is not positive."""

Curvature = tuple[FloatArray, FloatArray]
"""Packed Hessian (empty where the bound is it) and packed block of its upper bound."""


class HeadSolver:
    """Damped Newton for ``min_V f(V)``, f convex, asked for in rounds.

    Steps solve ``(H + m B) d = -g``, H the Hessian and B the same bounding block for every score.
    The damping m starts at zero (Newton) and grows when a step is refused; at one the step
    minimises a majorant of f and cannot fail. For least squares the bound *is* the Hessian.

    The loss of optimality is judged by the Newton decrement ``gap = g^T H^-1 g / 2``, the
    distance to the minimum in the quadratic model. Where every row is penalised, by
    ``p_r |V_r|**2 / 2``, the gap is *certified*: f less its penalty is convex, so that
    ``f(V) - min f <= sum_r |g_r|**2 / (2 p_r)``; it is the duality gap at the predicted classes.

    Parameters
    ----------
    head : (n_inputs, n_scores)
        Where to start.
    ridge
        Weight of ``|V|**2``; the last `n_free` rows (an intercept) are not penalised.
    n_free
        Number of unpenalised rows at the end.
    """

    def __init__(self, head: FloatArray, *, ridge: float, n_free: int) -> None:
        self.head = head
        self._penalty = np.full(len(head), 2.0 * ridge)
        self._penalty[len(head) - n_free :] = 0.0
        self.restart()

    @property
    def certifies(self) -> bool:
        """Whether the gap is a bound and no estimate."""
        return bool((self._penalty > 0).all())

    def restart(self) -> None:
        """Forget values and curvature, for they belong to another filter; keep the head."""
        self.trial = self.head
        self.value, self.gap, self.decrement = np.inf, np.inf, np.inf
        self.stalled = self.is_slow = False
        self._slope = np.zeros_like(self.head)
        self._direction = np.zeros_like(self.head)
        self._damping, self._refused = 0.0, 0
        self._hessian: FloatArray = np.empty((0, 0))
        self._block: FloatArray = self._hessian

    def penalty(self, head: FloatArray) -> float:
        """Ridge term of the loss at a head."""
        return float(0.5 * (self._penalty[:, None] * head**2).sum())

    def receive(self, loss: float, slope: FloatArray, curvature: Curvature | None) -> None:
        """Take the records' answer at `trial`: mean loss, its slope, and curvature or None.

        A head that was brought along and does worse than zeros, or has more left to gain than it
        loses (where it errs it is sure, and nothing bends), as at a filter that a line search only
        looks at, is dropped: zeros are near, and Newton's steps from there are short. A trial
        that does not lower the loss enough is refused, and the next one is more careful; where
        even the most careful one is refused, rounding rules, and the head is ``stalled``.
        """
        is_new = np.isinf(self.value)
        if curvature is not None and len(curvature[0]) and self._is_lost(loss, slope.shape[1]):
            self._begin_at_zeros()
            return
        value = loss + self.penalty(self.trial)
        slope = slope + self._penalty[:, None] * self.trial
        expected = ARMIJO * float((self._direction * self._slope).sum())
        if np.isfinite(self.value) and value > self.value + expected + 1e-13 * (1 + abs(value)):
            self._retreat()
            return
        if curvature is not None:
            self._keep(curvature, slope.shape[1])
        if not is_new and self.value - value >= TRUE * self._promise():
            self._damping = 0.0 if self._is_light() else self._damping / MORE_DAMPING
        self.head, self.value, self._slope = self.trial, value, slope
        self._refused = 0
        self._direct()
        before = self.decrement
        self.gap = self.decrement = self._measure_decrement(slope)
        if self.certifies:
            self.gap = float(0.5 * (slope**2 / self._penalty[:, None]).sum())
        if is_new and self._is_absurd(loss):
            self._begin_at_zeros()
            return
        self.is_slow = curvature is None and self.decrement > SLOW * before

    def propose(self) -> None:
        """Move the trial one full step from an accepted head; a refused one is left as it is."""
        if self.trial is self.head and not self.stalled:
            self.trial = self.head + self._direction

    @property
    def gain(self) -> float:
        """What the step from the head promises, in the quadratic model."""
        return float(-0.5 * (self._direction * self._slope).sum())

    @property
    def accepted(self) -> bool:
        """Whether the last answer was for the head itself."""
        return self.trial is self.head

    def _promise(self) -> float:
        """What the damped model of the step gains."""
        if not self._damping or not len(self._block):
            return self.gain
        return self.gain + 0.5 * self._damping * self._bound(self._direction)

    def _is_light(self) -> bool:
        """Whether the step would have been much the same undamped.

        Of classes that are all but told apart the curvature is far below its bound, and little
        damping is much: it is taken back step by step there.
        """
        if not self._damping or not len(self._block):
            return True
        return self._damping * self._bound(self._direction) <= 2 * LIGHT * self.gain

    def _bound(self, direction: FloatArray) -> float:
        """Upper bound of the loss's curvature along a direction."""
        return float((direction * (self._block @ direction)).sum())

    def _is_lost(self, loss: float, n_scores: int) -> bool:
        """Whether a head from another filter tells classes worse than a constant guess."""
        return bool(np.isinf(self.value) and loss > np.log(n_scores + 1) and self.head.any())

    def _is_absurd(self, loss: float) -> bool:
        """Whether the model of a head from another filter gains more than there is to lose."""
        far = self.decrement > ABSURD * max(loss, LITTLE)
        return bool(far and len(self._hessian) and self.head.any())

    def _begin_at_zeros(self) -> None:
        self.head = np.zeros_like(self.head)
        self.restart()

    def _direct(self) -> None:
        """Choose the direction of the next step from an accepted head."""
        self._direction = self._damp()

    def _damp(self) -> FloatArray:
        return -self._divide(self._slope, self._damping)

    def _measure_decrement(self, slope: FloatArray) -> float:
        newton = self._direction if self._damping == 0 else -self._divide(slope, 0.0)
        return float(-0.5 * (newton * slope).sum())

    def _retreat(self) -> None:
        """Refuse the trial: more damping, and boldly more where that was not enough twice."""
        self.stalled = self._damping >= 1.0
        self._refused += 1
        more = MORE_DAMPING ** max(1, self._refused - 1) * self._damping
        self._damping = min(1.0, more) if self._damping else FIRST_DAMPING
        self._direction = self._damp()
        self.trial = self.head if self.stalled else self.head + self._direction

    def _keep(self, curvature: Curvature, n_scores: int) -> None:
        hessian, block = (unpack_symmetric(part) for part in curvature)
        # A constant filter output has no curvature: the jitter keeps the step finite there.
        block[np.diag_indices_from(block)] += 1e-12 * np.trace(block) / len(block) + 1e-300
        if len(hessian):
            jitter = 1e-12 * np.trace(hessian) / len(hessian) + 1e-300
            hessian[np.diag_indices_from(hessian)] += np.tile(self._penalty, n_scores) + jitter
        block[np.diag_indices_from(block)] += self._penalty
        self._hessian, self._block = hessian, block

    def _divide(self, slope: FloatArray, damping: float) -> FloatArray:
        """Solve with the damped Hessian, or with the block where there is none."""
        if len(self._hessian) == 0:
            return np.asarray(sl.solve(self._block, slope, assume_a="pos", check_finite=False))
        bound = np.kron(np.eye(slope.shape[1]), self._block)
        # Where every record is told with certainty, rounding is all that a Hessian holds.
        for least in ROUNDING:
            matrix = self._hessian + max(damping, least) * bound
            with suppress(np.linalg.LinAlgError):
                factor = sl.cho_factor(matrix, lower=True, check_finite=False)
                solution = sl.cho_solve(factor, slope.T.ravel(), check_finite=False)
                return np.asarray(solution.reshape(slope.T.shape).T)
        raise ConvergenceError(
            "The curvature of an inner problem is not positive, or not finite.",
            remedy="Raise regularisation, or scale the features: [collection] standardise = true.",
        )
