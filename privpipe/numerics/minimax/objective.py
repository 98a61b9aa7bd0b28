"""The min-diff-max objective Phi of a filter, and its gradient by Danskin's theorem.

Equations 10-11 of Hamm, JMLR 2017, are

    Phi(u) = sum_t a_t min_W f_t(u, W) - sum_s b_s min_V f_s(u, V) + r/2 |u|^2.

Each evaluation solves the convex inner problems in rounds over the records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from privpipe.errors import ConvergenceError, InputError
from privpipe.numerics.minimax.newton import HeadSolver, InexactSolver
from privpipe.protocols import FloatArray, IntArray, Sums

# An evaluation usually takes two or three rounds; the worst that was seen and solved took 26
# (digits, separable).
MAX_ROUNDS = 200
QUADRATIC = 0.01
"""Gap in nats below which one more Newton step is expected to settle a head."""
# On a cluster a round costs 10 to 25 ms whatever it sums, and bytes cost a tenth of that: two of
# the largest Hessians fit in one.
ROUND_BYTES = 32_000_000
"""Bytes of a round, down and up, beyond which tasks are sent in rounds of their own."""
PRECISE = 1e-6
"""Share of the tolerance at which a head is left alone."""


class Want(StrEnum):
    """What a round sums of a head: besides its loss and slope, or, a product, in their place."""

    CURVATURE = "curvature"
    """Packed Hessian and its bound, of a head with Newton steps."""
    BLOCK = "block"
    """The bound alone, of a head whose Hessian is too large to send."""
    PRODUCT = "product"
    """A product of the Hessian with a direction."""
    SLOPE = "slope"
    """Nothing more."""

    @property
    def is_curved(self) -> bool:
        """Whether curvature comes up: a step from it is a Newton step."""
        return self in (Want.CURVATURE, Want.BLOCK)


class Question(NamedTuple):
    """What goes down in a round; one entry per task, None for heads that take no part."""

    parameters: FloatArray
    heads: tuple[FloatArray | None, ...]
    wants: tuple[Want | None, ...]
    gradient: bool
    """Whether the gradient by the filter is summed, too."""
    weights: FloatArray
    """(n_tasks,): of the losses in the gradient by the filter; zero for tasks without part."""
    directions: tuple[FloatArray | None, ...] = ()
    """Where products are needed."""


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
        Phi of the same heads on the records held out, ridges included; NaN without any.
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
    query
        Sends a question to the records and returns sums over these. They are ``counts`` (2,) of
        those fitted to and held out, ``losses`` (n_tasks, 2) over both, and the gradient by the
        filter. Then come slope (or product), packed Hessian and packed bound of each task.
    solvers
        One per task; None where the head is fixed (the reduced form).
    weights : (n_tasks,)
        Signed: positive for what is to stay, negative for what is to go.
    lift_bytes : (n_tasks,)
        Bytes that go down with a task's head.
    ridge
        Of the filter's first `n_penalised` parameters.
    inner_tolerance
        Largest gap of an inner problem, in nats.
    certifies_end
        Whether a descent ends with what heads certify.
    """

    query: Callable[[Question], Sums]
    solvers: list[HeadSolver | None]
    weights: FloatArray
    lift_bytes: Sequence[int]
    ridge: float = 0.0
    n_penalised: int = 0
    inner_tolerance: float = 1e-6
    certifies_end: bool = True
    n_rounds: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    largest_round: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._at: FloatArray = np.empty(0)
        self._last: Evaluation | None = None
        self._certified = True
        self._free = {t: solver for t, solver in enumerate(self.solvers) if solver is not None}

    def __call__(self, parameters: FloatArray, *, certified: bool = True) -> Evaluation:
        """Evaluate Phi and its gradient, with all heads solved to the inner tolerance.

        Parameters
        ----------
        parameters : (n_parameters,)
            Of the filter. Heads of the one that was evaluated last step on from where they are.
        certified
            Whether the bounds of heads that have one must be within the tolerance, not their
            decrements alone: about a round more.

        Raises
        ------
        ConvergenceError
            If an inner problem is not solved in `MAX_ROUNDS` rounds, those of products not counted.
        """
        self._certified = certified
        if self._last is not None and np.array_equal(parameters, self._at):
            unsettled = [s for s in self._free.values() if not self._is_settled(s)]
            if not unsettled:
                return self._last
            for solver in unsettled:
                solver.propose()
        else:
            # Values and curvature belong to the filter of the last call; heads are warm from it.
            self._at, self._last = parameters, None
            for solver in self._free.values():
                solver.restart()
        self._last = self._solve(parameters)
        return self._last

    def _solve(self, parameters: FloatArray) -> Evaluation:
        steps = 0
        while steps < MAX_ROUNDS:
            wants, with_gradient = self._choose()
            counts, losses, gradient = self._query_in_batches(parameters, wants, with_gradient)
            steps += set(wants.values()) != {Want.PRODUCT}
            # Danskin's theorem needs the gradient at the heads' best: one that came up beside
            # slopes whose step then moves the heads is thrown away.
            if with_gradient and all(map(self._is_settled, self._free.values())):
                return self._compose(parameters, counts, losses, gradient)
            # After a gradient a step costs a round: it is taken as far as the tolerance needs.
            # Where it costs none one more is taken, unless rounding is all that it would gain.
            least = self.inner_tolerance * (1.0 if with_gradient else PRECISE)
            for solver in map(self._free.__getitem__, wants):
                if not self._is_settled(solver) or solver.decrement > least:
                    solver.propose()
        worst = max(solver.gap for solver in self._free.values())
        raise ConvergenceError(
            f"An inner problem is not solved after {MAX_ROUNDS} rounds "
            f"(gap {worst:.1e} nats, allowed {self.inner_tolerance:.1e}).",
            remedy="Raise regularisation or inner_tolerance.",
        )

    def _is_near(self, solver: HeadSolver) -> bool:
        gap = solver.gap if self._certified and solver.certifies else solver.doubted_gap
        return gap <= self.inner_tolerance

    def _is_settled(self, solver: HeadSolver) -> bool:
        return solver.accepted and (self._is_near(solver) or solver.stalled)

    def _choose(self) -> tuple[dict[int, Want], bool]:
        """What to sum of which heads, and whether the filter's gradient comes with it.

        It does where this round may be the last: its bytes are few beside a round.
        """
        unsettled = {t: s for t, s in self._free.items() if not self._is_settled(s)}
        wants = {t: self._find_want(s) for t, s in unsettled.items() if not s.stalled}
        is_far = any(self._free[t].decrement > QUADRATIC for t in wants)
        if is_far or not {Want.BLOCK, Want.PRODUCT}.isdisjoint(wants.values()):
            return wants, False
        return dict.fromkeys(self._free, Want.SLOPE) | wants, True

    @staticmethod
    def _find_want(solver: HeadSolver) -> Want:
        if not isinstance(solver, InexactSolver):
            return Want.CURVATURE if solver.needs_curvature else Want.SLOPE
        if solver.lacks_block:
            return Want.BLOCK
        return Want.PRODUCT if solver.needs_product else Want.SLOPE

    def _query_in_batches(
        self, parameters: FloatArray, wants: dict[int, Want], with_gradient: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Counts, losses and gradient of these heads, in as many rounds as their size demands."""
        # The filter goes down in every round; its gradient is as large and comes up.
        base = parameters.nbytes * (2 if with_gradient else 1)
        batches: list[list[int]] = [[]]
        size = base
        for t, want in wants.items():
            added = self._count_bytes(t, want)
            if batches[-1] and size + added > ROUND_BYTES:
                batches.append([])
                size = base
            batches[-1].append(t)
            size += added
        # Losses of fixed heads add up over batches: they are summed in the first alone.
        if with_gradient:
            batches[0] += [t for t, solver in enumerate(self.solvers) if solver is None]
        found = [self._query_once(parameters, wants, batch, with_gradient) for batch in batches]
        counts, losses, gradients = zip(*found, strict=True)
        return counts[0], np.sum(losses, axis=0), np.sum(gradients, axis=0)

    def _count_bytes(self, t: int, want: Want) -> int:
        """Bytes of a task in a round."""
        n_inputs, q = self._free[t].trial.shape[0], self._free[t].trial.size
        # A product comes up for a head and a direction.
        size = (3 if want is Want.PRODUCT else 2) * 8 * q + self.lift_bytes[t]
        size += 4 * n_inputs * (n_inputs + 1) if want.is_curved else 0
        return size + (4 * q * (q + 1) if want is Want.CURVATURE else 0)

    def _query_once(
        self, parameters: FloatArray, wants: dict[int, Want], tasks: list[int], with_gradient: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """One round, whose sums every solver of `tasks` receives; counts, losses and gradient."""
        live = {t: self._free[t] for t in tasks if t in self._free}
        heads = {t: solver.trial for t, solver in live.items()}
        directions = {
            t: solver.probe
            for t, solver in live.items()
            if isinstance(solver, InexactSolver) and wants[t] is Want.PRODUCT
        }
        every = range(len(self.solvers))
        question = Question(
            parameters,
            tuple(map(heads.get, every)),
            tuple(wants.get(t) if t in live else None for t in every),
            with_gradient,
            np.array([self.weights[t] if t in tasks else 0.0 for t in every]),
            tuple(map(directions.get, every)) if directions else (),
        )
        counts, losses, gradient, *rest = sums = self.query(question)
        n = float(counts[0])
        if n == 0:
            problem = "No training record is left to fit to."
            remedy = "Train on more records, or hold out fewer."
            raise InputError(problem, remedy=remedy, code="too_few_records")
        for t, solver in live.items():
            slope, *curvature = (part / n for part in rest[3 * t : 3 * t + 3])
            if isinstance(solver, InexactSolver) and t in directions:
                solver.take_product(slope)
            else:
                loss = float(losses[t, 0]) / n
                solver.receive(loss, slope, tuple(curvature) if wants[t].is_curved else None)
        # Counted from what was sent, not from a formula: the history is evidence of the promise.
        sent = (parameters, *question.heads, *question.directions, *sums)
        size = sum(part.nbytes for part in sent if part is not None)
        size += sum(self.lift_bytes[t] for t in tasks)
        self.n_rounds += 1
        self.n_bytes += size
        self.largest_round = max(self.largest_round, size)
        return counts, losses, gradient

    def _compose(
        self, parameters: FloatArray, counts: FloatArray, sums: FloatArray, gradient: FloatArray
    ) -> Evaluation:
        n, n_held_out = counts.tolist()
        losses = sums[:, 0] / n
        excess = self.weights @ (sums[:, 1] / n_held_out - losses) if n_held_out else np.nan
        for t, solver in self._free.items():
            losses[t] += solver.penalty(solver.head)
        gradient, penalised = gradient / n, parameters[: self.n_penalised]
        # The ridge is the driver's: workers sum over records alone, so no sharding counts it
        # twice.
        gradient[: self.n_penalised] += self.ridge * penalised
        value = float(self.weights @ losses) + float(0.5 * self.ridge * (penalised @ penalised))
        gap = max((solver.gap for solver in self._free.values()), default=0.0)
        heads = tuple(None if solver is None else solver.head for solver in self.solvers)
        return Evaluation(value, gradient, losses, value + float(excess), gap, heads)


def bound_generalisation_gap(
    weights: FloatArray, norms: FloatArray, n_scores: IntArray, radius: float, n_records: int
) -> float:
    """Bound on the expectation of ``Phi(new records) - Phi(training records)``.

    Parameters
    ----------
    weights : (n_tasks,)
        Signed weights of the tasks in Phi.
    norms : (n_tasks,)
        Largest Frobenius norm of filter times head that analyst or adversary may use.
    n_scores : (n_tasks,)
        Scores of each softmax head in the zero-sum basis, one less than its classes.
    radius
        Largest Euclidean norm of a record (with a one appended when there are intercepts).
    n_records
        Number of training records.

    Returns
    -------
    bound
        In nats.

    Notes
    -----
    Guarantee: ``E[Phi_new(u) - Phi_train(u)] <= 2 sum_t |a_t| R_t`` for *every* filter that may be
    learned from the records. The expectation is over training samples of independent records within
    `radius`, for heads confined to `norms`, both fixed before the records are seen. Here
    ``R_t = sqrt(2) c_t norms_t radius / sqrt(n_records)`` bounds the Rademacher complexity of task
    t's losses. There ``c_t = 1`` for one score and ``sqrt(2 m_t)`` for ``m_t`` scores.

    Proof. The difference of the two minima of a task is at most the largest deviation of its mean
    loss over all heads and filters. That deviation is in the direction of the task's sign.
    Symmetrisation bounds its expectation by twice the Rademacher complexity (Lemma 2). The softmax
    loss is sqrt(2)-Lipschitz in the scores. So contraction (Lemma 5; for several scores Maurer
    2016, corollary 1) leaves the complexity of linear maps. That is ``norms radius sqrt(m / n)``
    (Lemma 6).

    Departure: the paper's Theorem 4 compares the empirical *minimiser* with the best filter, and
    needs twice the sum. No descent on a function that is not convex certifies its global minimum,
    so that statement is not made here. Corollary 7 treats one score; several are Maurer's. The
    paper bounds the norms of filter and head apart, which bounds their product. Records of one
    person are not independent. With the norms of a fitted filter in place of norms fixed in
    advance, the number shows the bound's size and is no guarantee. On real data it is often larger
    than the losses themselves, and then says nothing.

    References
    ----------
    Hamm, JMLR 2017, Theorem 4, Lemmas 2-6, Corollary 7. Maurer 2016, A vector-contraction
    inequality for Rademacher complexities.

    Examples
    --------
    >>> round(bound_generalisation_gap(
    ...     np.array([10.0, -1.0]), np.ones(2), np.array([1, 1]), radius=1.0, n_records=10_000
    ... ), 4)
    0.3111
    """
    contraction = np.where(n_scores == 1, 1.0, np.sqrt(2.0 * n_scores))
    complexity = np.sqrt(2.0) * contraction * norms * radius / np.sqrt(n_records)
    return float(2.0 * (np.abs(weights) * complexity).sum())
