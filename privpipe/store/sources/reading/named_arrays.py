"""Named arrays with one row per record as a source: such as an .npz file or a Zarr group."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from privpipe.errors import FormatError, InputError, LeftOutWarning, OptionError
from privpipe.records.schema import suggest
from privpipe.store.access.location import shown
from privpipe.store.sources.reading.roles import check_names, check_variable_name
from privpipe.store.sources.reading.source import Block, Coded, Kind, SourceLayout, SourceVariable

FEATURE_NAMES = ("features", "X", "x", "data")
"""Names under which features are looked for, in this order."""

_KINDS: dict[str, Kind] = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}
_KINDS |= {"U": "text", "S": "text", "T": "text", "O": "text"}


class NamedColumn(Protocol):
    """An array whose rows can be read in order."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def dims(self) -> tuple[str, ...]:
        """What it lies along, by name; empty where that is not known."""
        ...

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]: ...


class ArraySource:
    """Named arrays with one row per record; one partition.

    Parameters
    ----------
    columns
        The arrays.
    layout
        Which one is what.
    url
        Where they are.

    Raises
    ------
    InputError
        If there are no features, or arrays do not fit.
    OptionError
        If an option names an array that is not there.
    """

    def __init__(self, columns: Mapping[str, NamedColumn], layout: SourceLayout, url: str) -> None:
        if layout.label_file is not None:
            raise OptionError(
                "--label-file belongs to tables.", remedy="Name arrays with --labels instead."
            )
        name = _find_features(columns, layout, url)
        self._features = columns[name]
        dims = self._features.dims
        # The coordinate of a dimension has its name; that of the features holds theirs.
        labels = ("feature_names", *dims[1:])
        self.partitions = (url.rstrip("/").rpartition("/")[2],)
        rest = {k: v for k, v in columns.items() if k != name and _is_along(v, self._features)}
        self._groups = _name_variables(rest, self.n_records, layout, url)
        self._forced_text = frozenset(layout.categorical)
        named = [key for key in labels if _has_names(columns, key, self.n_features)][:1]
        self.feature_names = _read_names(columns, named[0], self.n_features) if named else ()
        if layout.labels is None:
            taken = {key for key, group in rest.items() if any(group is c for _, c in self._groups)}
            _say_left_out(columns, {name, *named, *taken, *layout.drop, "target_names"}, url)
        kept = [name for names, _ in self._groups for name in names if name not in layout.drop]
        for variable in kept:
            check_variable_name(variable)
        check_names([*self.feature_names, *kept], shown(url))
        self._dropped = frozenset(layout.drop)
        names = [item.name for item in self._all_variables()]
        for wanted in (*layout.categorical, *layout.numeric, *layout.drop):
            if wanted not in (*names, *columns):
                raise OptionError(
                    f"{shown(url)} has no variable {wanted!r}{suggest(wanted, names)}.",
                    remedy=f"It has: {', '.join(names) or 'none'}.",
                    code="missing-variable",
                )

    @property
    def n_records(self) -> int:
        return self._features.shape[0]

    @property
    def n_features(self) -> int:
        return self._features.shape[1]

    @property
    def features_dtype(self) -> np.dtype[Any]:
        dtype = self._features.dtype
        narrow = dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize <= 2)
        narrow |= dtype.kind == "f" and dtype.itemsize <= 4
        return np.dtype(np.float32 if narrow else np.float64)

    @property
    def variables(self) -> tuple[SourceVariable, ...]:
        return tuple(item for item in self._all_variables() if item.name not in self._dropped)

    def blocks(self, rows: int, *, with_features: bool = True) -> Iterator[Block]:
        """Read consecutive blocks; see `RecordSource`."""
        kept = {item.name for item in self.variables}
        columns = [column.blocks(rows) for _, column in self._groups]
        starts = range(0, self.n_records, rows)
        features: Iterator[npt.NDArray[Any]] = (
            self._features.blocks(rows)
            if with_features
            else (np.empty((min(rows, self.n_records - start), 0)) for start in starts)
        )
        for block, *values in zip(features, *columns, strict=True):
            variables: dict[str, npt.NDArray[Any] | Coded] = {}
            for (names, _), table in zip(self._groups, values, strict=True):
                table = table[:, None] if table.ndim == 1 else table
                for j, name in enumerate(names):
                    if name in kept:
                        variables[name] = _as_values(table[:, j])
            yield Block(0, len(block), block, variables)

    def _all_variables(self) -> Iterator[SourceVariable]:
        for names, column in self._groups:
            for name in names:
                yield SourceVariable(name, _KINDS[column.dtype.kind])


def _find_features(columns: Mapping[str, NamedColumn], layout: SourceLayout, url: str) -> str:
    if len(layout.features) > 1:
        raise OptionError(
            f"--features names {len(layout.features)} arrays, and {shown(url)} holds arrays.",
            remedy="Name the one array that holds all features.",
        )
    name = next(iter(layout.features or [n for n in FEATURE_NAMES if n in columns]), None)
    if name is None or name not in columns:
        wanted = f"{name!r}" if name else f"any of {', '.join(FEATURE_NAMES)}"
        raise InputError(
            f"{shown(url)} has no array {wanted}{suggest(name or '', columns)}.",
            remedy=f"Name one with --features; it has: {', '.join(columns) or 'none'}.",
            code="missing-variable",
        )
    shape, dtype = columns[name].shape, columns[name].dtype
    if len(shape) != 2 or dtype.kind not in "biuf":
        raise InputError(
            f"The features {name!r} have shape {shape} and dtype {dtype}.",
            remedy="Features are a matrix of real numbers, one row per record.",
        )
    return name


def _name_variables(
    columns: Mapping[str, NamedColumn], n_records: int, layout: SourceLayout, url: str
) -> list[tuple[tuple[str, ...], NamedColumn]]:
    _check_kinds(columns, n_records, layout, url)
    fitting = {
        name: column
        for name, column in columns.items()
        if column.shape[:1] == (n_records,)
        and len(column.shape) <= 2
        and column.dtype.kind in _KINDS
    }
    for name in layout.labels or ():
        if name not in fitting:
            raise InputError(
                f"{shown(url)} has no array {name!r} of {n_records} rows{suggest(name, fitting)}.",
                remedy=f"It has: {', '.join(fitting) or 'none'}.",
                code="missing-variable",
            )
    chosen = fitting if layout.labels is None else {n: fitting[n] for n in layout.labels}
    named = [
        (_column_names(name, column, columns, layout), column)
        for name, column in chosen.items()
        if name not in layout.drop
    ]
    names = [name for group, _ in named for name in group]
    twice = {name for name in names if names.count(name) > 1} | ({"features"} & set(names))
    if twice:
        raise InputError(
            f"The variable names {', '.join(sorted(twice))} stand twice.",
            remedy="Give other names with --label-names.",
            code="duplicate-names",
        )
    return named


def _check_kinds(
    columns: Mapping[str, NamedColumn], n_records: int, layout: SourceLayout, url: str
) -> None:
    """An array of one value per record that cannot be stored must not be left out unseen."""
    wanted = columns if layout.labels is None else layout.labels
    for name, column in columns.items():
        fits = column.dtype.kind in _KINDS and len(column.shape) <= 2
        if column.shape[:1] == (n_records,) and not fits and name in wanted:
            if name not in layout.drop:
                raise InputError(
                    f"The array {name!r} of {shown(url)} is neither numbers nor text "
                    f"({column.dtype}, shape {column.shape}).",
                    remedy="Leave it out with --drop, or store numbers or text instead.",
                    code="column-type",
                )


def _is_along(column: NamedColumn, features: NamedColumn) -> bool:
    """Whether an array may hold a value per record: not if its dimension is named another."""
    if not column.dims or not features.dims:
        return True
    return column.dims[0] == features.dims[0]


def _has_names(columns: Mapping[str, NamedColumn], name: str, count: int) -> bool:
    column = columns.get(name)
    return column is not None and column.shape == (count,) and column.dtype.kind in "UTSOiu"


def _say_left_out(columns: Mapping[str, NamedColumn], known: set[str], url: str) -> None:
    """Name the arrays that a collection has no place for: nothing is lost unseen."""
    lost = [
        f"{name} (along {', '.join(column.dims)})" if column.dims else name
        for name, column in columns.items()
        if name not in known
    ]
    if lost:
        warnings.warn(
            f"{shown(url)}: {', '.join(lost)} hold no value per record, and are left out of the "
            "collection and of every release.",
            LeftOutWarning,
            stacklevel=7,
        )


def _column_names(
    name: str, column: NamedColumn, columns: Mapping[str, NamedColumn], layout: SourceLayout
) -> tuple[str, ...]:
    if len(column.shape) == 1:
        return (name,)
    width = column.shape[1]
    if layout.label_names is not None and len(layout.label_names) == width:
        return layout.label_names
    return _read_names(columns, "target_names", width) or tuple(f"{name}_{j}" for j in range(width))


def _read_names(columns: Mapping[str, NamedColumn], name: str, count: int) -> tuple[str, ...]:
    column = columns.get(name)
    if column is None or column.shape != (count,):
        return ()
    return tuple(
        str(value)
        for block in column.blocks(max(1, count))
        for value in (_decode(block) if block.dtype.kind == "S" else block)
    )


def _as_values(values: npt.NDArray[Any]) -> npt.NDArray[Any] | Coded:
    """Numbers as they are, text coded."""
    if values.dtype.kind not in "USTO":
        return values.astype(values.dtype.newbyteorder("="), copy=False)
    text = _decode(values) if values.dtype.kind == "S" else values
    codes, names = pd.factorize(text.astype(np.str_).astype(object))
    missing = [i for i, name in enumerate(names) if name in ("", "nan", "None", "<NA>")]
    codes = np.where(np.isin(codes, missing), -1, codes)
    return Coded(codes, tuple(str(name) for name in names))


def _decode(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with suppress(UnicodeDecodeError):
        return np.char.decode(values, "utf-8", "strict")
    raise FormatError(
        "An array of bytes is not text in UTF-8.",
        remedy="Store it as text, or leave it out with --drop.",
        code="encoding",
    )
