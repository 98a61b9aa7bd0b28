"""Outer rounds of training, in which adversaries are drawn or trained anew for the filter at hand.

With features drawn once, a filter can hide from these and from no others. Within a round they stay,
their heads are solved for every filter, and Phi falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from privpipe.numerics.minimax.descent import HISTORY_TAIL, Descent
from privpipe.numerics.minimax.fourier_features import FourierFeatures
from privpipe.numerics.minimax.hidden_units import HiddenUnits, draw_units
from privpipe.numerics.minimax.lifts import (
    Lift,
    OutputMoments,
    RecordStatistics,
    StackedFeatures,
)
from privpipe.numerics.minimax.nystroem_features import NystroemFeatures
from privpipe.protocols import FloatArray
from privpipe.sanitizers.minimax.training.adversaries import AdversaryOptions, name_adversaries
from privpipe.sanitizers.minimax.training.tasks import Task
from privpipe.sanitizers.minimax.training.training_rounds import TrainingRounds

COUNTS = ("rounds", "bytes")
"""Columns of a history that count on."""

LLOYD_STEPS = 3

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
    step = min(options.resample_every, max_iterations)
    found = descend(tuple(tasks), start, step)
    everyone = name_adversaries(options, tasks)
    histories, done = [_spread_losses(found.history, tasks, everyone)], step
    while done < max_iterations:
        step = min(options.resample_every, max_iterations - done)
        everyone = drawing.draw(found.parameters, tasks)
        found = descend(everyone, found.parameters, step)
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
        self.rng = np.random.default_rng(options.adversary_seed)
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
        n_pairs = self.options.random_features // 2
        if name == "random_features":
            return FourierFeatures(outputs, self._seed(), n_pairs)
        if name == "group":  # what adds up to moments of a set, and to its embedding
            half = FourierFeatures(outputs, self._seed(), max(1, n_pairs // 2))
            return StackedFeatures((RecordStatistics(outputs), half))
        n = self.options.landmarks
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
        units = draw_units(outputs, self.options.hidden_units, self.rng)
        known = self.units.get(task.label)
        if known is not None and known.weights.shape == units.weights.shape:
            old = np.arange(units.n_features) < units.n_features // 2
            units = replace(
                units,
                weights=np.where(old, known.weights, units.weights),
                bias=np.where(old, known.bias, units.bias),
            )
        ridged = replace(task, ridge=self.options.adversary_regularisation)
        units, stationarity = self.rounds.train_units(
            parameters, ridged, units, self.options.network_steps
        )
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
