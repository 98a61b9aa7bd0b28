"""Which adversaries a filter is trained against, and the outer rounds in which they are drawn.

With frequencies drawn once, a filter can hide from these and from no others: they are drawn anew
every few iterations, for the outputs that the filter has by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import OptionError
from privpipe.numerics.minimax.descent import HISTORY_TAIL, Descent
from privpipe.numerics.minimax.fourier_features import draw_features
from privpipe.protocols import FloatArray
from privpipe.sanitizers.minimax.training.tasks import Task, TaskOptions
from privpipe.sanitizers.options import FORBID

__all__ = ["AdversaryOptions", "check_adversaries", "descend_in_rounds", "name_adversaries"]

AdversaryKind = Literal["logistic", "random_features"]

COUNTS = ("rounds", "bytes")
"""Columns of a history that count on."""

Moments = tuple[FloatArray, FloatArray]
"""Mean and covariance of a filter's outputs."""


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class AdversaryOptions(TaskOptions):
    """Who a filter is trained against."""

    adversary: Annotated[
        tuple[AdversaryKind, ...],
        Field(
            min_length=1,
            description="Who the filter is trained against, one or several: logistic (the "
            "paper's), random_features (a Gaussian kernel by random Fourier features, drawn anew "
            "every few iterations).",
        ),
    ] = ("logistic",)
    adversary_weights: Annotated[
        tuple[float, ...],
        Field(description="Weight of each adversary; empty: equal, summing to one."),
    ] = ()
    random_features: Annotated[
        int, Field(ge=2, multiple_of=2, description="Features of the adversary random_features.")
    ] = 100
    resample_every: Annotated[
        int, Field(ge=1, description="Iterations after which frequencies are drawn anew.")
    ] = 5
    adversary_seed: Annotated[int, Field(ge=0, description="Of the frequencies.")] = 0

    @field_validator("adversary", mode="before")
    @classmethod
    def _take_one(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @property
    def draws_features(self) -> bool:
        """Whether some adversary is drawn."""
        return "random_features" in self.adversary


def check_adversaries(options: AdversaryOptions) -> None:
    """Raise OptionError for adversaries named twice, or weights that do not match."""
    names, weights = options.adversary, options.adversary_weights
    if len(set(names)) < len(names):
        raise OptionError("adversary names one twice.", remedy="Name each once.")
    if weights and (len(weights) != len(names) or not all(0 < w < np.inf for w in weights)):
        raise OptionError(
            f"adversary_weights has {len(weights)} entries for {len(names)} adversaries, or one is "
            "not positive.",
            remedy="Give one positive weight per adversary, or leave it empty.",
        )


def descend_in_rounds(
    options: AdversaryOptions,
    tasks: Sequence[Task],
    start: FloatArray,
    max_iterations: int,
    descend: Callable[[tuple[Task, ...], FloatArray, int], Descent],
    measure: Callable[[FloatArray], Moments],
) -> tuple[Descent, tuple[Task, ...]]:
    """Descend against the adversaries asked for; those that are drawn, from the second round on.

    Parameters
    ----------
    tasks
        With a logistic adversary each.
    start : (n_parameters,)
    max_iterations
        Of all rounds together.
    descend
        Lowers Phi of some tasks from a start, in so many iterations at most.
    measure
        Mean and covariance of a filter's outputs, by its parameters.

    Returns
    -------
    found
        The last round's, with the history of all; of an adversary that was not drawn yet it says
        the loss of a constant guess.
    tasks
        Of the last round.
    """
    if not options.draws_features or all(task.weight >= 0 for task in tasks):
        return descend(tuple(tasks), start, max_iterations), tuple(tasks)
    rng = np.random.default_rng(options.adversary_seed)
    step = min(options.resample_every, max_iterations)
    found = descend(tuple(tasks), start, step)
    everyone = name_adversaries(options, tasks)
    rows, done = [_spread_losses(found.history, tasks, everyone)], step
    while done < max_iterations:
        step = min(options.resample_every, max_iterations - done)
        mean, covariance = measure(found.parameters)
        drawn = draw_features(mean, covariance, options.random_features // 2, rng)
        everyone = name_adversaries(options, tasks, drawn)
        found = descend(everyone, found.parameters, step)
        rows.append(found.history)
        done += step
    return replace(found, history=_join_histories(rows)), everyone


def name_adversaries(
    options: AdversaryOptions, tasks: Sequence[Task], drawn: Any = None
) -> tuple[Task, ...]:
    """Every private task once for each adversary, its weight shared among them."""
    given = options.adversary_weights or (1.0,) * len(options.adversary)
    shares = np.array(given) / sum(given)
    made: list[Task] = []
    for task in tasks:
        if task.weight >= 0:
            made.append(task)
            continue
        for name, share in zip(options.adversary, shares.tolist(), strict=True):
            lift = None if name == "logistic" else drawn
            own = "" if name == "logistic" else f" ({name})"
            made.append(replace(task, weight=share * task.weight, lift=lift, adversary=own))
    return tuple(made)


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
