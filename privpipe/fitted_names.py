"""What a fitted map was fitted on, stored with it, so that a table is read by name.

Names belong to a map as it is held: they are held beside its fields and stored in the header of
its model. They change nothing of what it does with plain arrays of features.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import wraps
from inspect import signature
from itertools import chain
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.fitted_schema import UNKNOWN, FittedSchema, NamedCodes
from privpipe.numerics.finite import fill_codes, fill_masked
from privpipe.protocols import AnyArray, BoolArray, Column, IntArray, RecordMap, Shards

M = TypeVar("M", bound=RecordMap)
R = TypeVar("R")
P = ParamSpec("P")

_NAMES, _SCHEMA = "_feature_names", "_fitted_schema"

MOST_NAMED = 8
"""Most names in a message."""


def with_names(fitted: M, names: Sequence[str]) -> M:
    """The same map, knowing the names of what it reads; unchanged where they do not fit."""
    # Names that do not fit are worse than none: a table would be read wrongly in silence.
    if len(names) != fitted.n_features_in or len(set(names)) < len(names):
        return fitted
    named = copy(fitted)
    object.__setattr__(named, _NAMES, tuple(names))  # frozen, and no field of it
    return named


def names_of(fitted: Any) -> tuple[str, ...]:
    """Names of the features that a map reads; empty where they are not known."""
    return tuple(getattr(fitted, _NAMES, ()))


def with_schema(fitted: M, schema: FittedSchema) -> M:
    """The same map, knowing what it was fitted on; unchanged where that names nothing."""
    attributes = fitted.reads == "attributes"
    names = [c.name for c in schema.attributes] if attributes else schema.feature_names
    if not schema.knows_names:
        return with_names(fitted, names)
    known = copy(with_names(fitted, names))
    object.__setattr__(known, _SCHEMA, schema)  # frozen, and no field of it
    return known


def schema_of(fitted: Any) -> FittedSchema | None:
    """What a map was fitted on; None where that is not known or names nothing."""
    return getattr(fitted, _SCHEMA, None)


def check_options(fit: Callable[P, R]) -> Callable[P, R]:
    """Decorate a fit: options of another type are named, before anything is read."""
    known = signature(fit, eval_str=True).parameters.values()
    hints = [one.annotation for one in known if one.name == "options"]
    kinds = tuple(chain.from_iterable(get_args(hint) or (hint,) for hint in hints))

    @wraps(fit)
    def fit_checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = kwargs.get("options", args[1] if len(args) > 1 else None)
        if kinds and given is not None and not isinstance(given, kinds):
            problem = f"options is of type {type(given).__name__}."
            raise OptionError(problem, remedy=f"Give {kinds[0].__name__}(...).")
        return fit(*args, **kwargs)

    return fit_checked


def keep_names(fit: Callable[P, M]) -> Callable[P, M]:
    """Decorate a fit: the map knows the names of what it was fitted on. See `check_options`."""
    checked = check_options(fit)

    @wraps(fit)
    def fit_named(*args: P.args, **kwargs: P.kwargs) -> M:
        shards: Shards = args[0] if args else kwargs["shards"]  # type: ignore[assignment]
        return with_schema(checked(*args, **kwargs), FittedSchema.of(shards.schema))

    return fit_named


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
        If columns are missing, doubled, or are more than the map reads; with their names.
    """
    # Of a map without names, too: a table that comes back has room for one of two that are equal.
    columns = columns_of(x) if (names := names_of(fitted)) else distinct_columns(x)
    if getattr(x, "ndim", 2) == 1 and hasattr(x, "index"):  # one record of a data frame
        columns = _as_names(x.index)
    # Plain arrays are taken as they are; only a table whose columns have names can be reordered.
    if not names or not columns or columns == names:
        return x
    missing = [name for name in names if name not in columns]
    extra = [name for name in columns if name not in names]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    problems = {"lack": missing, "have too many": extra, "hold twice": twice}
    said = [f"{what} {_listed(found)}" for what, found in problems.items() if found]
    if said:
        problem = f"Records {'; '.join(said)}, compared with the {len(names)} features of the map."
        remedy = f"Give the columns {_listed(names)}, in any order."
        raise InputError(problem, remedy=remedy, code="columns")
    if hasattr(x, "column_names"):
        return x.select(list(names))
    return x.sel({x.dims[1]: list(names)}) if hasattr(x, "dims") else x[list(names)]


def giving_back(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `apply` of a map: a table whose columns have names comes back as such a table.

    A data frame of pandas or polars keeps its index and its columns' order, a labelled array its
    dimensions and coordinates. A data frame of Dask is mapped part by part. Released columns have
    the names of raw ones where they are the same features, else ``released_0`` and so on.
    """

    @wraps(apply)
    def apply_table(self: Any, x: Any, stream: Any = None, **more: Any) -> Any:
        if hasattr(x, "map_partitions") and hasattr(x, "divisions"):
            return _map_parts(self, x)
        released = apply(self, x, stream, **more)
        return _like(self, x, np.asarray(released)) if columns_of(x) else released

    return apply_table


def _map_parts(fitted: Any, x: Any) -> Any:
    """A lazy data frame, whose parts do not know how many records come before them."""
    if fitted.draws:
        raise OptionError(
            "The map draws by the number of each record, which a Dask data frame does not know.",
            remedy="Use privpipe.apply_lazily with x.to_dask_array(lengths=True).",
        )
    # Two invented records show names and types of what will come.
    return x.map_partitions(fitted.apply, meta=fitted.apply(x._meta_nonempty).iloc[:0])


def _like(fitted: Any, x: Any, released: AnyArray) -> Any:
    """Released records as a table of the kind of the raw ones."""
    given, known = columns_of(x), names_of(fitted)
    if fitted.keeps_features and released.shape[1] == len(given):
        names = given
        # They came in the map's order. Who assigns them by place gets each where it was.
        released = released[:, [known.index(name) for name in given] if known else slice(None)]
    else:
        names = tuple(f"released_{j}" for j in range(released.shape[1]))
    if hasattr(x, "dims"):
        along = x.dims[1]
        coords = {name: one for name, one in x.coords.items() if along not in one.dims}
        return type(x)(released, {**coords, along: list(names)}, x.dims, attrs=x.attrs)
    columns = dict(zip(names, released.T, strict=True))
    if not hasattr(x, "index"):  # polars and Arrow have none, and no numpy of objects
        make, mixed = getattr(type(x), "from_pydict", type(x)), released.dtype == object
        return make({name: one.tolist() if mixed else one for name, one in columns.items()})
    return type(x)(columns, index=x.index).infer_objects()


def columns_of(x: Any) -> tuple[str, ...]:
    """Names of the columns of a table; empty for what has none."""
    found: Any = getattr(x, "column_names", getattr(x, "columns", None))  # Arrow's are arrays
    found = None if isinstance(x, NamedCodes) else found  # its columns are no names
    dims: tuple[Any, ...] = tuple(getattr(x, "dims", ()))
    if found is None and len(dims) == 2 and dims[1] in getattr(x, "coords", ()):
        # Xarray names its columns by a coordinate of the second dimension.
        found = x.coords[dims[1]].to_numpy().tolist()
    return _as_names(() if found is None or callable(found) else tuple(found))


def _as_names(labels: Sequence[Any]) -> tuple[str, ...]:
    """Labels of text; none for others, which are read by place, so that their order must be one."""
    if all(isinstance(name, str) for name in labels):
        return tuple(labels)
    with suppress(TypeError):  # of mixed kinds
        if list(labels) == sorted(labels) or len(set(labels)) < len(labels):
            return ()
    problem = "The columns are not named by text alone and are in no ascending order."
    remedy = "Name them by text, as df.columns.astype(str) does, or bring them into order."
    raise InputError(problem, remedy=remedy, code="columns")


def distinct_columns(x: Any) -> tuple[str, ...]:
    """Names as of `columns_of`; InputError where two are equal: one column would be lost."""
    names = columns_of(x)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problem = f"Several columns are named {_listed(twice)}."
        remedy = "Give each column a name of its own."
        raise InputError(problem, remedy=remedy, code="duplicate-names")
    return names


def read_codes(fitted: Any, x: Any) -> IntArray:
    """Codes of records as a categorical map numbers them, (n_records, n_attributes).

    Parameters
    ----------
    fitted
        The map.
    x
        `NamedCodes`, or plain codes for a map that knows no names. Or the categories themselves: a
        data frame, or an array of text in the map's order.

    Raises
    ------
    InputError
        If they are plain codes and the map knows names: what they mean is not known.
    """
    schema = schema_of(fitted)
    named = schema is not None and any(c.categories is not None for c in schema.attributes)
    if isinstance(x, NamedCodes):
        return x.codes if schema is None else x.read_as(schema)
    if not named or schema is None:
        return np.asarray(by_name(fitted, fill_codes(x)))
    # Numbers without names: which category a code means depends on the table it comes from.
    if not columns_of(x) and np.asarray(x).dtype.kind not in "OUSTb":
        raise InputError(
            "Records are codes without names, which another table may number otherwise.",
            remedy="Give a data frame with the categories themselves, or NamedCodes of a "
            "collection's codes and schema.attributes.",
            code="schema-drift",
        )
    table = np.asarray(by_name(fitted, fill_masked(x)), object)
    if table.ndim != 2 or table.shape[1] != len(schema.attributes):
        problem = f"Records have shape {table.shape}, but the map reads {len(schema.attributes)}."
        remedy = f"Give the columns {_listed(names_of(fitted))}."
        raise InputError(problem, remedy=remedy, code="shape")
    coded = [_code(table[:, j], column) for j, column in enumerate(schema.attributes)]
    return np.column_stack(coded)


def name_codes(fitted: Any, codes: IntArray) -> AnyArray:
    """The categories that a map's codes mean; None where they are missing."""
    schema = schema_of(fitted)
    assert schema is not None, "what was read by name is named"
    columns = []
    for column, values in zip(schema.attributes, codes.T, strict=True):
        names = (*(column.categories or range(column.n_categories or 0)), None)
        # -1 is missing, and finds the None at the end.
        columns.append(np.array(names, object)[np.maximum(values, -1)])
    return np.column_stack(columns)


def _code(values: AnyArray, column: Column) -> IntArray:
    """Codes of categories; what is no text is written as an ingest writes it."""
    missing = find_missing(values)
    if column.categories is None:
        return np.where(missing, -1, values).astype(np.int64)
    places: dict[Any, int] = {name: code for code, name in enumerate(column.categories)}
    return np.where(missing, -1, [places.get(write_category(value), UNKNOWN) for value in values])


def find_missing(values: AnyArray) -> BoolArray:
    """None, NaN and what pandas has for them."""
    import pandas as pd  # slow to load

    return np.asarray(pd.isna(values))


def write_category(value: Any) -> str:
    """A value as text, as an ingest writes it: whole numbers without a decimal point."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()  # as Arrow writes them
    # 1.0 of one file and 1 of another are one category.
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def natural_order(text: str) -> tuple[int, float, str]:
    """Key of the natural order of categories: numbers by size, then text.

    >>> sorted(["10", "b", "9", "a"], key=natural_order)
    ['9', '10', 'a', 'b']
    """
    with suppress(ValueError):
        number = float(text)
        if number == number:  # not NaN
            return (0, number, text)
    return (1, 0.0, text)


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + rest
