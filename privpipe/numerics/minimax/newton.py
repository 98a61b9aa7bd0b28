"""Convex inner problems solved in rounds: damped Newton steps for a head, warm from call to call.

One `HeadSolver` holds what is known about one head between rounds: its best parameters, loss,
slope and curvature. It proposes a trial, receives what the records answered, and accepts it or
retreats. It never sees a record.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import scipy.linalg as sl
import scipy.optimize as so

from privpipe.errors import ConvergenceError
from privpipe.numerics.logistic import unpack_symmetric
from privpipe.protocols import FloatArray

# The forcing terms of an inexact Newton method: a run of conjugate gradients ends when what it
# leaves is no more than the next run will have to gain anyway, for further products would be
# thrown away with the quadratic model.
FAR, FEW = 0.1, 8
"""Farther from its minimum than so many nats a head takes a step after so few products."""
LOOSEST = 0.3
"""Share of the gain of a step that may be left in any case."""
BENDS = 8.0
"""Times the square of its gain that a step leaves since the loss is not quadratic (1 / nats)."""
SETTLES = 0.2
"""Share of the tolerance that need not be gained."""
# Products cost a round each, so those of earlier runs are used again, as L-BFGS does: at a filter
# or head near by they are nearly right.
MEMORY = 20
"""Pairs of directions and products that shape the next run."""
RECENT = 4
"""Runs whose smallest eigenvalue counts for the next."""


def _find_least(coefficients: list[tuple[float, float]]) -> float:
    """Smallest Ritz value, of the Lanczos matrix that conjugate gradients build."""
    steps, shares = np.array(coefficients).T
    # Coefficients of conjugate gradients are those of Lanczos: steps and shares of a run give the
    # tridiagonal matrix without a product more.
    main = 1.0 / steps
    main[1:] += shares[:-1] / steps[:-1]
    side = np.sqrt(shares[:-1]) / steps[:-1]
    values = sl.eigvalsh_tridiagonal(main, side, select="i", select_range=(0, 0))
    return max(float(values[0]), 1e-12)


Pairs = deque[tuple[FloatArray, FloatArray]]
"""Steps and the changes of slope along them, the newest last; their products are positive."""


def divide_by_curvature(
    slope: FloatArray, pairs: Pairs, begin: Callable[[FloatArray], FloatArray] = lambda slope: slope
) -> FloatArray:
    """Divide a slope by the curvature that pairs show: the two loops of L-BFGS (Nocedal 1980).

    Parameters
    ----------
    slope
        Of any shape, that of the pairs.
    begin
        Divides by a guess, which is scaled to suit the newest pair.
    """
    q, back = slope.copy(), []
    for s, y in reversed(pairs):
        back.append(dot(s, q) / dot(s, y))
        q -= back[-1] * y
    q = begin(q)
    if pairs:
        s, y = pairs[-1]
        q = q * (dot(s, y) / dot(y, begin(y)))
    for (s, y), a in zip(pairs, reversed(back), strict=True):
        q += (a - dot(y, q) / dot(s, y)) * s
    return q


def dot(a: FloatArray, b: FloatArray) -> float:
    """Inner product of two arrays of one shape."""
    return float((a * b).sum())


# The usual share of the slope that a step must gain.
ARMIJO = 1e-4
SLOW = 0.03
"""A step with an old curvature should shrink the gap at least by this factor."""
# Of separable classes the curvature falls e-fold from step to step: a decrement of 9e-7 nats by the
# Hessian of the step before was 1.2e-5.
DOUBT = 100.0
"""Times a decrement by an old Hessian, where steps with it are slow."""
FRESH, OLD = 1e-3, 3e-5
"""Nats to gain above which the next step, too, needs a curvature: after a fresh one, an old one."""
# Scores of a record that change by one change its curvature at most e-fold (self-concordance):
# steps bounded in the scores stay where the model holds. Damping by factors of thirty, as was done
# before, went from steps that were refused to steps that gained a hundredth and back (300 records
# of 40 features, separable, ridge 1e-9: 200 rounds and no solution).
FIRST_RADIUS = 1.0
"""Root mean square of the scores' change, of the first step that is shortened."""
SHRINK, GROW = 0.3, 3.0
"""Of the radius, where a step is refused, and where it gains what its model promised."""
FIT = 0.8
"""A shortened step reaches at least this share of the radius."""
TRUE = 0.75
"""Share of what a step promised that it has to gain for the next one to be longer."""
LEAST_DAMPING = 1e-15
"""Less than this of the bound is no damping, but rounding of the Hessian."""
# A line search may leave a head that does worse than zeros at the next filter: 18.6 nats of 102
# classes, where a guess costs 4.6, took 240 products that solved nothing.
ABSURD = 10.0
"""Times a loss that is left to gain by the model of a head: it is where the loss hardly bends."""
LITTLE = 0.01
"""Nats, below which what is left to gain may be rounding."""
ROUNDING = (0.0, 1e-12, 1e-9, 1e-6, 1e-3)
"""Dampings that are tried where a Hessian is not positive."""

Curvature = tuple[FloatArray, FloatArray]
"""Packed Hessian (empty where the bound is it) and packed block of its upper bound."""


def _jitter(matrix: FloatArray) -> FloatArray:
    """Keeps steps finite, on its diagonal, where a constant filter output has no curvature."""
    # Of each entry: of outputs whose scales differ 10^5-fold a share of the mean was more than the
    # small ones bend, and 200 steps gained a hundredth of what was left each.
    return np.asarray(1e-12 * np.diagonal(matrix) + 1e-300)


def _solve_positive(matrix: FloatArray, slope: FloatArray) -> FloatArray:
    # Not sl.solve, which warns of outputs that are nothing but zeros; nor sl.cho_factor, whose
    # checks take longer than the factor of a small head.
    factor, refused = sl.lapack.dpotrf(matrix, lower=True, clean=False)
    if refused:
        raise np.linalg.LinAlgError
    return np.asarray(sl.lapack.dpotrs(factor, slope, lower=True)[0])


class HeadSolver:
    """Damped Newton for ``min_V f(V)``, f convex, in rounds over the records.

    Steps solve ``(H + m B) d = -g``, H the Hessian and B the same bounding block for every score.
    The damping m is zero (Newton) until a step is refused. Then it is the one by which the scores
    change no more than a radius. The radius shrinks with every refusal and grows where the model
    keeps its promise (a trust region in the scores). At one the step minimises a majorant of f and
    cannot fail. For least squares the bound *is* the Hessian.

    The Newton decrement ``gap = g^T H^-1 g / 2`` judges the loss of optimality. It is the distance
    to the minimum in the quadratic model. Where every row is penalised, by ``p_r |V_r|**2 / 2``,
    the gap is *certified*. Since f less its penalty is convex,
    ``f(V) - min f <= sum_r |g_r|**2 / (2 p_r)``. The right side is the duality gap at the predicted
    classes.

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
        self.stalled = self.is_slow = self.is_old = False
        self._slope = np.zeros_like(self.head)
        self._direction = np.zeros_like(self.head)
        self._damping, self._radius, self._refused = 0.0, np.inf, 0
        self._hessian: FloatArray = np.empty((0, 0))
        self._block: FloatArray = self._hessian

    def penalty(self, head: FloatArray) -> float:
        """Ridge term of the loss at a head."""
        return float(0.5 * (self._penalty[:, None] * head**2).sum())

    def receive(self, loss: float, slope: FloatArray, curvature: Curvature | None) -> None:
        """Take the records' answer at `trial`: mean loss, its slope, and curvature or None.

        A head that was brought along is dropped where it does worse than zeros, or has more left to
        gain than it loses. Such a head is sure where it errs, and nothing bends, as at a filter
        that a line search only looks at. Zeros are near, and Newton's steps from there are short. A
        trial that does not lower the loss enough is refused, and the next one is more careful.
        Where even the most careful one is refused, rounding rules, and the head is ``stalled``.
        """
        # No value is known yet at this filter: whatever comes is accepted as where the descent
        # starts.
        is_new = np.isinf(self.value)
        if self.accepted and not is_new:  # of a head that others waited for
            return
        if curvature is not None and len(curvature[0]) and self._is_lost(loss, slope.shape[1]):
            self._begin_at_zeros()
            return
        value = loss + self.penalty(self.trial)
        slope = slope + self._penalty[:, None] * self.trial
        # What the step to the trial promised: half of its fall along the slope, in the model.
        gain = -0.5 * dot(self._direction, self._slope)
        # The last term is rounding of a sum over many records; without it heads at their minimum
        # are refused for ever.
        if value > self.value - 2 * ARMIJO * gain + 1e-13 * (1 + abs(value)):
            self._retreat()
            return
        # Damping shortens a step and bends the model: what the loss itself should fall by.
        shave = self._damping * self._bound(self._direction) if self.is_bounded else 0.0
        if self.is_bounded and self.value - value >= TRUE * (gain + 0.5 * shave):
            self._radius *= GROW
        if curvature is not None:
            self._keep(curvature, slope.shape[1])
        # Order matters: the direction and the decrement below belong to the head that was just
        # accepted.
        self.head, self.value, self._slope = self.trial, value, slope
        self._refused = 0
        self._direct()
        before = self.decrement
        self.gap = self.decrement = self._measure_decrement(slope)
        # The penalty is strongly convex in every row: a bound by the slope alone, whatever the
        # curvature.
        if self.certifies:
            self.gap = float(0.5 * (slope**2 / self._penalty[:, None]).sum())
        if is_new and self._is_absurd(loss):
            self._begin_at_zeros()
        else:
            self.is_old = curvature is None
            self.is_slow = self.is_old and self.decrement > SLOW * before

    def propose(self) -> None:
        """Move the trial one full step from an accepted head; a refused one is left as it is."""
        if self.trial is self.head and not self.stalled:
            self.trial = self.head + self._direction

    @property
    def accepted(self) -> bool:
        """Whether the last answer was for the head itself."""
        return self.trial is self.head

    @property
    def needs_curvature(self) -> bool:
        """Whether an old Hessian would not make the next step long enough."""
        if self.stalled or self.gap == 0:
            return False
        is_near = self.decrement <= (OLD if self.is_old else FRESH)
        return self.is_bounded or self.is_slow or not is_near

    @property
    def doubted_gap(self) -> float:
        """The decrement, or far more where an old Hessian bends more than the loss does now."""
        return DOUBT * self.decrement if self.is_slow else self.decrement

    @property
    def is_bounded(self) -> bool:
        """Whether the step is shortened: far from where the model of the loss holds."""
        return self._damping > 0

    def _bound(self, direction: FloatArray) -> float:
        """Upper bound of the loss's curvature along a direction."""
        return dot(direction, self._block @ direction)

    def _is_lost(self, loss: float, n_scores: int) -> bool:
        """Whether a head from another filter predicts classes worse than a constant guess."""
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
        self._limit()

    def _limit(self) -> None:
        """Newton's step, or the one that gains most in the model within the radius."""
        self._damping, self._direction = 0.0, self._solve(0.0)
        if self._length(self._direction) <= self._radius:
            return

        # Rounds are dear, factors of the Hessian are the driver's: the damping is found, not tried.
        def exceed(log_damping: float) -> float:
            length = self._length(self._solve(float(np.exp(log_damping))))
            return float(np.log(max(length, 1e-300) / (FIT * self._radius)))

        least = float(np.log(LEAST_DAMPING))
        self._damping = LEAST_DAMPING if exceed(least) <= 0 else 1.0
        if self._damping == 1.0 and exceed(0.0) < 0:
            self._damping = float(np.exp(so.brentq(exceed, least, 0.0, xtol=1 - FIT)))
        self._direction = self._solve(self._damping)

    def _length(self, direction: FloatArray) -> float:
        """Root mean square of the scores' change, with that of the penalty."""
        if not len(self._block):
            return 0.0
        return float(np.sqrt(2.0 * max(self._bound(direction), 0.0)))

    def _solve(self, damping: float) -> FloatArray:
        return -self._divide(self._slope, damping)

    def _measure_decrement(self, slope: FloatArray) -> float:
        newton = self._direction if self._damping == 0 else -self._divide(slope, 0.0)
        return -0.5 * dot(newton, slope)

    def _retreat(self) -> None:
        """Refuse the trial: a smaller radius, and boldly smaller where that was not enough."""
        # At one the step minimises a majorant of the loss: if even that does not lower it, only
        # rounding is left.
        self.stalled = self._damping >= 1.0
        self._refused += 1
        most = FIRST_RADIUS if np.isinf(self._radius) else np.inf
        self._radius = min(most, SHRINK**self._refused * self._length(self._direction))
        self._limit()
        self.trial = self.head if self.stalled else self.head + self._direction

    def _keep(self, curvature: Curvature, n_scores: int) -> None:
        # Symmetric matrices travel as their upper triangles, half the bytes.
        hessian, block = (unpack_symmetric(part) for part in curvature)
        block[np.diag_indices_from(block)] += _jitter(block)
        if len(hessian):
            penalty = np.tile(self._penalty, n_scores)
            hessian[np.diag_indices_from(hessian)] += penalty + _jitter(hessian)
        block[np.diag_indices_from(block)] += self._penalty
        self._hessian, self._block = hessian, block

    def _divide(self, slope: FloatArray, damping: float) -> FloatArray:
        """Solve with the damped Hessian, or with the block where there is none."""
        if len(self._hessian) == 0:
            return _solve_positive(self._block, slope)
        # Böhning's bound is the same block for every score: the Hessian is ordered score by
        # score.
        n_scores = slope.shape[1]
        bound = self._block if n_scores == 1 else np.kron(np.eye(n_scores), self._block)
        # Where every record is predicted with certainty, rounding is all that a Hessian holds.
        for least in ROUNDING:
            matrix = self._hessian + max(damping, least) * bound
            with suppress(np.linalg.LinAlgError):
                return _solve_positive(matrix, slope.T.ravel()).reshape(slope.T.shape).T
        problem = "The curvature of an inner problem is not positive, or not finite."
        remedy = "Raise regularisation, or scale the features: [collection] standardise = true."
        raise ConvergenceError(problem, remedy=remedy)


class InexactSolver(HeadSolver):
    """`HeadSolver` for a head of classes whose Hessian is too large to send.

    An accepted head needs products of its Hessian H with directions (`probe`), one a round, each as
    large as the head. The directions are those of conjugate gradients. They are preconditioned by
    ``M = (2 / K) B``, the Hessian where nothing is known of K classes, and by pairs of earlier
    runs. At a filter or head near by these are nearly right. A run ends when what it leaves is less
    than what the next run will have to gain anyway (the forcing term). A step that is refused is
    damped among the directions that are known already, by multiples of M up to the majorant: no
    product more. A head that does worse at a new filter than one of zeros begins as that.

    The Newton decrement is what the quadratic model gains in these directions, plus what the
    residual r that is left may gain. The latter is at most ``r^T M^-1 r / (2 c)``. Here c is the
    smallest eigenvalue of ``M^-1 H``. The smallest Ritz value of the last few runs is taken for c,
    so the gap is an estimate. Where every row is penalised, it is the certified one instead.

    Parameters
    ----------
    head, ridge, n_free
        As of `HeadSolver`.
    tolerance
        Gap at which the head will be taken as solved, in nats.

    Attributes
    ----------
    probe : (n_inputs, n_scores)
        Direction whose product with the Hessian of the loss is needed.
    """

    def __init__(self, head: FloatArray, *, ridge: float, n_free: int, tolerance: float) -> None:
        self._tolerance = tolerance
        self._pairs: Pairs = deque(maxlen=MEMORY)
        self._least: deque[float] = deque(maxlen=RECENT)
        self._majorant = float(head.shape[1] + 1) / 2
        self._residual = self.probe = self._found = np.zeros_like(head)
        self._size = 0.0
        super().__init__(head, ridge=ridge, n_free=n_free)

    @property
    def lacks_block(self) -> bool:
        """Whether its steps wait for a bound of the curvature."""
        return len(self._block) == 0

    @property
    def needs_product(self) -> bool:
        """Whether its next step waits for a product with `probe`."""
        return self.accepted and self._is_running and not self.stalled

    def restart(self) -> None:
        """Forget values and curvature, keep the head and what only shapes steps."""
        super().restart()
        self._begin()
        self._is_running = False

    def receive(self, loss: float, slope: FloatArray, curvature: Curvature | None) -> None:
        """Take the records' answer; at a head that is known it says nothing new."""
        if curvature is not None:
            self._keep(curvature, slope.shape[1])
        elif self.accepted and np.isfinite(self.value):
            return
        if self._is_lost(loss, slope.shape[1]):
            block = self._block
            self._begin_at_zeros()
            self._block = block  # of the filter alone
            self._pairs.clear()
            return
        super().receive(loss, slope, None)

    def take_product(self, product: FloatArray) -> None:
        """Take the product of the Hessian of the mean loss, without penalty, with `probe`."""
        product = product + self._penalty[:, None] * self.probe
        # Curvature along the probe: of a convex loss it is negative by rounding alone.
        bend = dot(self.probe, product)
        if not bend > 0:  # rounding: nothing is left in this direction
            self.stalled = not self._probes
            self._end()
            return
        step = dot(self.probe, self._residual) / bend
        self._probes.append(self.probe)
        self._products.append(product)
        self._found = self._found + step * self.probe
        self._residual = self._residual - step * product
        reduced = self._precondition(self._residual)
        size = dot(self._residual, reduced)
        self._coefficients.append((step, size / self._size))
        self.probe = reduced + size / self._size * self.probe
        self._size = size
        self._judge()

    def propose(self) -> None:
        """Move the trial once its step is found; see `HeadSolver.propose`."""
        if not self._is_running:
            super().propose()

    def _judge(self) -> None:
        """Decrement by the products so far, and whether these are enough."""
        # A Ritz value lies above the eigenvalue: the smallest of several runs is nearer, yet an
        # estimate.
        least = min(_find_least(self._coefficients), *self._least, np.inf)
        self.decrement = 0.5 * (self._size / least - dot(self._found, self._slope))
        left = 0.5 * self._size / least
        if self.certifies:
            left = float(0.5 * (self._residual**2 / self._penalty[:, None]).sum())
        else:
            self.gap = self.decrement
        later = min(LOOSEST, BENDS * self.decrement) * self.decrement
        # Far from the minimum the model is poor: few products, then a step.
        most = FEW if self.decrement > FAR else self.head.size
        if left <= max(SETTLES * self._tolerance, later) or len(self._probes) >= most:
            self._end()

    def _begin(self) -> None:
        """Nothing is known of the Hessian at a new head."""
        self._probes: list[FloatArray] = []
        self._products: list[FloatArray] = []
        self._coefficients: list[tuple[float, float]] = []
        self._found = np.zeros_like(self.head)
        self._is_running = True

    def _direct(self) -> None:
        """Begin to look for a step from an accepted head."""
        self._begin()
        self._direction = np.zeros_like(self.head)
        self._residual = -self._slope
        reduced = self._precondition(self._residual)
        self.probe, self._size = reduced, dot(self._residual, reduced)

    def _end(self) -> None:
        self._is_running = False
        if self._coefficients:
            self._least.append(_find_least(self._coefficients))
        # A refused step is damped among the directions that are known: no product, so no round
        # more.
        self._limit()
        # Only now: conjugate gradients want one preconditioner from the first to the last.
        self._pairs.extend(zip(self._probes, self._products, strict=True))

    def _measure_decrement(self, slope: FloatArray) -> float:
        """Before any product, from eigenvalues of earlier heads."""
        return 0.5 * self._size / min(self._least) if self._least else np.inf

    def _solve(self, damping: float) -> FloatArray:
        """Minimise the damped model among the directions that are known."""
        if not damping or not self._probes:
            return self._found
        # Probes differ in length by orders of magnitude: unscaled, least squares would drop the
        # short ones.
        sizes = [np.linalg.norm(p) for p in self._probes]
        probes = np.array([p.ravel() / s for p, s in zip(self._probes, sizes, strict=True)])
        products = np.array([h.ravel() / s for h, s in zip(self._products, sizes, strict=True)])
        bounds = [(self._block @ p.reshape(self.head.shape)).ravel() for p in probes]
        matrix = probes @ (products + damping * self._majorant * np.array(bounds)).T
        slopes = -probes @ self._slope.ravel()
        share = np.linalg.lstsq((matrix + matrix.T) / 2, slopes, rcond=1e-12)[0]
        return np.asarray((share @ probes).reshape(self.head.shape))

    def _keep(self, curvature: Curvature, n_scores: int) -> None:
        block = unpack_symmetric(curvature[1])
        block[np.diag_indices_from(block)] += _jitter(block)
        self._block = block / self._majorant + np.diag(self._penalty)

    def _bound(self, direction: FloatArray) -> float:
        return self._majorant * super()._bound(direction)

    def _precondition(self, residual: FloatArray) -> FloatArray:
        """M^-1 with the pairs of earlier runs."""
        return divide_by_curvature(residual, self._pairs, partial(_solve_positive, self._block))
