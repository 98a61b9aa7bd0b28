"""Outer rounds of training, in which adversaries are drawn or trained anew for the filter at hand.

With features drawn once, a filter can hide from these and from no others. Within a round they stay,
their heads are solved for every filter, and Phi falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.optimize as so

from privpipe.errors import ConvergenceError
from privpipe.numerics.minimax.descent import HISTORY_TAIL, Descent
from privpipe.numerics.minimax.filters import DifferentiableFilter
from privpipe.numerics.minimax.fourier_features import FourierFeatures
from privpipe.numerics.minimax.hidden_units import HiddenUnits, draw_units
from privpipe.numerics.minimax.lifts import Lift, OutputMoments, RecordStatistics, StackedFeatures
from privpipe.numerics.minimax.newton import HeadSolver, InexactSolver
from privpipe.numerics.minimax.nystroem_features import NystroemFeatures
from privpipe.numerics.minimax.objective import Answer, MinimaxObjective, Question
from privpipe.protocols import FloatArray, Oracle, Shards, Sums
from privpipe.sanitizers.minimax.training.adversaries import (
    RIDGE,
    AdversaryOptions,
    name_adversaries,
)
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
) -> MinimaxObjective:
    """Phi over sharded records, once; see `MinimaxObjective`."""
    rounds = TrainingRounds(shards, family, _find_resident(tasks), held_out=held_out)
    return rounds.make_objective(
        tasks, ridge=ridge, n_penalised=n_penalised, inner_tolerance=inner_tolerance
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


COUNTS = ("rounds", "bytes")
"""Columns of a history that count on."""

LLOYD_STEPS = 3
RESAMPLE_EVERY = 5
"""Iterations after which adversaries are drawn anew."""
RANDOM_FEATURES = 72
"""Of the adversary `random_features`; half as many of `group`."""
LANDMARKS = 64
"""Points on which the adversary `kernel` stands."""
HIDDEN_UNITS, NETWORK_STEPS = 32, 40
"""Of the adversary `network`, and steps that train its hidden layer each time."""

Descend = Callable[[tuple[Task, ...], FloatArray, int], Descent]


@dataclass(frozen=True, eq=False)
class AdversarialDescent:
    """A descent against all adversaries.

    Parameters
    ----------
    descent
        The last round's, with the history of all; of an adversary that was not drawn yet it says
        the loss of a constant guess.
    tasks
        Of the last round.
    stationarity
        Largest gradient of an adversary's hidden layer when it was last trained; -1 without one.
    """

    descent: Descent
    tasks: tuple[Task, ...]
    stationarity: float = -1.0


def descend_in_rounds(
    options: AdversaryOptions,
    rounds: TrainingRounds,
    tasks: Sequence[Task],
    start: FloatArray,
    max_iterations: int,
    descend: Descend,
) -> AdversarialDescent:
    """Descend against the adversaries asked for; those that are drawn, from the second round on.

    Parameters
    ----------
    rounds
        The records.
    tasks
        With a logistic adversary each.
    start : (n_parameters,)
    max_iterations
        Of all rounds together.
    descend
        Lowers Phi of some tasks from a start, in so many iterations at most.
    """
    if not options.draws_features or all(task.weight >= 0 for task in tasks):
        return AdversarialDescent(descend(tuple(tasks), start, max_iterations), tuple(tasks))
    drawing = _Drawing(options, rounds, tuple(task for task in tasks if task.weight < 0))
    step = min(RESAMPLE_EVERY, max_iterations)
    found = descend(tuple(tasks), start, step)
    everyone = name_adversaries(options, tasks)
    histories, done = [_spread_losses(found.history, tasks, everyone)], step
    while done < max_iterations and found.stopped != "inner":
        step = min(RESAMPLE_EVERY, max_iterations - done)
        try:
            drawn = drawing.draw(found.parameters, tasks)
            found = descend(drawn, found.parameters, step)
        except ConvergenceError:  # against these adversaries not even the start is known
            found = replace(found, stopped="inner")
            break
        everyone = drawn
        histories.append(found.history)
        done += step
    found = replace(found, history=_join_histories(histories))
    return AdversarialDescent(found, everyone, drawing.stationarity)


class _Drawing:
    """Draws what adversaries read, for the outputs of a filter as they are."""

    def __init__(
        self, options: AdversaryOptions, rounds: TrainingRounds, private: tuple[Task, ...]
    ) -> None:
        self.options, self.rounds, self.private = options, rounds, private
        self.rng = np.random.default_rng(options.seed)
        self.centre: FloatArray = np.zeros(rounds.family.n_features_out)
        self.units: dict[str, HiddenUnits] = {}
        self.stationarity = -1.0

    def draw(self, parameters: FloatArray, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks of a round, with new readers."""
        outputs = self.rounds.measure_outputs(parameters, self.centre)
        self.centre = outputs.centre
        lifts: dict[tuple[str, str], Lift] = {}
        for name in self.options.adversary:
            if name == "logistic":
                continue
            if name == "network":
                for task in self.private:
                    lifts[name, task.label] = self._train_units(parameters, task, outputs)
                continue
            lift = self._draw(name, parameters, outputs)
            lifts |= {(name, task.label): lift for task in self.private}
        return name_adversaries(self.options, tasks, lifts, self._seed())

    def _draw(self, name: str, parameters: FloatArray, outputs: OutputMoments) -> Lift:
        n_pairs = RANDOM_FEATURES // 2
        if name == "random_features":
            return FourierFeatures(outputs, self._seed(), n_pairs)
        if name == "group":  # what adds up to moments of a set, and to its embedding
            half = FourierFeatures(outputs, self._seed(), max(1, n_pairs // 2))
            return StackedFeatures((RecordStatistics(outputs), half))
        n = LANDMARKS
        landmarks: FloatArray = self.rng.standard_normal((n, outputs.n_directions))
        for _ in range(LLOYD_STEPS):
            landmarks = self.rounds.move_landmarks(parameters, outputs, landmarks)
        return NystroemFeatures(outputs, landmarks)

    def _train_units(
        self, parameters: FloatArray, task: Task, outputs: OutputMoments
    ) -> HiddenUnits:
        """The layer as it was, for the outputs as they are now, and trained on.

        Half of the units begin anew each time: a layer that was trained once knows one way to read.
        """
        units = draw_units(outputs, HIDDEN_UNITS, self.rng)
        known = self.units.get(task.label)
        if known is not None and known.weights.shape == units.weights.shape:
            old = np.arange(units.n_features) < units.n_features // 2
            units = replace(
                units,
                weights=np.where(old, known.weights, units.weights),
                bias=np.where(old, known.bias, units.bias),
            )
        ridged = replace(task, ridge=RIDGE)
        units, stationarity = self.rounds.train_units(parameters, ridged, units, NETWORK_STEPS)
        self.stationarity = stationarity
        self.units[task.label] = units
        return units

    def _seed(self) -> int:
        return int(self.rng.integers(2**31))


def _spread_losses(
    history: FloatArray, tasks: Sequence[Task], everyone: Sequence[Task]
) -> FloatArray:
    """A history of the first round with the columns of the later ones."""
    at = {task.label: history[:, 2 + j] for j, task in enumerate(tasks)}
    losses = [at.get(task.label, np.full(len(history), task.baseline)) for task in everyone]
    return np.column_stack([history[:, :2], *losses, history[:, 2 + len(tasks) :]])


def _join_histories(parts: Sequence[FloatArray]) -> FloatArray:
    """Histories one after the other: iterations, rounds and bytes go on counting."""
    counted = [0, *(j - len(HISTORY_TAIL) for j, n in enumerate(HISTORY_TAIL) if n in COUNTS)]
    joined = [parts[0]]
    for part in parts[1:]:
        further = part.copy()
        further[:, counted] += joined[-1][-1, counted]
        joined.append(further[1:])  # the start of a round is the end of the last one
    return np.vstack(joined)
