"""Minimax filters of any differentiable family, the user's own included.

The objective is that of the linear filters; training stops on held-out records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, computed_field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import InputError, OptionError
from privpipe.numerics.minimax.descent import Descent, descend_quasi_newton
from privpipe.numerics.minimax.filters import DifferentiableFilter, InputScaling
from privpipe.option_values import FORBID, is_trusted
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.custom_code import (
    LOSSES,
    CustomLoss,
    FilterCode,
    Setting,
    check_loss,
)
from privpipe.sanitizers.minimax.training.adversaries import AdversaryOptions, check_adversaries
from privpipe.sanitizers.minimax.training.adversary_rounds import (
    AdversarialDescent,
    TrainingRounds,
    descend_in_rounds,
)
from privpipe.sanitizers.minimax.training.group_pooling import check_groups
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, measure_moments
from privpipe.sanitizers.minimax.training.task_planning import plan_tasks
from privpipe.sanitizers.minimax.training.tasks import Task, name_history

PATIENCE = 8
"""Iterations without a better held-out Phi before a fit stops."""
UNCHANGED = InputScaling(np.empty((0, 0)), 0)


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class FamilyOptions(AdversaryOptions):
    """What training needs beside the tasks, whatever the family of filters."""

    regularisation: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Ridge of every predictor, and half of it of the filter.",
        ),
    ] = 1e-4
    with_intercept: Annotated[bool, Field(description="Predictors have an intercept.")] = True
    max_iterations: Annotated[int, Field(ge=0, description="Most outer iterations.")] = 100
    tolerance: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Stop when an iteration lowers Phi by less than this share.",
        ),
    ] = 1e-5
    inner_tolerance: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="Accuracy of the inner problems, in nats."),
    ] = 1e-6
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
            description="Class of a loss of one's own, a term of Phi by the filter's outputs. "
            "Without loss_module: name of an entry point privpipe.losses.",
        ),
    ] = None
    loss_module: Annotated[
        str | None, Field(description="Python file of that class. It is run, here and on workers.")
    ] = None
    loss_settings: Annotated[
        dict[str, Setting],
        Field(description="Keyword arguments of that class, beside features and outputs."),
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
            code = FilterCode.read(self.loss, self.loss_module, LOSSES)
            if self.loss_sha256 not in (None, code.sha256):
                raise OptionError(
                    f"the file of the loss has the SHA-256 {code.sha256}, not loss_sha256",
                    remedy="Restore the file, or read it and change loss_sha256.",
                    code="filter-changed",
                )
        elif self.loss_module or self.loss_settings or self.loss_sha256:
            raise OptionError(
                "a module, settings or hash of a loss stand without its class",
                remedy="Name the class: loss.",
            )
        object.__setattr__(self, "_loss_code", code)  # read once: what is checked is trained with

    @property
    def loss_code(self) -> FilterCode | None:
        """The code of the loss, as it was when the options were made."""
        found: FilterCode | None = self._loss_code  # type: ignore[attr-defined]
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
        return CustomLoss.of(self.loss_code, self.loss_settings, schema, n_outputs)

    def check_loss(self, schema: ShardSchema, n_outputs: int) -> None:
        """Raise OptionError for a trusted loss with wrong slopes; see `own_loss.check_loss`."""
        loss = self.plan_loss(schema, n_outputs)
        if loss is not None and is_trusted(loss.code.sha256):
            check_loss(loss, schema)


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
    options.check_loss(shards.schema, family.n_features_out)
    tasks = plan_family_tasks(shards, measure_moments(shards), options, family.n_features_out)
    trained = train_family(shards, family, tasks, UNCHANGED, np.asarray(start, np.float64), options)
    found = trained.descent
    return freeze_descent(found, found.parameters, trained.tasks, options)


def plan_family_tasks(
    shards: Shards, moments: LabelledMoments, options: FamilyOptions, n_outputs: int
) -> tuple[Task, ...]:
    """Tasks of a family's options, the user's own loss last."""
    check_adversaries(options, shards.schema)
    if "group" in options.adversary:
        check_groups(shards, options.group_size)
    tasks = plan_tasks(
        options,
        shards.schema,
        moments,
        ridge=options.regularisation,
        with_intercept=options.with_intercept,
    )
    loss = options.plan_loss(shards.schema, n_outputs)
    if loss is None:
        return tasks
    weight, whole = options.loss_weight, (0, n_outputs)
    own = Task(name=loss.code.name, role="loss", column=0, weight=weight, columns=whole, loss=loss)
    return (*tasks, own)


def train_family(
    shards: Shards,
    family: DifferentiableFilter,
    tasks: tuple[Task, ...],
    scaling: InputScaling,
    start: FloatArray,
    options: FamilyOptions,
) -> AdversarialDescent:
    """Descend Phi over a family, watching held-out records; see `fit_minimax_family`."""
    rounds = TrainingRounds(shards, family, tasks, held_out=options.held_out)

    def descend(tasks: tuple[Task, ...], start: FloatArray, max_iterations: int) -> Descent:
        objective = rounds.make_objective(
            tasks,
            ridge=options.regularisation,
            n_penalised=family.n_parameters,
            inner_tolerance=options.inner_tolerance,
        )
        return descend_quasi_newton(
            objective,
            scaling,
            start,
            max_iterations=max_iterations,
            tolerance=options.tolerance,
            patience=PATIENCE if options.held_out else 0,
        )

    return descend_in_rounds(options, rounds, tasks, start, options.max_iterations, descend)


def freeze_descent(
    found: Descent, parameters: FloatArray, tasks: Sequence[Task], options: FamilyOptions
) -> FamilyFit:
    """What stays of a descent."""
    return FamilyFit(
        parameters=parameters,
        stopped=found.stopped,
        history=found.history,
        history_columns=name_history(tasks, held_out=options.held_out > 0),
        task_names=tuple(task.label for task in tasks),
        baselines=np.array([task.baseline for task in tasks]),
    )
