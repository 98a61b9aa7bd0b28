"""Newton steps without a Hessian: conjugate gradients on products with it, one product a round.

Eisenstat and Walker, Choosing the forcing terms in an inexact Newton method, SIAM J. Sci. Comput.
17, 1996; Morales and Nocedal, Automatic preconditioning by limited memory quasi-Newton updating,
SIAM J. Optim. 10, 2000.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import scipy.linalg as sl

from privpipe.numerics.minimax.newton import Curvature, HeadSolver
from privpipe.numerics.regression.logistic import unpack_symmetric
from privpipe.protocols import FloatArray

FAR, FEW = 0.1, 8
"""Farther from its minimum than so many nats a head takes a step after so few products."""
LOOSEST = 0.3
"""Share of the gain of a step that may be left in any case."""
BENDS = 8.0
"""Times the square of its gain that a step leaves since the loss is not quadratic (1 / nats)."""
SETTLES = 0.2
"""Share of the tolerance that need not be gained."""
MEMORY = 20
"""Pairs of directions and products that shape the next run."""
RECENT = 4
"""Runs whose smallest eigenvalue counts for the next."""


class InexactSolver(HeadSolver):
    """`HeadSolver` for a head of classes whose Hessian is too large to send.

    An accepted head asks for products of its Hessian H with directions (`probe`), one a round,
    each as large as the head: those of conjugate gradients, preconditioned by ``M = (2 / K) B``,
    the Hessian where nothing is known of K classes, and by pairs of earlier runs, which at a
    filter or head near by are nearly right. A run ends when what it leaves is less than what the
    next run will have to gain anyway (the forcing term). A step that is refused is damped among
    the directions that are known already, by multiples of M up to the majorant: no product more.
    A head that does worse at a new filter than one of zeros begins as that.

    The Newton decrement is what the quadratic model gains in these directions, and at most
    ``r^T M^-1 r / (2 c)`` for the residual r that is left, where c is the smallest eigenvalue of
    ``M^-1 H``. The smallest Ritz value of the last few runs stands for c, so the gap is an
    estimate, unless every row is penalised: then it is the certified one.

    Parameters
    ----------
    head, ridge, n_free
        As of `HeadSolver`.
    tolerance
        Gap at which the head will be taken as solved, in nats.
    """

    def __init__(self, head: FloatArray, *, ridge: float, n_free: int, tolerance: float) -> None:
        self._tolerance = tolerance
        self._pairs: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=MEMORY)
        self._least: deque[float] = deque(maxlen=RECENT)
        self._majorant = float(head.shape[1] + 1) / 2
        self._residual = self._probe = self._found = np.zeros_like(head)
        self._size = 0.0
        self._probes: list[FloatArray] = []
        self._products: list[FloatArray] = []
        self._coefficients: list[tuple[float, float]] = []
        super().__init__(head, ridge=ridge, n_free=n_free)

    @property
    def lacks_block(self) -> bool:
        """Whether its steps wait for a bound of the curvature."""
        return len(self._block) == 0

    @property
    def wants_product(self) -> bool:
        """Whether its next step waits for a product with `probe`."""
        return self.accepted and self._is_running and not self.stalled

    @property
    def probe(self) -> FloatArray:
        """Direction whose product with the Hessian of the loss is wanted, shape of the head.

        Its entries are those of single precision: any direction serves, if both sides mean one.
        """
        return self._probe

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
        product = product + self._penalty[:, None] * self._probe
        bend = _dot(self._probe, product)
        if not bend > 0:  # rounding: nothing is left in this direction
            self.stalled = not self._probes
            self._end()
            return
        step = _dot(self._probe, self._residual) / bend
        self._probes.append(self._probe)
        self._products.append(product)
        self._found = self._found + step * self._probe
        self._residual = self._residual - step * product
        reduced = self._precondition(self._residual)
        size = _dot(self._residual, reduced)
        self._coefficients.append((step, size / self._size))
        self._probe = _shorten(reduced + size / self._size * self._probe)
        self._size = size
        self._judge()

    def propose(self) -> None:
        """Move the trial once its step is found; see `HeadSolver.propose`."""
        if not self._is_running:
            super().propose()

    def _judge(self) -> None:
        """Decrement as the products tell it, and whether these are enough."""
        least = min(_find_least(self._coefficients), *self._least, np.inf)
        self.decrement = 0.5 * (self._size / least - _dot(self._found, self._slope))
        left = 0.5 * self._size / least
        if self.certifies:
            left = float(0.5 * (self._residual**2 / self._penalty[:, None]).sum())
        else:
            self.gap = self.decrement
        later = min(LOOSEST, BENDS * self.decrement) * self.decrement
        most = FEW if self.decrement > FAR else self.head.size
        if left <= max(SETTLES * self._tolerance, later) or len(self._probes) >= most:
            self._end()

    def _begin(self) -> None:
        """Nothing is known of the Hessian at a new head."""
        self._probes, self._products, self._coefficients = [], [], []
        self._found = np.zeros_like(self.head)
        self._is_running = True

    def _direct(self) -> None:
        """Begin to look for a step from an accepted head."""
        self._begin()
        self._direction = np.zeros_like(self.head)
        self._residual = -self._slope
        reduced = self._precondition(self._residual)
        self._probe, self._size = _shorten(reduced), _dot(self._residual, reduced)

    def _end(self) -> None:
        self._is_running = False
        if self._coefficients:
            self._least.append(_find_least(self._coefficients))
        self._direction = self._damp() if self._damping > 0 and self._probes else self._found
        # Only now: conjugate gradients want one preconditioner from the first to the last.
        self._pairs.extend(zip(self._probes, self._products, strict=True))

    def _measure_decrement(self, slope: FloatArray) -> float:
        """Before any product, from eigenvalues of earlier heads."""
        return 0.5 * self._size / min(self._least) if self._least else np.inf

    def _damp(self) -> FloatArray:
        """Minimise the damped model among the directions that are known."""
        sizes = [np.linalg.norm(p) for p in self._probes]
        probes = np.array([p.ravel() / s for p, s in zip(self._probes, sizes, strict=True)])
        products = np.array([h.ravel() / s for h, s in zip(self._products, sizes, strict=True)])
        bounds = [(self._block @ p.reshape(self.head.shape)).ravel() for p in probes]
        matrix = probes @ (products + self._damping * self._majorant * np.array(bounds)).T
        slopes = -probes @ self._slope.ravel()
        share = np.linalg.lstsq((matrix + matrix.T) / 2, slopes, rcond=1e-12)[0]
        return np.asarray((share @ probes).reshape(self.head.shape))

    def _keep(self, curvature: Curvature, n_scores: int) -> None:
        block = unpack_symmetric(curvature[1])
        # A constant filter output has no curvature: the jitter keeps the step finite there.
        block[np.diag_indices_from(block)] += 1e-12 * np.trace(block) / len(block) + 1e-300
        self._block = block / self._majorant + np.diag(self._penalty)

    def _bound(self, direction: FloatArray) -> float:
        return self._majorant * super()._bound(direction)

    def _precondition(self, residual: FloatArray) -> FloatArray:
        """M^-1 with the pairs of earlier runs: the two loops of L-BFGS."""
        q, back = residual.copy(), []
        for s, y in reversed(self._pairs):
            back.append(_dot(s, q) / _dot(s, y))
            q -= back[-1] * y
        q = np.asarray(sl.solve(self._block, q, assume_a="pos", check_finite=False))
        if self._pairs:
            s, y = self._pairs[-1]
            whole = sl.solve(self._block, y, assume_a="pos", check_finite=False)
            q *= _dot(s, y) / _dot(y, whole)
        for (s, y), a in zip(self._pairs, reversed(back), strict=True):
            q += (a - _dot(y, q) / _dot(s, y)) * s
        return q


def _find_least(coefficients: list[tuple[float, float]]) -> float:
    """Smallest Ritz value, of the Lanczos matrix that conjugate gradients build."""
    steps, shares = np.array(coefficients).T
    main = 1.0 / steps
    main[1:] += shares[:-1] / steps[:-1]
    side = np.sqrt(shares[:-1]) / steps[:-1]
    values = sl.eigvalsh_tridiagonal(main, side, select="i", select_range=(0, 0))
    return max(float(values[0]), 1e-12)


def _shorten(direction: FloatArray) -> FloatArray:
    """Nearest direction that four bytes an entry hold."""
    return direction.astype(np.float32).astype(np.float64)


def _dot(a: FloatArray, b: FloatArray) -> float:
    return float((a * b).sum())
