"""Descent on Phi: L-BFGS in whitened inputs, or the paper's alternating steps; with a history.

Hamm, JMLR 2017, Algorithm 1, and what replaces it by default.
"""

from dataclasses import dataclass

import numpy as np
import scipy.optimize as so

from privpipe.errors import ConvergenceError
from privpipe.numerics.minimax.filters import InputScaling
from privpipe.numerics.minimax.objective import Evaluation, MinimaxObjective
from privpipe.protocols import FloatArray

HISTORY_TAIL = ("gradient_norm", "inner_gap", "rounds", "bytes", "largest_round_bytes")
"""Last columns of a history."""


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended, how it went, and why it stopped.

    Parameters
    ----------
    parameters : (n_parameters,)
    history : (n_iterations + 1, n_columns)
        Columns: iteration, phi, one loss per task, held-out Phi where records are held out, then
        `HISTORY_TAIL`. The first row is the starting point.
    stopped
        "gradient", "progress", "iterations", "held_out", "line_search", or "inner": an inner
        problem was not solved, and the iterates before it count.
    heads
        Solved heads at the end, None where fixed.
    """

    parameters: FloatArray
    history: FloatArray
    stopped: str
    heads: tuple[FloatArray | None, ...]


def descend_quasi_newton(
    objective: MinimaxObjective,
    start: FloatArray,
    max_iterations: int,
    *,
    scaling: InputScaling,
    tolerance: float,
    early_stopping: int = 0,
) -> Descent:
    """L-BFGS on Phi in whitened inputs; every accepted iterate lowers Phi.

    The line search looks at Phi itself, with the inner problems solved anew at every trial:
    with the heads held fixed, Phi's difference of minima is not even bounded.

    Parameters
    ----------
    start : (n_parameters,)
        In the filter's own coordinates.
    tolerance
        Stop when an iteration lowers Phi by less than this share of ``max(1, |Phi|)``.
    early_stopping
        With held-out records: stop after so many iterations without a better held-out Phi, and
        return the best of them. 0 looks at the training Phi alone.
    """
    # L-BFGS in whitened inputs needs a tenth of the rounds of plain gradient steps, Adam, or
    # L-BFGS on features as they are.
    recorder = _Recorder(objective, scaling, early_stopping)
    x0 = scaling.invert(start)
    recorder.accept(x0)
    if max_iterations == 0:
        return recorder.finish("iterations")
    try:
        result = so.minimize(
            recorder.value_and_gradient,
            x0,
            jac=True,
            method="L-BFGS-B",
            callback=recorder.callback,
            options={
                "maxiter": max_iterations,
                # Memory is the driver's and cheap, rounds are not.
                "maxcor": 20,
                "ftol": tolerance,
                "gtol": 1e-7,
                # An iteration takes one or two evaluations; the limit ends a line search that
                # never would.
                "maxfun": 20 * max_iterations,
            },
        )
    except _HeldOutRoseError:
        return recorder.finish("held_out")
    # A fit is not lost to one filter that a line search looked at: iterates before it count.
    except ConvergenceError:
        return recorder.finish("inner")
    return recorder.finish(_explain(result))


def descend_alternating(
    objective: MinimaxObjective, start: FloatArray, max_iterations: int, *, rate: float
) -> Descent:
    """The paper's Algorithm 1 verbatim: solve the heads, one step down the gradient, repeat.

    No line search: a rate that is too large makes Phi rise, and the history shows it.

    References
    ----------
    Hamm, JMLR 2017, Algorithm 1, equations (74)-(76).
    """
    # The paper steps in the filter's own coordinates.
    recorder = _Recorder(objective, InputScaling(), 0)
    u, found = start, recorder.accept(start)
    try:
        for _ in range(max_iterations):
            u = u - rate * found.gradient
            found = recorder.accept(u)
    except ConvergenceError:
        return recorder.finish("inner", keep_last=True)
    return recorder.finish("iterations", keep_last=True)


class _HeldOutRoseError(Exception):
    """Leaves scipy's minimiser when held-out Phi has stopped falling."""


class _Recorder:
    """Evaluates, remembers the last point evaluated, and keeps the history of accepted ones."""

    def __init__(
        self, objective: MinimaxObjective, scaling: InputScaling, early_stopping: int
    ) -> None:
        self.objective, self.scaling, self.early_stopping = objective, scaling, early_stopping
        self._seen: dict[bytes, Evaluation] = {}
        self._accepted: list[tuple[FloatArray, Evaluation]] = []
        self._rows: list[list[float]] = []

    def evaluate(self, x: FloatArray) -> Evaluation:
        # SciPy's callback and its next line search come back to points that were evaluated: each
        # would cost rounds over all records.
        key = x.tobytes()
        if key not in self._seen:
            if len(self._seen) > 40:
                self._seen.clear()
            self._seen[key] = self.objective(self.scaling.to_filter(x))
        return self._seen[key]

    def value_and_gradient(self, x: FloatArray) -> tuple[float, FloatArray]:
        found = self.evaluate(x)
        return found.value, self.scaling.to_optimiser(found.gradient)

    def callback(self, intermediate_result: so.OptimizeResult) -> None:
        self.accept(np.array(intermediate_result.x))
        judged = self._judge()
        if self.early_stopping and len(judged) - 1 - int(np.argmin(judged)) >= self.early_stopping:
            raise _HeldOutRoseError

    def accept(self, x: FloatArray) -> Evaluation:
        found, o = self.evaluate(x), self.objective
        norm = float(np.abs(self.scaling.to_optimiser(found.gradient)).max(initial=0.0))
        self._accepted.append((x, found))
        self._rows.append(
            [
                *(float(len(self._rows)), found.value, *found.losses.tolist()),
                *([] if np.isnan(found.held_out) else [found.held_out]),
                *(norm, found.gap, o.n_rounds, o.n_bytes, o.largest_round),
            ]
        )
        return found

    def _judge(self) -> list[float]:
        """By what an iterate is returned; the line search lowers the training Phi in any case."""
        return [f.held_out if self.early_stopping else f.value for _, f in self._accepted]

    def finish(self, stopped: str, *, keep_last: bool = False) -> Descent:
        # The paper's algorithm returns its last iterate, wherever Phi went.
        x, found = self._accepted[-1 if keep_last else int(np.argmin(self._judge()))]
        return Descent(self.scaling.to_filter(x), np.array(self._rows), stopped, found.heads)


def _explain(result: so.OptimizeResult) -> str:
    """Name scipy's reason: its status 1 is a limit, 2 a failed line search, 0 a tolerance."""
    if result.status == 1:
        return "iterations"
    if result.status == 2:
        return "line_search"
    return "gradient" if "PGTOL" in str(result.message).upper() else "progress"
