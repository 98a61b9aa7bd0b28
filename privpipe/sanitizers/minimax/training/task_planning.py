"""From named variables and their moments to tasks, or to a refusal that says why; and widths.

Hamm, JMLR 2017, sections 3.2 and 3.3. A linear filter's outputs are sums of the features: more of
them than features add nothing. A curved one may need them, for many classes of few features, and
can then hold whole records.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from privpipe.errors import InputError, OptionError, PrivacyWarning
from privpipe.numerics.logistic import measure_entropy
from privpipe.protocols import Column, ShardSchema
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, LabelMoments
from privpipe.sanitizers.minimax.training.tasks import (
    MAX_AUTO_CLASSES,
    Task,
    TaskKind,
    TaskOptions,
    refuse_class,
    refuse_number,
)


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
    options.check(schema)
    labels, tasks = iter(moments.labels), list[Task]()
    for role, columns, sign in (
        ("desired", schema.desired, options.tradeoff),
        ("confidential", schema.confidential, -1.0),
    ):
        weights = options.spread_weights(role, len(columns))
        for column, weight in zip(columns, weights, strict=True):
            task = _plan_one(options, role, column, next(labels), moments.count)
            # Private tasks count negatively: Phi is lowered by raising their losses.
            tasks.append(replace(task, column=len(tasks), weight=sign * weight))
    if options.reconstruction_weight:
        tasks.append(_plan_reconstruction(moments, options))
    return tuple(replace(t, ridge=ridge, with_intercept=with_intercept) for t in tasks)


def _plan_one(
    options: TaskOptions, role: str, column: Column, label: LabelMoments, n_records: int
) -> Task:
    kind: TaskKind = getattr(options, f"{role}_task")
    single_out = options.single_out if role == "confidential" else None
    if _is_read_as_classes(column, label, kind):
        _check_classes(role, column, label, n_records)
        counts = label.counts
        if single_out is not None:
            chosen = label.values == single_out
            if not chosen.any():
                raise refuse_class(column, single_out)
            counts = np.array([counts[chosen].sum(), counts[~chosen].sum()])
        return Task(
            name=column.name,
            role=role,
            classes=label.values,
            singled_out=np.nan if single_out is None else single_out,
            baseline=measure_entropy(counts),
        )
    if single_out is not None:
        raise refuse_number(column)
    # Relative to the mean: a large constant has a spread of rounding.
    spread = np.sqrt(label.spread / n_records)
    if not spread > 1e-12 * abs(label.mean):
        raise InputError(
            f"The {role} variable {column.name!r} is constant in the training records.",
            remedy="Train on records in which it varies, or leave it out.",
            code="single_class",
        )
    return Task(
        name=column.name, role=role, centre=np.array([label.mean]), scale=np.array([spread])
    )


def _is_read_as_classes(column: Column, label: LabelMoments, kind: TaskKind) -> bool:
    """Whether the variable is read as classes."""
    if column.is_categorical:
        return True
    if kind == "auto":
        # A year or a count of children is a class; a weight that happens to be whole has too many
        # values.
        whole = bool((label.values == np.round(label.values)).all())
        return not label.overflowed and whole and len(label.values) <= MAX_AUTO_CLASSES
    if kind == "classification" and label.overflowed:
        raise InputError(
            f"The variable {column.name!r} has too many distinct values for classes.",
            remedy='Bin it, or set the task to "regression".',
        )
    return kind == "classification"


def _check_classes(role: str, column: Column, label: LabelMoments, n_records: int) -> None:
    k, values = column.n_categories, label.values
    if k is not None and (label.overflowed or not np.isin(values, np.arange(k)).all()):
        raise InputError(
            f"The {role} variable {column.name!r} has codes outside 0 .. {k - 1}.",
            remedy="Leave those records out, or correct codes or number of categories.",
            code="labels_out_of_range",
        )
    if len(values) < 2:
        raise InputError(
            f"The {role} variable {column.name!r} has a single class in the training records.",
            remedy="Train on records of at least two classes, or leave the variable out.",
            code="single_class",
        )
    # With a class for every record a head predicts all of them, whatever the filter.
    if n_records <= len(values):
        raise InputError(
            f"{n_records} training records are too few for the {len(values)} classes of "
            f"the {role} variable {column.name!r}.",
            remedy="Train on more records than classes.",
            code="too_few_records",
        )


def _plan_reconstruction(moments: LabelledMoments, options: TaskOptions) -> Task:
    total = float(np.trace(moments.covariance))
    return Task(
        name="features",
        role="features",
        weight=options.tradeoff * options.reconstruction_weight,
        centre=moments.mean,
        # One scale for all features: the loss is a share of their whole variance.
        scale=np.full(len(moments.mean), np.sqrt(max(total, 1e-300))),
    )


def check_width(n_filtered: int, n_features: int) -> None:
    """Raise OptionError unless ``1 <= n_filtered <= n_features``."""
    if not 1 <= n_filtered <= n_features:
        raise _too_wide(f"n_filtered is {n_filtered} for", n_features)


def check_reduced_width(desired: Sequence[Column], n_features: int) -> None:
    """Raise OptionError if the reduced form has more outputs than records have features.

    It has one less than the classes of each desired variable, and one for a number.
    """
    n_useful = sum(max(1, (column.n_categories or 2) - 1) for column in desired)
    if n_useful > n_features:
        classes = f"the classes of {', '.join(c.name for c in desired)}"
        raise _too_wide(
            f"n_filtered is not set, and {classes} need {n_useful} outputs of", n_features
        )


def _too_wide(problem: str, n_features: int) -> OptionError:
    return OptionError(
        f"{problem} records of {n_features} features. Outputs of a linear filter are sums of the "
        f"features: more than {n_features} of them add nothing.",
        remedy=f"Set n_filtered to 1 to {n_features}.",
    )


def warn_of_outputs(n_outputs: int, n_features: int) -> None:
    """Warn of a curved filter that releases more numbers than a record has.

    It is not refused: many classes of few features may need them.
    """
    if n_outputs > n_features:
        _warn(
            f"The filter releases {n_outputs} numbers of records of {n_features} features: so many "
            "can hold whole records, and adversaries that are not trained against may find what "
            f"is confidential. Usual are 1 to {n_features} outputs."
        )


def warn_of_width(n_filtered: int, n_useful: int) -> None:
    """Warn of filter outputs that help no target and serve adversaries."""
    if n_filtered > n_useful:
        _warn(
            f"n_filtered is {n_filtered}; the targets use {n_useful} outputs. The other "
            f"{n_filtered - n_useful} add no utility for linear predictors and leak to "
            "adversaries that are not linear."
        )


def _warn(text: str) -> None:
    warnings.warn(text, PrivacyWarning, stacklevel=4)
