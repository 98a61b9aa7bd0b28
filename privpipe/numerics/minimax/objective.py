"""The min-diff-max objective Phi of a filter, and its gradient by Danskin's theorem.

``Phi(u) = sum_t a_t min_W f_t(u, W) - sum_s b_s min_V f_s(u, V) + r/2 |u|^2`` (Hamm, JMLR 2017,
equations 10-11). Each evaluation solves the convex inner problems in rounds over the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from privpipe.errors import ConvergenceError, InputError
from privpipe.numerics.minimax.newton import Curvature, HeadSolver, InexactSolver
from privpipe.protocols import FloatArray

MAX_ROUNDS = 200
LATE_ROUND = 100
"""From here on no head that is near enough is moved any more."""
# Steps with an old Hessian are cheap rounds, but converge linearly: after three a new one pays.
MAX_CHORDS = 3
QUADRATIC = 0.01
"""Gap in nats below which one more Newton step is expected to settle a head."""
ROUND_BYTES = 64_000
"""Bytes of a round, down and up, beyond which tasks are asked in rounds of their own."""
PRECISE = 1e-6
"""Share of the tolerance at which a head is left alone."""
Want = Literal["curvature", "block", "value", "gradient", "product"]
"""What a round asks of its heads; see `Question`."""
BENDS: tuple[Want, ...] = ("curvature", "block")
FREE: tuple[Want, ...] = (*BENDS, "product")
"""After these a Newton step costs nothing more."""


class Question(NamedTuple):
    """What goes down in a round: filter, heads (None where fixed or not asked), what is wanted.

    `want` is "curvature" (of heads with Newton steps), "block" (of the others), "value",
    "gradient" or "product" (of Hessians at the heads with `directions`, and nothing else: both
    in single precision, for a Hessian near by serves as well); otherwise slopes by the heads that
    are asked always come back.
    """

    parameters: FloatArray
    heads: tuple[FloatArray | None, ...]
    want: Want
    weights: FloatArray
    """(n_tasks,): of the losses in the gradient by the filter; zero where not asked."""
    directions: tuple[FloatArray | None, ...] = ()
    """One per task where products are wanted."""


class Answer(NamedTuple):
    """What comes up, summed over records; one entry per task."""

    counts: FloatArray
    """Records fitted to, and held out."""
    losses: FloatArray
    """(n_tasks, 2): over the records fitted to, and over those held out."""
    slopes: tuple[FloatArray, ...]
    """Or products."""
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
        Largest loss of optimality of an inner problem: its Newton decrement, or the certified
        bound where a head has one.
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
    beside : (n_tasks,)
        Bytes that go down with a task beside its head.
    """

    ask: Callable[[Question], Answer]
    solvers: Sequence[HeadSolver | None]
    weights: FloatArray
    ridge: float = 0.0
    n_penalised: int = 0
    inner_tolerance: float = 1e-6
    beside: Sequence[int] = ()
    n_rounds: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    largest_round: int = field(default=0, init=False)

    def __call__(self, parameters: FloatArray) -> Evaluation:
        """Evaluate Phi and its gradient, with all heads solved to the inner tolerance.

        Raises
        ------
        ConvergenceError
            If an inner problem is not solved in `MAX_ROUNDS` rounds, those of products not counted.
        """
        free = [t for t, solver in enumerate(self.solvers) if solver is not None]
        for t in free:
            self._solver(t).restart()
        chords, steps = 0, 0
        while steps < MAX_ROUNDS:
            if is_late := steps >= LATE_ROUND:
                self._withdraw(free)
            want, asked = self._choose(free, chords)
            answer = self._ask(parameters, want, asked, np.array(self.weights, np.float64))
            steps += want != "product"
            done = all(self._is_settled(t) for t in free)
            # Danskin's theorem needs the gradient at the heads' best: one that was asked for beside
            # a step that then moved them is thrown away.
            if done and want == "gradient":
                return self._compose(parameters, answer)
            for t in asked:
                solver = self._solver(t)
                if self._gains_by_a_step(solver, free=want in FREE and not is_late):
                    solver.propose()
            chords = 0 if want in BENDS else chords + 1
        worst = max(self._solver(t).gap for t in free)
        raise ConvergenceError(
            f"An inner problem is not solved after {MAX_ROUNDS} rounds "
            f"(gap {worst:.1e} nats, wanted {self.inner_tolerance:.1e}).",
            remedy="Raise regularisation or inner_tolerance.",
        )

    def _withdraw(self, free: Sequence[int]) -> None:
        """Take back steps of heads that are near enough: refused anew each time, they never end."""
        for t in free:
            if self._solver(t).gap <= self.inner_tolerance:
                self._solver(t).withdraw()

    def _solver(self, t: int) -> HeadSolver:
        solver = self.solvers[t]
        assert solver is not None, "only asked of free heads"
        return solver

    def _inexact(self, t: int) -> InexactSolver:
        solver = self.solvers[t]
        assert isinstance(solver, InexactSolver), "only these ask for products"
        return solver

    def _is_settled(self, t: int) -> bool:
        solver = self._solver(t)
        return solver.accepted and (solver.gap <= self.inner_tolerance or solver.stalled)

    def _gains_by_a_step(self, solver: HeadSolver, *, free: bool) -> bool:
        """Whether to step on: one Newton step more is free, but below rounding it tells nothing."""
        return bool(solver.gap > self.inner_tolerance * (PRECISE if free else 1.0))

    def _choose(self, free: Sequence[int], chords: int) -> tuple[Want, list[int]]:
        """Curvature while steps are long, the filter's gradient once the heads should be right."""
        open_ = [t for t in free if not self._is_settled(t)]
        live = [t for t in open_ if not self._solver(t).stalled]
        inexact = [t for t in live if isinstance(self._solver(t), InexactSolver)]
        newton = [t for t in live if t not in inexact]
        # Dearest first: while a Hessian is worth its bytes, rounds for cheaper ones only wait.
        if newton:
            far = [t for t in newton if self._solver(t).gap > self.inner_tolerance]
            slow = any(self._solver(t).is_slow for t in far) or chords > MAX_CHORDS
            if slow or max(self._solver(t).decrement for t in newton) > QUADRATIC:
                return "curvature", newton
        if bare := [t for t in inexact if self._inexact(t).lacks_block]:
            return "block", bare
        if waiting := [t for t in inexact if self._inexact(t).wants_product]:
            return "product", waiting
        if max((self._solver(t).decrement for t in inexact), default=0.0) > QUADRATIC:
            return "value", open_
        return "gradient", list(free)

    def _ask(
        self, parameters: FloatArray, want: Want, asked: Sequence[int], weights: FloatArray
    ) -> Answer:
        """All that is asked, in as many rounds as their size demands."""
        fixed = [t for t, solver in enumerate(self.solvers) if solver is None]
        batches = self._batch(parameters, want, asked)
        parts = []
        for number, batch in enumerate(batches):
            # Losses of fixed heads add up over batches: they are asked for once.
            whole = [*fixed, *batch] if want == "gradient" and number == 0 else batch
            parts.append(self._round(parameters, want, whole, weights))
        first = parts[0]
        return first._replace(
            losses=np.sum([part.losses for part in parts], axis=0),
            gradient=np.sum([part.gradient for part in parts], axis=0),
        )

    def _batch(self, parameters: FloatArray, want: Want, asked: Sequence[int]) -> list[list[int]]:
        base = parameters.nbytes * (2 if want == "gradient" else 1)
        batches: list[list[int]] = [[]]
        size = base
        for t in asked:
            own = self._measure(t, want)
            if batches[-1] and size + own > ROUND_BYTES:
                batches.append([])
                size = base
            batches[-1].append(t)
            size += own
        return batches

    def _measure(self, t: int, want: Want) -> int:
        """Bytes of a task in a round."""
        head, solver = self._solver(t).trial, self._solver(t)
        size = 2 * head.nbytes + (self.beside[t] if self.beside else 0)
        if want in BENDS:
            size += 4 * len(head) * (len(head) + 1)
            size += 0 if isinstance(solver, InexactSolver) else 4 * head.size * (head.size + 1)
        return size

    def _round(
        self, parameters: FloatArray, want: Want, asked: Sequence[int], weights: FloatArray
    ) -> Answer:
        heads = tuple(
            solver.trial if solver is not None and t in asked else None
            for t, solver in enumerate(self.solvers)
        )
        mine = np.where(np.isin(np.arange(len(weights)), asked), weights, 0.0)
        directions: tuple[FloatArray | None, ...] = ()
        if want == "product":
            directions = tuple(
                None if head is None else self._inexact(t).probe.astype(np.float32)
                for t, head in enumerate(heads)
            )
            heads = tuple(None if head is None else head.astype(np.float32) for head in heads)
        answer = self.ask(Question(parameters, heads, want, mine, directions))
        n = float(answer.counts[0])
        if n == 0:
            raise InputError(
                "No training record is left to fit to.",
                remedy="Train on more records, or hold out fewer.",
                code="too_few_records",
            )
        for t in asked:
            solver = self.solvers[t]
            if want == "product":
                self._inexact(t).take_product(answer.slopes[t] / n)
            elif solver is not None:
                solver.receive(
                    float(answer.losses[t, 0]) / n,
                    answer.slopes[t] / n,
                    _divide(answer.curvatures[t], n) if want in BENDS else None,
                )
        self._count(parameters, (*heads, *directions), answer, asked)
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
        value = float(self.weights @ losses) + float(0.5 * self.ridge * (head @ head))
        heads = tuple(None if s is None else s.head for s in self.solvers)
        return Evaluation(value, gradient, losses, held, gap, heads)

    def _count(
        self,
        parameters: FloatArray,
        heads: Sequence[FloatArray | None],
        answer: Answer,
        asked: Sequence[int],
    ) -> None:
        bent = [part for pair in answer.curvatures for part in pair]
        up = [answer.counts, answer.losses, *answer.slopes, *bent, answer.gradient]
        parts = [parameters, *heads, *up]
        size = sum(part.nbytes for part in parts if part is not None)
        size += sum(self.beside[t] for t in asked) if self.beside else 0
        self.n_rounds += 1
        self.n_bytes += size
        self.largest_round = max(self.largest_round, size)


def _divide(curvature: Curvature, n: float) -> Curvature:
    hessian, block = curvature
    return hessian / n, block / n
