"""The best mapping and the best bound found so far, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from privpipe.numerics.mapping.problem.programme import Duals, Plan, Programme, measure_plan
from privpipe.protocols import FloatArray, IntArray

# Share of a column's mass, or of the budget, that rounding may explain.
_LOST = 1e-12


_waited = [0.0]


def read_clock() -> float:
    """Seconds of this process's processors, and those that it waited for workers.

    What others do on the machine takes nothing from a limit.
    """
    return time.process_time() + _waited[0]


@contextmanager
def waiting() -> Iterator[None]:
    """Of what waits for workers all seconds count."""
    begun = time.monotonic() - time.process_time()
    yield
    _waited[0] += max(time.monotonic() - time.process_time() - begun, 0.0)


@dataclass(frozen=True)
class Deadline:
    """When the seconds of a limit are over; handed through, so that all that it is of share it.

    Parameters
    ----------
    seconds
        Of the limit; infinite where there is none.
    began, noted
        When it began: by `read_clock`, and by a clock on the wall.
    """

    seconds: float
    began: float = field(default_factory=lambda: read_clock())
    noted: float = field(default_factory=lambda: time.monotonic())

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return read_clock() - self.began

    @property
    def left(self) -> float:
        """Seconds until it is over, never 0: that is no limit that a search can be given."""
        return max(self.seconds - self.spent, np.finfo(float).tiny)

    @property
    def left_on_wall(self) -> float:
        """Of another clock, at its rate so far: what it measures takes no time off for others."""
        rate = (time.monotonic() - self.noted) / max(self.spent, np.finfo(float).tiny)
        return self.left * max(rate, 1.0)

    @property
    def is_over(self) -> bool:
        """Whether nothing new may begin."""
        return self.spent >= self.seconds

    def end_earlier(self, seconds: float) -> Deadline:
        """An earlier one, by so many seconds or half of what is left."""
        return replace(self, seconds=self.seconds - min(seconds, self.left / 2))


@dataclass(frozen=True, eq=False)
class Found:
    """A dual point with its bound over all pairs, and pairs that matter near it.

    Parameters
    ----------
    duals
        As given or repaired, whichever has the better bound.
    bound
        Nats; `raw_bound` is that of the point as given, and may be negative.
    symbols, columns : (n_candidates,)
    """

    duals: Duals
    bound: float
    raw_bound: float
    symbols: IntArray
    columns: IntArray


Explorer = Callable[[Programme, Duals, FloatArray | None, float], Found]
"""Prices a dual point, given column potentials and the largest slack of a candidate."""


@dataclass(frozen=True)
class Round:
    """What a round of a solver achieved.

    Parameters
    ----------
    seconds
        Since the start of the solve.
    information, lower_bound
        Best so far, nats.
    n_pairs
        Pairs the round worked on.
    stage
        "anneal", "interior", "cells", "exchange" or "frank_wolfe".
    """

    seconds: float
    information: float
    lower_bound: float
    n_pairs: int
    stage: str


@dataclass(eq=False)
class Search:
    """Keeps the best feasible plan and the best certificate of one solve.

    Parameters
    ----------
    problem
    gap
        Target of the difference between information and lower bound, nats.
    max_seconds
        After which no new round begins, and inner solves end at their next step; may be moved.
    on_round
        Called after each round with this object; a solve that may be interrupted stores its
        plan and duals there and is started again from them.
    """

    problem: Programme
    gap: float
    max_seconds: float = np.inf
    on_round: Callable[[Search], None] | None = None
    plan: Plan = field(init=False)
    duals: Duals = field(init=False)
    bound: float = field(init=False, default=0.0)
    rounds: list[Round] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem
        self._start = read_clock()
        self.plan = measure_plan(problem, problem.stay, np.arange(problem.n_columns), problem.mass)
        self.duals = Duals(np.zeros((problem.n_symbols, problem.n_private)), 0.0)

    @property
    def seconds(self) -> float:
        """Seconds since the start; see `read_clock`."""
        return read_clock() - self._start

    @property
    def reached(self) -> float:
        """Certified gap, nats."""
        return self.plan.information - self.bound

    def offer(self, plan: Plan, duals: Duals, bound: float, n_pairs: int, stage: str) -> None:
        """Keep whichever is better; a plan that lost mass on the way is not taken."""
        # Arithmetic that broke down offers NaN, which no comparison takes.
        if plan.information < self.plan.information and self._is_feasible(plan):
            self.plan = plan
        self.take_bound(duals, bound)
        self.rounds.append(Round(self.seconds, self.plan.information, self.bound, n_pairs, stage))
        if self.on_round is not None:
            self.on_round(self)

    def take_bound(self, duals: Duals, bound: float) -> None:
        """Keep a bound, in nats, over all pairs where it is the better one."""
        if np.isfinite(bound) and bound > self.bound:
            self.duals, self.bound = duals, bound

    def _is_feasible(self, plan: Plan) -> bool:
        problem = self.problem
        sums = np.bincount(plan.columns, plan.weights, problem.n_columns)
        lost = np.abs(sums - problem.mass) > _LOST * problem.mass
        within = plan.distortion <= problem.budget * (1 + _LOST)
        return bool(within and (plan.weights >= 0).all() and not lost.any())

    @property
    def stop(self) -> str:
        """Why to stop now: "gap reached", "time limit", or "" to continue."""
        if self.reached <= self.gap:
            return "gap reached"
        return "time limit" if self.is_late() else ""

    def is_late(self) -> bool:
        """Whether the time is up; inner solves look between their steps."""
        return self.seconds >= self.max_seconds


class OutOfTime(Exception):
    """The time of a search is up; its `Search` holds the best plan and bound so far."""
