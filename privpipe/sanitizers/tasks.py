"""The tasks of a minimax filter: what allies predict, what adversaries predict, and how.

A task is a variable (or the features themselves), a loss, and a signed weight: positive for what
is to stay, negative for what is to go (Hamm, JMLR 2017, equations 10-13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import InputError, OptionError
from privpipe.numerics.logistic import make_class_basis, measure_entropy
from privpipe.protocols import Column, FloatArray, IntArray, Shard, ShardSchema
from privpipe.sanitizers.labelled import LabelledMoments, LabelMoments

__all__ = ["Task", "TaskKind", "TaskOptions", "plan_tasks"]

TaskKind = Literal["auto", "classification", "regression"]
MAX_AUTO_CLASSES = 64
"""A numeric variable of integers with at most so many values is read as classes."""
NEWTON_PARAMETERS = 600
"""A head with more entries gets a curvature bound instead of its Hessian."""


@options_dataclass(
    frozen=True, kw_only=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True)
)
class TaskOptions:
    """Which tasks a filter is learned for; shared by all methods that weigh utility and privacy."""

    tradeoff: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Weight of utility against privacy (the paper's rho).",
        ),
    ] = 10.0
    desired_task: Annotated[
        TaskKind,
        Field(
            description="How numeric desired variables are read; auto: integers of at most "
            f"{MAX_AUTO_CLASSES} values are classes. Categorical ones are always classes."
        ),
    ] = "auto"
    confidential_task: Annotated[
        TaskKind, Field(description="How numeric confidential variables are read.")
    ] = "auto"
    desired_weights: Annotated[
        tuple[float, ...],
        Field(description="Weight of each desired variable; empty: equal, summing to one."),
    ] = ()
    confidential_weights: Annotated[
        tuple[float, ...],
        Field(description="Weight of each confidential variable; empty: equal, summing to one."),
    ] = ()
    reconstruction_weight: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Weight of reconstructing the features, as utility; 0 leaves it out.",
        ),
    ] = 0.0
    single_out: Annotated[
        float | None,
        Field(
            description="Value (or code) of the one confidential variable to tell from the "
            "rest: the adversary only asks whether a record is of this class."
        ),
    ] = None


@dataclass(frozen=True, eq=False)
class Task:
    """One prediction to keep or to spoil. Picklable; it travels to the workers once.

    Parameters
    ----------
    name
        Name of the variable, "features" for reconstruction.
    role
        "desired", "confidential" or "features".
    column
        Column of the variable within its role.
    weight
        Signed weight in Phi.
    classes : (n_classes,)
        Distinct values; empty for a number.
    singled_out
        Value to tell from the rest, NaN when there is none.
    centre, scale : (n_outputs,)
        A number y is predicted as ``(y - centre) / scale``; unused for classes.
    ridge
        Weight of ``|V|**2``.
    with_intercept
        Whether the head has an intercept.
    baseline
        Loss of the best constant guess: entropy of the classes in nats, 1 for numbers.
    columns
        First and last filter output that are the scores of a fixed head, (0, 0) for a free one.
    """

    name: str
    role: str
    column: int
    weight: float = 1.0
    classes: FloatArray = field(default_factory=lambda: np.empty(0))
    singled_out: float = np.nan
    centre: FloatArray = field(default_factory=lambda: np.zeros(1))
    scale: FloatArray = field(default_factory=lambda: np.ones(1))
    ridge: float = 0.0
    with_intercept: bool = True
    baseline: float = 1.0
    columns: tuple[int, int] = (0, 0)

    @property
    def is_classification(self) -> bool:
        return len(self.classes) > 0

    @property
    def is_fixed(self) -> bool:
        """Whether the scores are outputs of the filter (the reduced form)."""
        return self.columns[1] > 0

    @property
    def n_classes(self) -> int:
        return len(self.classes) if np.isnan(self.singled_out) else 2

    @property
    def n_scores(self) -> int:
        return self.n_classes - 1 if self.is_classification else len(self.centre)

    @property
    def basis(self) -> FloatArray:
        """Zero-sum basis of the classes, (n_classes, n_scores)."""
        return make_class_basis(self.n_classes)

    def n_inputs(self, n_filtered: int) -> int:
        """Rows of the head."""
        return n_filtered + self.with_intercept

    def uses_bound(self, n_filtered: int) -> bool:
        """Whether the head is too large for a full Hessian."""
        size = self.n_inputs(n_filtered) * self.n_scores
        return self.is_classification and size > NEWTON_PARAMETERS

    def read_classes(self, shard: Shard, rows: slice) -> IntArray:
        """Class numbers of some records of a shard, (n_rows,)."""
        y = self._values(shard)[rows, self.column]
        if not np.isnan(self.singled_out):
            return np.asarray(y == self.singled_out, np.int64)
        return np.asarray(np.searchsorted(self.classes, y), np.int64)

    def read_numbers(self, shard: Shard, rows: slice) -> FloatArray:
        """Standardised targets of some records, (n_rows, n_outputs)."""
        if self.role == "features":
            return np.asarray((shard.features[rows] - self.centre) / self.scale)
        y = self._values(shard)[rows, self.column : self.column + 1]
        return np.asarray((y - self.centre) / self.scale)

    def _values(self, shard: Shard) -> FloatArray:
        return shard.desired if self.role == "desired" else shard.confidential


def plan_tasks(
    options: TaskOptions,
    schema: ShardSchema,
    moments: LabelledMoments,
    *,
    ridge: float = 0.0,
    with_intercept: bool = True,
) -> tuple[Task, ...]:
    """Turn named variables into tasks, desired ones first.

    Raises
    ------
    InputError
        If there is nothing to keep or nothing to hide, a variable has one class or codes out of
        range, or there are fewer records than classes.
    OptionError
        If weights do not match the variables, or the class to single out does not exist.
    """
    n_desired = len(schema.desired)
    if not schema.confidential:
        raise InputError(
            "There is no confidential variable.", remedy="Name at least one in confidential."
        )
    if not n_desired and not options.reconstruction_weight:
        raise InputError(
            "There is no desired variable.",
            remedy="Name one in desired, or set reconstruction_weight.",
        )
    single_out = options.single_out
    if single_out is not None and len(schema.confidential) != 1:
        raise OptionError(
            f"single_out asks for one confidential variable; there are {len(schema.confidential)}.",
            remedy="Name one confidential variable, or leave single_out unset.",
        )
    keep = _spread_weights(options.desired_weights, n_desired, "desired_weights")
    hide = _spread_weights(
        options.confidential_weights, len(schema.confidential), "confidential_weights"
    )
    n, labels = moments.count, moments.labels
    tasks = [
        _plan_one("desired", j, c, labels[j], options.desired_task, n, None)
        for j, c in enumerate(schema.desired)
    ] + [
        _plan_one(
            "confidential", j, c, labels[n_desired + j], options.confidential_task, n, single_out
        )
        for j, c in enumerate(schema.confidential)
    ]
    weights = [options.tradeoff * a for a in keep] + [-b for b in hide]
    tasks = [replace(t, weight=w) for t, w in zip(tasks, weights, strict=True)]
    if options.reconstruction_weight:
        tasks.append(_plan_reconstruction(moments, options))
    return tuple(replace(t, ridge=ridge, with_intercept=with_intercept) for t in tasks)


def _spread_weights(given: Sequence[float], count: int, name: str) -> list[float]:
    if not given:
        return [1.0 / count] * count if count else []
    if len(given) != count or not all(np.isfinite(w) and w > 0 for w in given):
        raise OptionError(
            f"{name} has {len(given)} entries for {count} variables, or one is not positive.",
            remedy="Give one positive weight per variable, or leave it empty.",
        )
    return [float(w) for w in given]


def _plan_one(
    role: str,
    j: int,
    column: Column,
    label: LabelMoments,
    kind: TaskKind,
    n_records: int,
    single_out: float | None,
) -> Task:
    if _read_kind(column, label, kind):
        _check_classes(role, column, label, n_records)
        counts = label.counts
        if single_out is not None:
            own = counts[_find_class(column, label, single_out)]
            counts = np.array([own, n_records - own])
        return Task(
            name=column.name,
            role=role,
            column=j,
            classes=label.values,
            singled_out=np.nan if single_out is None else single_out,
            baseline=measure_entropy(counts),
        )
    if single_out is not None:
        raise OptionError(
            f"single_out is set, but {column.name!r} is read as a number.",
            remedy='Set confidential_task = "classification", or leave single_out unset.',
        )
    spread = np.sqrt(label.spread / n_records)
    if not spread > 1e-12 * abs(label.mean):
        raise InputError(
            f"The {role} variable {column.name!r} is constant in the training records.",
            remedy="Train on records in which it varies, or leave it out.",
            code="single_class",
        )
    return Task(
        name=column.name,
        role=role,
        column=j,
        centre=np.array([label.mean]),
        scale=np.array([spread]),
    )


def _find_class(column: Column, label: LabelMoments, value: float) -> int:
    found = np.flatnonzero(label.values == value)
    if not len(found):
        raise OptionError(
            f"single_out is {value}, no class of {column.name!r} in the training records.",
            remedy="Give the value, or for a categorical variable the code, of one of its classes.",
        )
    return int(found[0])


def _read_kind(column: Column, label: LabelMoments, kind: TaskKind) -> bool:
    """Whether the variable is read as classes."""
    if column.is_categorical:
        return True
    if kind == "auto":
        whole = bool((label.values == np.round(label.values)).all())
        return not label.overflowed and whole and len(label.values) <= MAX_AUTO_CLASSES
    if kind == "classification" and label.overflowed:
        raise InputError(
            f"The variable {column.name!r} has too many distinct values for classes.",
            remedy='Bin it, or set the task to "regression".',
        )
    return kind == "classification"


def _check_classes(role: str, column: Column, label: LabelMoments, n_records: int) -> None:
    k = column.n_categories
    if k is not None and (label.overflowed or _out_of_range(label.values, k)):
        raise InputError(
            f"The {role} variable {column.name!r} has codes outside 0 .. {k - 1} (-1 is missing).",
            remedy="Leave those records out, or correct codes or number of categories.",
            code="labels_out_of_range",
        )
    if len(label.values) < 2:
        raise InputError(
            f"The {role} variable {column.name!r} has a single class in the training records.",
            remedy="Train on records of at least two classes, or leave the variable out.",
            code="single_class",
        )
    if n_records <= len(label.values):
        raise InputError(
            f"{n_records} training records are too few for the {len(label.values)} classes of "
            f"the {role} variable {column.name!r}.",
            remedy="Train on more records than classes.",
            code="too_few_records",
        )


def _out_of_range(values: FloatArray, n_categories: int) -> bool:
    wrong = (values < 0) | (values >= n_categories) | (values != np.round(values))
    return bool(wrong.any())


def _plan_reconstruction(moments: LabelledMoments, options: TaskOptions) -> Task:
    total = float(np.trace(moments.covariance))
    width = len(moments.mean)
    return Task(
        name="features",
        role="features",
        column=0,
        weight=options.tradeoff * options.reconstruction_weight,
        centre=moments.mean,
        scale=np.full(width, np.sqrt(max(total, 1e-300))),
    )
