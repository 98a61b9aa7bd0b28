"""Phi of some tasks over shards, as a fit evaluates it."""

from __future__ import annotations

from privpipe.numerics.minimax.filters import DifferentiableFilter
from privpipe.numerics.minimax.objective import MinimaxObjective
from privpipe.protocols import Shards
from privpipe.sanitizers.minimax.training.adversary_rounds import TrainingRounds
from privpipe.sanitizers.minimax.training.tasks import Task


def make_objective(
    shards: Shards,
    family: DifferentiableFilter,
    tasks: tuple[Task, ...],
    *,
    held_out: float = 0.0,
    ridge: float = 0.0,
    n_penalised: int = 0,
    inner_tolerance: float = 1e-6,
) -> MinimaxObjective:
    """See `TrainingRounds.make_objective`."""
    return TrainingRounds(shards, family, tasks, held_out=held_out).make_objective(
        tasks, ridge=ridge, n_penalised=n_penalised, inner_tolerance=inner_tolerance
    )
