"""What callers hand to fits, checked: predictors, training records, labels and weights."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from privpipe import protocols
from privpipe.errors import InputError, LeftOutWarning, OptionError, PrivacyWarning
from privpipe.numerics.finite import as_reals, find_finite_rows
from privpipe.numerics.moments import check_products
from privpipe.protocols import ArrayLike, BoolArray, FloatArray, Oracle, S, Shard, ShardSchema, Sums


def as_predictor(values: ArrayLike, name: str = "predictor") -> FloatArray:
    """A linear operator as a float64 matrix (n_features, n_predictions); one column if flat.

    Raises
    ------
    InputError
        If it is empty, not a matrix, or holds values that are not finite.
    """
    a = as_reals(values, name).astype(np.float64, copy=False)
    a = a[:, None] if a.ndim == 1 else a
    problem = ""
    if a.ndim != 2 or a.size == 0:
        problem = f"has shape {a.shape}"
    elif bad := int(np.count_nonzero(~np.isfinite(a))):
        problem = f"holds {bad} of {a.size} values that are not finite"
    if problem:
        remedy = "Give a finite matrix of shape (n_features, n_predictions)."
        raise InputError(f"The {name} {problem}.", remedy=remedy, code="predictor")
    return a


def as_finite(values: ArrayLike | None, shape: tuple[int, ...], name: str) -> FloatArray:
    """A finite float64 array of that shape; zeros when none is given."""
    array = np.zeros(shape) if values is None else as_reals(values, name).astype(np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        problem = f"{name} has shape {array.shape} or is not finite."
        raise InputError(problem, remedy=f"Give a finite array of shape {shape}.")
    return array


def check_spread(what: str, variance: FloatArray, mean: FloatArray) -> None:
    """Raise InputError if features, or other columns, are all constant but for rounding."""
    # Of constants sums leave rounding.
    if variance.sum() <= 1e-24 * (mean @ mean):
        raise InputError(
            f"No {what} varies in the training records: there is nothing to learn.",
            remedy="Train on records that differ, or look for what made them equal.",
            code="constant_features" if what == "feature" else "single_class",
        )


def check_shards(shards: Any, *, products: bool = False) -> None:
    """Raise InputError unless `shards` answers as training records do.

    Parameters
    ----------
    products
        Whether products of features are summed up: of too many their matrix has no place.

    Warns
    -----
    PrivacyWarning
        If a variable is desired and confidential: no method can keep and hide the same.
    """
    if not isinstance(getattr(shards, "schema", None), ShardSchema):
        raise InputError(
            f"Training records are of type {type(shards).__name__}.",
            remedy="Give privpipe.Records(x, desired=..., confidential=...) for arrays, or "
            "privpipe.open_collection(url, desired=...).",
            code="not-shards",
        )
    schema = shards.schema
    if products:
        check_products(schema.n_features)
    both = {c.name for c in schema.desired} & {c.name for c in schema.confidential}
    # Records of arrays know by themselves which arrays are one and the same.
    both |= set(getattr(shards, "shared", ()))
    if both:
        warnings.warn(
            f"Desired and confidential share {', '.join(sorted(both))}: whoever gets the target "
            "prediction gets the confidential one, and no privacy is possible.",
            PrivacyWarning,
            stacklevel=3,
        )


Change: TypeAlias = Callable[[Shard], Shard]
"""What a fit sees of a shard."""

Solve: TypeAlias = Callable[[Any, Any], Any]
"""Of shards, and of a problem about them."""


@dataclass(frozen=True, eq=False)
class ChangedShards:
    """Shards of which a fit or an audit sees what is made of each, where the records are.

    Parameters
    ----------
    inner
        The records themselves.
    change
        Worker side: what is made of a shard; the same in every round.
    schema
        Of what is made.
    """

    inner: protocols.Shards
    change: Change
    schema: ShardSchema

    @property
    def n_records(self) -> int:
        return self.inner.n_records

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """See `Shards.reduce`."""
        return self.inner.reduce(self.change_first(summarise))

    def change_first(self, summarise: Callable[[Shard], S]) -> Callable[[Shard], S]:
        """The query to the records themselves: each shard is changed before it is summarised."""
        return partial(_summarise_changed, summarise, self.change)

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """See `Shards.oracle`."""
        return self.inner.oracle(_ask_changed, _function=function, _change=self.change, **resident)

    def spread(self, solve: Solve, problems: Sequence[Any]) -> list[Any]:
        """See `spread`."""
        changed = partial(_solve_changed, solve, self.change, self.schema)
        return spread(self.inner, changed, problems)


def spread(shards: Any, solve: Solve, problems: Sequence[Any]) -> list[Any]:
    """``solve(shards, problem)`` of each, in order, on a cluster perhaps each as a task."""
    elsewhere = getattr(shards, "spread", None)
    return elsewhere(solve, problems) if elsewhere else [solve(shards, one) for one in problems]


def _solve_changed(solve: Solve, change: Change, schema: ShardSchema, inner: Any, one: Any) -> Any:
    return solve(ChangedShards(inner, change, schema), one)


def _summarise_changed(summarise: Callable[[Shard], S], change: Change, shard: Shard) -> S:
    return summarise(change(shard))


def _ask_changed(
    shard: Shard, given: Any, *, _function: Callable[..., Sums], _change: Change, **resident: Any
) -> Sums:
    return _function(_change(shard), given, **resident)


def say_incomplete(n_incomplete: int, n_read: int, what: str) -> None:
    """Warn of records without a label, which a fit leaves out."""
    if n_incomplete:
        said = f"{n_incomplete:,} of {n_read:,} records have no {what} label: they are left out."
        warnings.warn(said, LeftOutWarning, stacklevel=3)


def check_training(features: FloatArray) -> None:
    """Raise InputError, with a count, if features to learn from are not finite."""
    bad = int(np.count_nonzero(~find_finite_rows(features)))
    if bad:
        raise InputError(
            f"{bad} of {len(features)} training records hold features that are not finite.",
            remedy='Remove or impute them before training; in a run [release] nonfinite = "impute" '
            'or "withhold" does.',
            code="nonfinite",
        )


def check_unweighted(schema: ShardSchema) -> None:
    """Raise OptionError if records have weights, for fits that count every record once."""
    if schema.weighted:
        problem = "This method counts every record once, but the records have weights."
        remedy = "Leave the weights out, or use null-space cleaning or LEACE."
        raise OptionError(problem, remedy=remedy, code="weights")


def check_confidential(values: ArrayLike, predictor: FloatArray) -> FloatArray:
    """A confidential predictor that fits the desired one; warns where it is a function of it."""
    confidential = as_predictor(values, "confidential predictor")
    if len(confidential) != len(predictor):
        problem = f"The confidential predictor has {len(confidential)} rows, not {len(predictor)}."
        raise InputError(problem, remedy="Give both for the same features.", code="predictor")
    if not confidential.any():
        problem = "The confidential predictor is zero: there is nothing to protect from."
        remedy = "Give a predictor that uses at least one feature, or use algorithm 1."
        raise InputError(problem, remedy=remedy, code="predictor")
    fitted = np.linalg.lstsq(predictor, confidential, rcond=None)[0]
    # Exact dependence but for rounding: a mere correlation is what cleaning is for.
    if np.linalg.norm(confidential - predictor @ fitted) <= 1e-9 * np.linalg.norm(confidential):
        warnings.warn(
            "The confidential predictor is a function of the desired one: whoever gets the target "
            "prediction gets the confidential one, and no privacy is possible.",
            PrivacyWarning,
            stacklevel=3,
        )
    return confidential


def read_labels(shard: Shard, rows: slice, schema: ShardSchema) -> tuple[FloatArray, BoolArray]:
    """Variables of some records, desired ones first, and which records have all of them.

    Returns
    -------
    labels : (n_rows, n_desired + n_confidential)
    complete : (n_rows,)
        False where a variable is NaN, or the code of a categorical one is negative.
    """
    labels = np.concatenate([shard.desired[rows], shard.confidential[rows]], axis=1)
    # A negative number is a value of a numeric variable, and a missing category of the others.
    coded = np.array([c.is_categorical for c in (*schema.desired, *schema.confidential)], np.bool_)
    missing = ~np.isfinite(labels)
    missing[:, coded] |= labels[:, coded] < 0
    return labels, ~reduce(np.logical_or, missing.T, np.zeros(len(labels), np.bool_))
