"""From named variables and their moments to tasks, or to a refusal that says why.

Hamm, JMLR 2017, sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.numerics.regression.logistic import measure_entropy
from privpipe.protocols import Column, FloatArray, ShardSchema
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, LabelMoments
from privpipe.sanitizers.minimax.training.tasks import MAX_AUTO_CLASSES, Task, TaskKind, TaskOptions


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
    check_tasks(options, schema)
    n_desired, single_out = len(schema.desired), options.single_out
    keep = _spread_weights(options.desired_weights, n_desired, "desired_weights")
    hide = _spread_weights(
        options.confidential_weights, len(schema.confidential), "confidential_weights"
    )
    n, labels = moments.count, moments.labels
    tasks = [
        _plan_one("desired", j, c, labels[j], options.desired_task, n, None)
        for j, c in enumerate(schema.desired)
    ] + [
        _plan_one("confidential", j, c, labels[j], options.confidential_task, n, single_out)
        for j, c in enumerate(schema.confidential, start=n_desired)
    ]
    weights = [options.tradeoff * a for a in keep] + [-b for b in hide]
    tasks = [replace(t, weight=w) for t, w in zip(tasks, weights, strict=True)]
    if options.reconstruction_weight:
        tasks.append(_plan_reconstruction(moments, options))
    return tuple(replace(t, ridge=ridge, with_intercept=with_intercept) for t in tasks)


def check_tasks(options: TaskOptions, schema: ShardSchema) -> None:
    """Raise InputError or OptionError for tasks that no records of these variables have."""
    if not schema.confidential:
        raise InputError(
            "There is no confidential variable.", remedy="Name at least one in confidential."
        )
    if not schema.desired and not options.reconstruction_weight:
        raise InputError(
            "There is no desired variable.",
            remedy="Name one in desired, or set reconstruction_weight.",
        )
    _spread_weights(options.desired_weights, len(schema.desired), "desired_weights")
    _spread_weights(options.confidential_weights, len(schema.confidential), "confidential_weights")
    if options.single_out is not None:
        _check_single_out(options.single_out, options, schema)


def _check_single_out(value: float, options: TaskOptions, schema: ShardSchema) -> None:
    if len(schema.confidential) != 1:
        raise OptionError(
            f"single_out asks for one confidential variable; there are {len(schema.confidential)}.",
            remedy="Name one confidential variable, or leave single_out unset.",
        )
    (column,) = schema.confidential
    if column.n_categories is not None:
        if value not in range(column.n_categories):
            raise _no_such_class(column, value)
    elif options.confidential_task == "regression":
        raise _is_number(column)


def _no_such_class(column: Column, value: float) -> OptionError:
    return OptionError(
        f"single_out is {value}, no class of {column.name!r} in the training records.",
        remedy="Give the value, or for a categorical variable the code, of one of its classes.",
    )


def _is_number(column: Column) -> OptionError:
    return OptionError(
        f"single_out is set, but {column.name!r} is read as a number.",
        remedy='Set confidential_task = "classification", or leave single_out unset.',
    )


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
        raise _is_number(column)
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
        raise _no_such_class(column, value)
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
            f"The {role} variable {column.name!r} has codes outside 0 .. {k - 1}.",
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
