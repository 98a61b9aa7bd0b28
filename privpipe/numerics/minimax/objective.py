"""The min-diff-max objective Phi of a filter, and its gradient by Danskin's theorem.

``Phi(u) = sum_t a_t min_W f_t(u, W) - sum_s b_s min_V f_s(u, V) + r/2 |u|^2`` (Hamm, JMLR 2017,
equations 10-11). Each evaluation solves the convex inner problems in rounds over the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from privpipe.errors import ConvergenceError, InputError
from privpipe.numerics.minimax.newton import Curvature, HeadSolver
from privpipe.protocols import FloatArray

__all__ = [
    "Answer",
    "Evaluation",
    "MinimaxObjective",
    "Question",
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

    counts: FloatArray
    """Records fitted to, and held out."""
    losses: FloatArray
    """(n_tasks, 2): over the records fitted to, and over those held out."""
    slopes: tuple[FloatArray, ...]
    curvatures: tuple[Curvature, ...]
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
    ridge
        Of the filter's first `n_penalised` parameters.
    inner_tolerance
        Largest gap of an inner problem, in nats.
    """

    ask: Callable[[Question], Answer]
    solvers: Sequence[HeadSolver | None]
    weights: FloatArray
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
        n = float(answer.counts[0])
        if n == 0:
            raise InputError(
                "No training record is left to fit to.",
                remedy="Train on more records, or hold out fewer.",
                code="too_few_records",
            )
        for t, solver in enumerate(self.solvers):
            if solver is not None:
                solver.receive(
                    float(answer.losses[t, 0]) / n,
                    answer.slopes[t] / n,
                    _divide(answer.curvatures[t], n) if want == "curvature" else None,
                )
        self._count((parameters, *heads), answer)
        return answer

    def _compose(self, parameters: FloatArray, answer: Answer) -> Evaluation:
        n, n_held_out = answer.counts.tolist()
        losses = answer.losses[:, 0] / n
        gap = 0.0
        for t, solver in enumerate(self.solvers):
            if solver is not None:
                losses[t] += solver.penalty(solver.head)
                gap = max(gap, solver.gap)
        gradient = answer.gradient / n
        held = float(self.weights @ answer.losses[:, 1]) / n_held_out if n_held_out else np.nan
        head = parameters[: self.n_penalised]
        gradient[: self.n_penalised] += self.ridge * head
        value = float(self.weights @ losses + 0.5 * self.ridge * (head @ head))
        heads = tuple(None if s is None else s.head for s in self.solvers)
        return Evaluation(value, gradient, losses, held, gap, heads)

    def _count(self, question: Sequence[Any], answer: Answer) -> None:
        bent = [part for pair in answer.curvatures for part in pair]
        up = [answer.counts, answer.losses, *answer.slopes, *bent, answer.gradient]
        parts = [*question, *up]
        size = sum(part.nbytes for part in parts if part is not None)
        self.n_rounds += 1
        self.n_bytes += size
        self.largest_round = max(self.largest_round, size)


def _divide(curvature: Curvature, n: float) -> Curvature:
    hessian, block = curvature
    return hessian / n, block / n
