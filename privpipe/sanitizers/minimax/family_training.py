"""Minimax filters of any differentiable family, custom ones included.

The objective is that of the linear filters; training stops on held-out records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field, computed_field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import InputError, OptionError
from privpipe.numerics.minimax.descent import descend_quasi_newton
from privpipe.numerics.minimax.filters import DifferentiableFilter, InputScaling
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.training.adversaries import TrainingOptions
from privpipe.sanitizers.minimax.training.adversary_rounds import (
    AdversarialDescent,
    TrainingRounds,
    descend_in_rounds,
    plan_training_tasks,
)
from privpipe.sanitizers.minimax.training.custom_checks import check_loss
from privpipe.sanitizers.minimax.training.custom_code import LOSSES, CustomCode, CustomLoss, Setting
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, measure_moments
from privpipe.sanitizers.minimax.training.tasks import Task

EARLY_STOPPING = 8
"""Iterations without a better held-out Phi before a fit stops."""


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class FamilyOptions(TrainingOptions):
    """What training needs besides the tasks, whatever the family of filters."""

    held_out: Annotated[
        float,
        Field(
            ge=0,
            le=0.5,
            description="Share of the training records that only judge when to stop; 0 stops "
            "on the training Phi.",
        ),
    ] = 0.2
    loss: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Class of a custom loss, a term of Phi by the filter's outputs. "
            "Without loss_module: name of an entry point privpipe.losses.",
        ),
    ] = None
    loss_module: Annotated[
        str | None, Field(description="Python file of that class. It is run, here and on workers.")
    ] = None
    loss_settings: Annotated[
        dict[str, Setting],
        Field(description="Keyword arguments of that class, besides features and outputs."),
    ] = Field(default_factory=dict)
    loss_weight: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="Weight of the mean of that loss in Phi."),
    ] = 1.0
    loss_sha256: Annotated[
        str | None,
        Field(description="Hash that the file of the loss must have; other content is refused."),
    ] = None

    def __post_init__(self) -> None:
        code = None
        if self.loss is not None:
            code = CustomCode.read(self.loss, self.loss_module, LOSSES, self.loss_sha256)
        elif self.loss_module or self.loss_settings or self.loss_sha256:
            raise OptionError(
                "a module, settings or hash of a loss are given without its class",
                remedy="Name the class: loss.",
            )
        object.__setattr__(self, "_loss_code", code)  # read once: what is checked is trained with

    @property
    def loss_code(self) -> CustomCode | None:
        """The code of the loss, as it was when the options were made."""
        found: CustomCode | None = self._loss_code  # type: ignore[attr-defined]
        return found

    @computed_field  # type: ignore[prop-decorator]
    @property
    def loss_code_sha256(self) -> str | None:
        """Hash of the loss's file: part of what a run, a model and a release are of."""
        return None if self.loss_code is None else self.loss_code.sha256

    def plan_loss(self, schema: ShardSchema, n_outputs: int) -> CustomLoss | None:
        """The loss for a filter of so many outputs, if there is one."""
        if self.loss_code is None:
            return None
        given = tuple(sorted(self.loss_settings.items()))
        return CustomLoss(self.loss_code, given, schema.n_features, n_outputs, len(schema.desired))


@dataclass(frozen=True, eq=False)
class FamilyFit:
    """Parameters of a trained filter of any family, and how training went.

    Parameters
    ----------
    parameters : (n_parameters,)
    stopped, history, history_columns, task_names, baselines
        As of `LinearFilter`.
    """

    parameters: FloatArray
    stopped: str
    history: FloatArray
    history_columns: tuple[str, ...]
    task_names: tuple[str, ...]
    baselines: FloatArray


def fit_minimax_family(
    shards: Shards,
    family: DifferentiableFilter,
    start: FloatArray,
    options: FamilyOptions | None = None,
) -> FamilyFit:
    """Learn a filter of any differentiable family; see `DifferentiableFilter`.

    Parameters
    ----------
    family
        Picklable, for it travels to the workers.
    start : (family.n_parameters,)
        Where the descent starts. Its own conditioning is the family's business.

    Raises
    ------
    InputError
        If labels or features cannot be used, or the family does not fit them.
    ConvergenceError
        If an inner problem cannot be solved.
    """
    check_shards(shards)
    options = options or FamilyOptions()
    if family.n_features_in != shards.schema.n_features or len(start) != family.n_parameters:
        raise InputError(
            f"A family of {family.n_features_in} features and {family.n_parameters} parameters "
            f"got records of {shards.schema.n_features} features and {len(start)} parameters.",
            remedy="Give a family made for these records and a start of its size.",
            code="shape",
        )
    check_loss(options.plan_loss(shards.schema, family.n_features_out), shards.schema)
    unchanged = InputScaling(np.empty((0, 0)), 0)
    start = np.asarray(start, np.float64)
    trained = train_family(shards, measure_moments(shards), family, unchanged, start, options)
    return FamilyFit(trained.descent.parameters, **trained.record())


def train_family(
    shards: Shards,
    moments: LabelledMoments,
    family: DifferentiableFilter,
    scaling: InputScaling,
    start: FloatArray,
    options: FamilyOptions,
) -> AdversarialDescent:
    """Descend Phi over a family, watching held-out records; see `fit_minimax_family`."""
    tasks = plan_family_tasks(shards, moments, options, family.n_features_out)
    return descend_in_rounds(
        options,
        TrainingRounds(shards, family, tasks, held_out=options.held_out),
        tasks,
        start,
        partial(
            descend_quasi_newton,
            scaling=scaling,
            tolerance=options.tolerance,
            early_stopping=EARLY_STOPPING if options.held_out else 0,
        ),
        n_penalised=family.n_parameters,
    )


def plan_family_tasks(
    shards: Shards, moments: LabelledMoments, options: FamilyOptions, n_outputs: int
) -> tuple[Task, ...]:
    """Tasks of a family's options, a custom loss last."""
    tasks = plan_training_tasks(options, shards, moments)
    loss = options.plan_loss(shards.schema, n_outputs)
    if loss is None:
        return tasks
    weight, whole = options.loss_weight, (0, n_outputs)
    term = Task(name=loss.code.name, role="loss", column=0, weight=weight, columns=whole, loss=loss)
    return (*tasks, term)
