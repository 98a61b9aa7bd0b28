"""Descent on Phi: L-BFGS in whitened inputs, or the paper's alternating steps; with a history.

Hamm, JMLR 2017, Algorithm 1, and what replaces it by default.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from privpipe.errors import ConvergenceError
from privpipe.numerics.minimax.filters import InputScaling
from privpipe.numerics.minimax.newton import Pairs, divide_by_curvature
from privpipe.numerics.minimax.objective import Evaluation, MinimaxObjective
from privpipe.protocols import FloatArray

HISTORY_TAIL = ("gradient_norm", "inner_gap", "rounds", "bytes", "largest_round_bytes")
"""Last columns of a history."""
MEMORY = 20
"""Pairs that show Phi's curvature: memory is the driver's and cheap, rounds are not."""
LEAST_SLOPE = 1e-7
"""In whitened inputs, below which there is nothing to gain."""
MOST_TRIALS = 20
"""Of a line search: one or two are usual."""
LEAST_GAIN = 1e-4
"""Share of what the slope promises that a step has to gain."""
FLATTER, NEARLY = 0.6, 0.9
"""Share of the slope that a step may leave. The second is for where Phi is another one soon, and
rounds that would flatten more are not repaid."""


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
    pairs: Pairs | None = None,
) -> Descent:
    """L-BFGS on Phi in whitened inputs; every accepted iterate lowers Phi.

    The line search looks at Phi itself, with the inner problems solved anew at every trial. With
    the heads held fixed, Phi's difference of minima is not even bounded.

    Parameters
    ----------
    start : (n_parameters,)
        In the filter's own coordinates.
    tolerance
        Stop when an iteration lowers Phi by less than this share of ``max(1, |Phi|)``.
    early_stopping
        With held-out records: stop after so many iterations without a better held-out Phi, and
        return the best of them. 0 looks at the training Phi alone.
    pairs
        What an earlier descent knows of the curvature, in whitened inputs; those of this one are
        added to it.
    """
    # L-BFGS in whitened inputs needs a tenth of the rounds of plain gradient steps, Adam, or
    # L-BFGS on features as they are.
    recorder = _Recorder(objective, scaling, early_stopping, FLATTER if pairs is None else NEARLY)
    x, known = scaling.invert(start), deque(maxlen=MEMORY) if pairs is None else pairs
    recorder.accept(x)
    return recorder.finish(recorder.lower(x, max_iterations, tolerance, known))


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
    recorder = _Recorder(objective, InputScaling())
    u, found = start, recorder.accept(start)
    try:
        for _ in range(max_iterations):
            u = u - rate * found.gradient
            found = recorder.accept(u)
    except ConvergenceError:
        return recorder.finish("inner", keep_last=True)
    return recorder.finish("iterations", keep_last=True)


class _Recorder:
    """Evaluates, remembers the last point evaluated, and keeps the history of accepted ones."""

    def __init__(
        self,
        objective: MinimaxObjective,
        scaling: InputScaling,
        early_stopping: int = 0,
        flatter: float = FLATTER,
    ) -> None:
        self.objective, self.scaling, self.early_stopping = objective, scaling, early_stopping
        self.flatter = flatter
        self._seen: dict[bytes, Evaluation] = {}
        self._accepted: list[tuple[FloatArray, Evaluation]] = []
        self._rows: list[list[float]] = []

    def evaluate(self, x: FloatArray) -> Evaluation:
        # Line searches come back to points that were evaluated: each would cost rounds over all
        # records.
        key = x.tobytes()
        if key not in self._seen:
            if len(self._seen) > 40:
                self._seen.clear()
            self._seen[key] = self.objective(self.scaling.to_filter(x), certified=False)
        return self._seen[key]

    def measure(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Phi and its gradient by the optimiser's parameters."""
        found = self.evaluate(x)
        return found.value, self.scaling.to_optimiser(found.gradient)

    def lower(self, x: FloatArray, most: int, tolerance: float, pairs: Pairs) -> str:
        """Accept iterate after iterate; why no further one came."""
        value, slope = self.measure(x)
        for number in range(most):
            if np.abs(slope).max(initial=0.0) <= LEAST_SLOPE:
                return "gradient"
            direction = -divide_by_curvature(slope, pairs)
            if number == 0:
                # What is known of another objective's curvature is nearly right: half a step is
                # near enough. Where nothing is known it has length one, in whitened inputs.
                longest = np.linalg.norm(pairs[-1][0]) / 2 if pairs else 1.0
                change = float(longest / np.linalg.norm(direction))
                direction *= min(1.0, change) if pairs else change
            try:
                step = self._search(x, direction)
            except ConvergenceError:
                # A fit is not lost to one filter that a line search looked at: those before count.
                return "inner"
            if step is None:
                return "line_search"
            x, before, last = x + step * direction, value, slope
            self.accept(x)
            value, slope = self.measure(x)
            # Not of a search that ended where the slope was steeper still.
            if (slope - last) @ direction > 0:
                pairs.append((step * direction, slope - last))
            if self.has_risen():
                return "held_out"
            if before - value <= tolerance * max(1.0, abs(before), abs(value)):
                return "progress"
        return "iterations"

    def _search(self, x: FloatArray, direction: FloatArray) -> float | None:
        """Step along a direction that lowers Phi and flattens its slope enough, or None.

        References
        ----------
        Lewis and Overton 2013, Nonsmooth optimization via quasi-Newton methods, Algorithm 2.6.
        """
        # Phi bends sharply where a head may grow: a search that also bounds the slope from above
        # found no step where every one that it tried lowered Phi, and ended at the start.
        value, slope = self.measure(x)
        steepness, low, high, step = float(slope @ direction), 0.0, np.inf, 1.0
        for _ in range(MOST_TRIALS):
            phi, there = self.measure(x + step * direction)
            if not phi <= value + LEAST_GAIN * step * steepness:
                high = step
            elif there @ direction < self.flatter * steepness:
                low = step
            else:
                return step
            step = 2 * low if high == np.inf else (low + high) / 2
        return low or None

    def has_risen(self) -> bool:
        """Whether held-out Phi has not fallen for as many iterates as are waited for."""
        judged = self._judge()
        return 0 < self.early_stopping <= len(judged) - 1 - int(np.argmin(judged))

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
        if (o := self.objective).certifies_end:
            # Before, decrements decide: to certify every iterate costs a round of each.
            with suppress(ConvergenceError):  # what was evaluated counts
                found = self.objective(self.scaling.to_filter(x))
            self._rows[-1][-4:] = found.gap, o.n_rounds, o.n_bytes, o.largest_round
        return Descent(self.scaling.to_filter(x), np.array(self._rows), stopped, found.heads)
