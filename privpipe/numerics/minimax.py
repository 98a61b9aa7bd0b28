"""The min-diff-max objective Phi of a filter, its gradient by Danskin's theorem, and descent.

``Phi(u) = sum_t a_t min_W f_t(u, W) - sum_s b_s min_V f_s(u, V) + r/2 |u|^2`` (Hamm, JMLR 2017,
equations 10-11). Each evaluation solves the convex inner problems in rounds over the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize as so

from privpipe.errors import ConvergenceError
from privpipe.numerics.families import InputScaling
from privpipe.numerics.newton import HeadSolver
from privpipe.protocols import FloatArray

__all__ = [
    "Answer",
    "Descent",
    "Evaluation",
    "MinimaxObjective",
    "Question",
    "descend_alternating",
    "descend_quasi_newton",
]

MAX_ROUNDS = 200
MAX_CHORDS = 3
QUADRATIC = 0.01
"""Gap in nats below which one more Newton step is expected to settle a head."""


class Question(NamedTuple):
    """What goes down in a round: filter, heads (None where fixed), and what is wanted back.

    `want` is "curvature", "value" or "gradient"; slopes by the heads always come back.
    """

    parameters: FloatArray
    heads: tuple[FloatArray | None, ...]
    want: str


class Answer(NamedTuple):
    """What comes up, summed over records; one entry per task."""

    losses: FloatArray
    """(n_tasks, 2): over the records fitted to, and over those held out."""
    slopes: tuple[FloatArray, ...]
    curvatures: tuple[FloatArray, ...]
    gradient: FloatArray


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Phi at one filter.

    Parameters
    ----------
    value
        In nats (least squares tasks: shares of the target's variance).
    gradient : (n_parameters,)
    losses : (n_tasks,)
        Inner minima, ridge included.
    held_out
        Phi of the same heads on the records held out; NaN without any.
    gap
        Largest loss of optimality of an inner problem, by its Newton decrement.
    heads
        Solved heads, None where fixed.
    """

    value: float
    gradient: FloatArray
    losses: FloatArray
    held_out: float
    gap: float
    heads: tuple[FloatArray | None, ...]


@dataclass(eq=False)
class MinimaxObjective:
    """Phi as a function of the filter's parameters; counts rounds and bytes.

    Parameters
    ----------
    ask
        Sends a question to the records and returns the sums.
    solvers
        One per task; None where the head is fixed (the reduced form).
    weights : (n_tasks,)
        Signed: positive for what is to stay, negative for what is to go.
    n_records, n_held_out
        How many records are fitted to and held out.
    ridge
        Of the filter's first `n_penalised` parameters.
    inner_tolerance
        Largest gap of an inner problem, in nats.
    """

    ask: Callable[[Question], Answer]
    solvers: Sequence[HeadSolver | None]
    weights: FloatArray
    n_records: int
    n_held_out: int = 0
    ridge: float = 0.0
    n_penalised: int = 0
    inner_tolerance: float = 1e-6
    n_rounds: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    largest_round: int = field(default=0, init=False)

    def __call__(self, parameters: FloatArray) -> Evaluation:
        """Evaluate Phi and its gradient, with all heads solved to the inner tolerance.

        Raises
        ------
        ConvergenceError
            If an inner problem is not solved in `MAX_ROUNDS` rounds.
        """
        active = [solver for solver in self.solvers if solver is not None]
        for solver in active:
            solver.restart()
        want, chords = ("curvature" if active else "gradient"), 0
        for _ in range(MAX_ROUNDS):
            answer = self._round(parameters, want)
            done = all(s.accepted and (s.gap <= self.inner_tolerance or s.stalled) for s in active)
            if done and want == "gradient":
                return self._compose(parameters, answer)
            if want == "curvature" or not done:
                for solver in active:
                    solver.propose()
            chords = 0 if want == "curvature" else chords + 1
            want = self._choose(active, done, chords)
        raise ConvergenceError(
            f"An inner problem is not solved after {MAX_ROUNDS} rounds "
            f"(gap {max(s.gap for s in active):.1e} nats, wanted {self.inner_tolerance:.1e}).",
            remedy="Raise regularisation or inner_tolerance.",
        )

    def _choose(self, active: Sequence[HeadSolver], done: bool, chords: int) -> str:
        """Curvature while steps are long, the filter's gradient once the heads should be right."""
        if done:
            return "gradient"
        newton = [s for s in active if not s.quasi and not s.stalled]
        slow = any(s.is_slow for s in newton) or chords > MAX_CHORDS
        if newton and (slow or max(s.gap for s in newton) > QUADRATIC):
            return "curvature"
        quasi = [s.gap for s in active if s.quasi and not s.stalled]
        return "value" if max(quasi, default=0.0) > 30 * self.inner_tolerance else "gradient"

    def _round(self, parameters: FloatArray, want: str) -> Answer:
        heads = tuple(None if s is None else s.trial for s in self.solvers)
        answer = self.ask(Question(parameters, heads, want))
        for t, solver in enumerate(self.solvers):
            if solver is not None:
                solver.receive(
                    float(answer.losses[t, 0]) / self.n_records,
                    answer.slopes[t] / self.n_records,
                    answer.curvatures[t] / self.n_records if want == "curvature" else None,
                )
        self._count((parameters, *heads), answer)
        return answer

    def _compose(self, parameters: FloatArray, answer: Answer) -> Evaluation:
        losses = answer.losses[:, 0] / self.n_records
        gap = 0.0
        for t, solver in enumerate(self.solvers):
            if solver is not None:
                losses[t] += solver.penalty(solver.head)
                gap = max(gap, solver.gap)
        gradient = answer.gradient / self.n_records
        held = np.nan
        if self.n_held_out:
            held = float(self.weights @ answer.losses[:, 1]) / self.n_held_out
        head = parameters[: self.n_penalised]
        gradient[: self.n_penalised] += self.ridge * head
        value = float(self.weights @ losses + 0.5 * self.ridge * (head @ head))
        heads = tuple(None if s is None else s.head for s in self.solvers)
        return Evaluation(value, gradient, losses, held, gap, heads)

    def _count(self, question: Sequence[Any], answer: Answer) -> None:
        parts = [*question, answer.losses, *answer.slopes, *answer.curvatures, answer.gradient]
        size = sum(part.nbytes for part in parts if part is not None)
        self.n_rounds += 1
        self.n_bytes += size
        self.largest_round = max(self.largest_round, size)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended, how it went, and why it stopped.

    Parameters
    ----------
    parameters : (n_parameters,)
    history : (n_iterations + 1, n_columns)
        Columns: iteration, phi, one loss per task, held_out_phi, gradient_norm, inner_gap,
        rounds, bytes, largest_round_bytes. The first row is the starting point.
    stopped
        "gradient", "progress", "iterations", "held_out" or "line_search".
    heads
        Solved heads at the end, None where fixed.
    """

    parameters: FloatArray
    history: FloatArray
    stopped: str
    heads: tuple[FloatArray | None, ...]


def descend_quasi_newton(
    objective: MinimaxObjective,
    scaling: InputScaling,
    start: FloatArray,
    *,
    max_iterations: int,
    tolerance: float,
    patience: int = 0,
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
    patience
        With held-out records: stop after so many iterations without a better held-out Phi, and
        return the best of them. 0 looks at the training Phi alone.
    """
    recorder = _Recorder(objective, scaling, patience)
    x0 = scaling.invert(start)
    recorder.accept(x0, recorder.evaluate(x0))
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
                "maxcor": 20,
                "ftol": tolerance,
                "gtol": 1e-7,
                "maxfun": 20 * max_iterations,
            },
        )
    except _HeldOutRoseError:
        return recorder.finish("held_out")
    return recorder.finish(_explain(result))


def descend_alternating(
    objective: MinimaxObjective, start: FloatArray, learning_rates: Sequence[float]
) -> Descent:
    """The paper's Algorithm 1 as printed: solve the heads, one step down the gradient, repeat.

    No line search: a rate that is too large makes Phi rise, and the history shows it.

    References
    ----------
    Hamm, JMLR 2017, Algorithm 1, equations (74)-(76).
    """
    recorder = _Recorder(objective, InputScaling(np.empty((0, 0)), 0), 0)
    u = start
    recorder.accept(u, recorder.evaluate(u))
    for rate in learning_rates:
        u = u - rate * recorder.latest.gradient
        recorder.accept(u, recorder.evaluate(u))
    return recorder.finish("iterations", keep_last=True)


class _HeldOutRoseError(Exception):
    """Leaves scipy's minimiser when held-out Phi has stopped falling."""


class _Recorder:
    """Evaluates, remembers the last point evaluated, and keeps the history of accepted ones."""

    def __init__(self, objective: MinimaxObjective, scaling: InputScaling, patience: int) -> None:
        self.objective, self.scaling, self.patience = objective, scaling, patience
        self.rows: list[list[float]] = []
        self.latest: Evaluation
        self._seen: dict[bytes, Evaluation] = {}
        self._accepted: list[tuple[float, FloatArray, Evaluation]] = []

    def evaluate(self, x: FloatArray) -> Evaluation:
        key = x.tobytes()
        if key not in self._seen:
            if len(self._seen) > 40:
                self._seen.clear()
            found = self.objective(self.scaling.to_filter(x))
            self._seen[key] = found
        return self._seen[key]

    def value_and_gradient(self, x: FloatArray) -> tuple[float, FloatArray]:
        found = self.evaluate(x)
        return found.value, self.scaling.to_optimiser(found.gradient)

    def callback(self, intermediate_result: so.OptimizeResult) -> None:
        x = np.array(intermediate_result.x)
        self.accept(x, self.evaluate(x))
        if self.patience and self._since_best() >= self.patience:
            raise _HeldOutRoseError

    def accept(self, x: FloatArray, found: Evaluation) -> None:
        o = self.objective
        norm = float(np.abs(self.scaling.to_optimiser(found.gradient)).max(initial=0.0))
        self.latest = found
        judged = found.held_out if self.patience else found.value
        self._accepted.append((judged, x, found))
        self.rows.append(
            [
                *(float(len(self.rows)), found.value, *found.losses.tolist(), found.held_out),
                *(norm, found.gap, o.n_rounds, o.n_bytes, o.largest_round),
            ]
        )

    def _since_best(self) -> int:
        values = [judged for judged, _, _ in self._accepted]
        return len(values) - 1 - int(np.argmin(values))

    def finish(self, stopped: str, *, keep_last: bool = False) -> Descent:
        judged = [value for value, _, _ in self._accepted]
        best = len(judged) - 1 if keep_last else int(np.argmin(judged))
        _, x, found = self._accepted[best]
        return Descent(self.scaling.to_filter(x), np.array(self.rows), stopped, found.heads)


def _explain(result: so.OptimizeResult) -> str:
    """Name scipy's reason: its status 1 is a limit, 2 a failed line search, 0 a tolerance."""
    if result.status == 1:
        return "iterations"
    if result.status == 2:
        return "line_search"
    return "gradient" if "PGTOL" in str(result.message).upper() else "progress"
