"""All rounds of one fit over the same shards: one oracle, so that records are loaded once.

What changes between outer rounds, who reads and what, travels with the questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import scipy.optimize as so

from privpipe.numerics.minimax.filters import DifferentiableFilter
from privpipe.numerics.minimax.hidden_units import HiddenUnits
from privpipe.numerics.minimax.lifts import OutputMoments
from privpipe.numerics.minimax.newton import HeadSolver, InexactSolver
from privpipe.numerics.minimax.objective import (
    Answer,
    MinimaxObjective,
    Question,
    SmoothMaximum,
)
from privpipe.protocols import FloatArray, Oracle, Shards, Sums
from privpipe.sanitizers.minimax.training.shard_oracle import (
    Asked,
    Landmarks,
    Outputs,
    Resident,
    ShardRound,
    Units,
    ask_shard,
)
from privpipe.sanitizers.minimax.training.tasks import Task

FEWEST = 5
"""Records of a landmark, at least: with fewer it stays where it was drawn."""


class TrainingRounds:
    """Questions about training records, whoever is trained against.

    Parameters
    ----------
    shards
        The records.
    family
        Filters under training.
    tasks
        With the logistic adversary each; tasks of other adversaries are these with another reader.
    held_out
        Share of the records that only judge when to stop.
    """

    def __init__(
        self,
        shards: Shards,
        family: DifferentiableFilter,
        tasks: Sequence[Task],
        *,
        held_out: float = 0.0,
    ) -> None:
        self.family = family
        self.places = {(task.role, task.column): t for t, task in enumerate(tasks)}
        # Weight, ridge and name are the driver's business alone.
        resident = Resident(shards.schema, family, tuple(tasks), held_out)
        self.oracle: Oracle[object, Sums] = shards.oracle(ask_shard, resident=resident)
        self.solvers: dict[str, tuple[object, HeadSolver]] = {}

    def make_objective(
        self,
        tasks: Sequence[Task],
        *,
        ridge: float = 0.0,
        n_penalised: int = 0,
        inner_tolerance: float = 1e-6,
        maxima: Sequence[SmoothMaximum] = (),
    ) -> MinimaxObjective:
        """Phi against the adversaries of these tasks; see `MinimaxObjective`."""
        asked = tuple(
            Asked(self.places[task.role, task.column], task.lift, task.pool) for task in tasks
        )
        return MinimaxObjective(
            partial(_ask, self.oracle, asked),
            [None if task.is_fixed else self._make_solver(task, inner_tolerance) for task in tasks],
            np.array([task.weight for task in tasks]),
            ridge=ridge,
            n_penalised=n_penalised,
            inner_tolerance=inner_tolerance,
            maxima=maxima,
            beside=[0 if task.lift is None else task.lift.n_bytes for task in tasks],
        )

    def _make_solver(self, task: Task, tolerance: float) -> HeadSolver:
        """A head at zero, or as an earlier round left it if it reads the same."""
        known = self.solvers.get(task.label)
        if known is not None and known[0] is task.lift:
            return known[1]
        n_inputs = task.n_inputs(self.family.n_features_out)
        start = np.zeros((n_inputs, task.n_scores))
        n_free = int(task.with_intercept and task.lift is None)
        solver: HeadSolver
        if task.is_classification and not task.uses_hessian(n_inputs, self.family.n_parameters):
            solver = InexactSolver(start, ridge=task.ridge, n_free=n_free, tolerance=tolerance)
        else:
            solver = HeadSolver(start, ridge=task.ridge, n_free=n_free)
        self.solvers[task.label] = task.lift, solver
        return solver

    def measure_outputs(self, parameters: FloatArray, centre: FloatArray) -> OutputMoments:
        """Moments of a filter's outputs; `centre` is a point near their mean."""
        count, total, products = self.oracle(Outputs(parameters, centre))
        mean = total / count
        return OutputMoments.of(centre + mean, products / count - np.outer(mean, mean))

    def move_landmarks(
        self, parameters: FloatArray, outputs: OutputMoments, landmarks: FloatArray
    ) -> FloatArray:
        """One step of k-means on whitened outputs; see `sum_by_landmark`."""
        counts, sums = self.oracle(Landmarks(parameters, outputs, landmarks))
        many = counts >= FEWEST
        moved = landmarks.copy()
        moved[many] = sums[many] / counts[many][:, None]
        return moved

    def train_units(
        self, parameters: FloatArray, task: Task, units: HiddenUnits, steps: int
    ) -> tuple[HiddenUnits, float]:
        """Hidden layer of a network that learns one task from a filter's outputs.

        Returns
        -------
        units
            After so many steps of L-BFGS on hidden and output layer.
        stationarity
            Largest entry of the gradient there. The loss is not convex in a hidden layer: this is
            no bound of what a better one would gain.
        """
        place = self.places[task.role, task.column]
        shape = (units.n_features + int(task.with_intercept), task.n_scores)
        size = len(units.parameters)

        def loss(flat: FloatArray) -> tuple[float, FloatArray]:
            hidden, head = units.holding(flat[:size]), flat[size:].reshape(shape)
            asked = Units(parameters, place, hidden, head)
            count, total, slope, by_units = self.oracle(asked)
            penalty = task.ridge * float(flat @ flat)
            slopes = np.concatenate([by_units, slope.ravel()]) / count
            return total / count + penalty, slopes + 2 * task.ridge * flat

        start = np.concatenate([units.parameters, np.zeros(shape[0] * shape[1])])
        options = {"maxiter": steps, "maxcor": 20, "gtol": 1e-6, "ftol": 0.0}
        found = so.minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        return units.holding(found.x[:size]), float(np.abs(found.jac).max())


def make_objective(
    shards: Shards,
    family: DifferentiableFilter,
    tasks: tuple[Task, ...],
    *,
    held_out: float = 0.0,
    ridge: float = 0.0,
    n_penalised: int = 0,
    inner_tolerance: float = 1e-6,
    maxima: Sequence[SmoothMaximum] = (),
) -> MinimaxObjective:
    """Phi over sharded records, once; see `MinimaxObjective`."""
    rounds = TrainingRounds(shards, family, _find_resident(tasks), held_out=held_out)
    return rounds.make_objective(
        tasks,
        ridge=ridge,
        n_penalised=n_penalised,
        inner_tolerance=inner_tolerance,
        maxima=maxima,
    )


def _find_resident(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """One task of each variable."""
    return tuple({(task.role, task.column): task for task in tasks}.values())


def _ask(oracle: Oracle[object, Sums], asked: tuple[Asked, ...], question: Question) -> Answer:
    """Send lifts of what is asked only."""
    lean = tuple(
        one if head is not None else one._replace(lift=None)
        for one, head in zip(asked, question.heads, strict=True)
    )
    counts, losses, gradient, *rest = oracle(ShardRound(question, lean))
    pairs = tuple(zip(rest[1::3], rest[2::3], strict=True))
    return Answer(counts, losses, tuple(rest[::3]), pairs, gradient)
