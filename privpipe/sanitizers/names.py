"""Names of the features that a fitted map reads, so that a table is read by name.

Names belong to a map as it is held, not to what it is: they are kept beside its fields, stored in
the header of its model, and change neither its digest nor what it does with plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from privpipe.errors import InputError
from privpipe.protocols import RecordMap, Shards

__all__ = ["by_name", "keep_names", "names_of", "with_names"]

M = TypeVar("M", bound=RecordMap)
P = ParamSpec("P")

_NAMES = "_feature_names"

MOST_NAMED = 8
"""Most names in a message."""


def with_names(fitted: M, names: Sequence[str]) -> M:
    """The same map, knowing the names of what it reads; unchanged where they do not fit."""
    if len(names) != fitted.n_features_in or len(set(names)) < len(names):
        return fitted
    named = copy(fitted)
    object.__setattr__(named, _NAMES, tuple(names))  # frozen, and no field of it
    return named


def names_of(fitted: Any) -> tuple[str, ...]:
    """Names of the features that a map reads; empty where they are not known."""
    return tuple(getattr(fitted, _NAMES, ()))


def keep_names(fit: Callable[P, M]) -> Callable[P, M]:
    """Decorate a fit: the map knows the names of the training records' features."""

    @wraps(fit)
    def fit_named(*args: P.args, **kwargs: P.kwargs) -> M:
        shards: Any = args[0] if args else kwargs.get("shards")
        fitted = fit(*args, **kwargs)
        return with_names(fitted, _names_of_shards(shards, fitted.reads))

    return fit_named


def _names_of_shards(shards: Shards, reads: str) -> tuple[str, ...]:
    schema = shards.schema
    if reads == "attributes":
        return tuple(column.name for column in schema.attributes)
    return schema.feature_names


def by_name(fitted: Any, x: Any) -> Any:
    """Records as a map reads them: a table's columns in the order of the map's names.

    Parameters
    ----------
    fitted
        The map.
    x : (n_records, n_features)
        An array, taken as it is; or a data frame or labelled array, whose columns are found by
        name. Columns that are named by numbers alone have no names.

    Raises
    ------
    InputError
        If columns are missing, stand twice, or are more than the map reads; with their names.
    """
    names, columns = names_of(fitted), _columns_of(x)
    if not names or not columns or columns == names:
        return x
    missing = [name for name in names if name not in columns]
    extra = [name for name in columns if name not in names]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    problems = {"lack": missing, "have too many": extra, "hold twice": twice}
    told = [f"{what} {_listed(found)}" for what, found in problems.items() if found]
    if told:
        raise InputError(
            f"Records {'; '.join(told)}, compared with the {len(names)} features of the map.",
            remedy=f"Give the columns {_listed(names)}, in any order.",
            code="columns",
        )
    return x.sel({x.dims[1]: list(names)}) if hasattr(x, "dims") else x[list(names)]


def _columns_of(x: Any) -> tuple[str, ...]:
    """Names of the columns of a table; empty for what has none."""
    found: Any = getattr(x, "columns", None)
    dims: tuple[Any, ...] = tuple(getattr(x, "dims", ()))
    if found is None and len(dims) == 2 and dims[1] in getattr(x, "coords", ()):
        found = x.coords[dims[1]].to_numpy().tolist()
    columns = () if found is None or callable(found) else tuple(found)
    return columns if all(isinstance(name, str) for name in columns) else ()


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + rest
