"""Named arrays with one row per record as a source: such as an .npz file or a Zarr group."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from privpipe.errors import InputError, LeftOutWarning, OptionError, SourceError, StoreError
from privpipe.protocols import AnyArray
from privpipe.records.schema import explain_unknown, suggest
from privpipe.store.access.location import guard_read, shown
from privpipe.store.sources.reading import roles, source
from privpipe.store.sources.reading.source import Block, RecordSource, SourceLayout

FEATURE_NAMES = ("features", "X", "x", "data")
"""Names under which features are looked for, in this order."""

_KINDS: dict[str, source.Kind] = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}
_KINDS |= {"U": "text", "S": "text", "T": "text", "O": "text"}


@dataclass(frozen=True, eq=False)
class NamedArray:
    """An array whose rows can be read in order.

    Parameters
    ----------
    shape, dtype
        Of the array.
    blocks
        Called with a number of rows; yields consecutive blocks of at most so many.
    dims
        What it lies along, by name; empty where that is not known.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[int], Iterator[AnyArray]]
    dims: tuple[str, ...] = ()

    def is_along(self, n_records: int) -> bool:
        """Whether it has a value or a row of values per record, of a kind that can be stored."""
        return self.dtype.kind in _KINDS and len(self.shape) <= 2 and self.shape[:1] == (n_records,)


def open_arrays(arrays: Mapping[str, NamedArray], layout: SourceLayout, url: str) -> RecordSource:
    """Named arrays with one row per record as a source of one partition.

    Parameters
    ----------
    arrays
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
    name = _find_features(arrays, layout, url)
    features = arrays[name]
    n_records, n_features = features.shape
    # By its dimension, where it has a name, an array is known to hold a value per record.
    rest = {
        key: array
        for key, array in arrays.items()
        if key != name and (not array.dims or array.dims[0] in (features.dims or array.dims)[:1])
    }
    groups = _name_variables(rest, n_records, layout, url)
    # The coordinate of a dimension has its name; that of the features holds theirs.
    keys = [k for k in ("feature_names", *features.dims[1:]) if _read_names(arrays, k, n_features)]
    feature_names = _read_names(arrays, keys[0], n_features) if keys else ()
    if layout.labels is None:
        _say_left_out(arrays, {name, *keys[:1], *groups, *layout.drop, "target_names"}, url)
    columns = [
        source.SourceVariable(c, "text" if c in layout.categorical else _KINDS[rest[k].dtype.kind])
        for k, found in groups.items()
        for c in found
    ]
    variables = tuple(one for one in columns if one.name not in layout.drop)
    for variable in variables:
        roles.check_variable_name(variable.name)
    roles.check_names([*feature_names, *(one.name for one in variables)], shown(url))
    known = [one.name for one in columns]
    for given in (*layout.categorical, *layout.numeric, *layout.drop):
        # Of a matrix each column is said, by its name.
        if given not in known and (given in groups or given not in arrays):
            raise explain_unknown(f"{shown(url)} has no variable", given, known, OptionError)

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        tables = [_guard(rest[group].blocks(rows), group, url) for group in groups]
        sizes = (min(rows, n_records - start) for start in range(0, n_records, rows))
        blocks: Iterator[AnyArray] = (np.empty((size, 0)) for size in sizes)
        if with_features:
            blocks = _guard(features.blocks(rows), name, url)
        for block, *values in zip(blocks, *tables, strict=True):
            found = {
                c: _as_values(table.reshape(len(table), -1)[:, j], c in layout.categorical)
                for names, table in zip(groups.values(), values, strict=True)
                for j, c in enumerate(names)
                if c not in layout.drop
            }
            yield Block(0, len(block), block, found)

    # The significand of float32 has 24 bits.
    is_narrow = features.dtype.itemsize <= {"b": 1, "i": 2, "u": 2, "f": 4}[features.dtype.kind]
    dtype = np.dtype(np.float32 if is_narrow else np.float64)
    partitions = (url.rstrip("/").rpartition("/")[2],)
    return RecordSource(feature_names, n_features, dtype, variables, partitions, read)


def _guard(blocks: Iterator[AnyArray], name: str, url: str) -> Iterator[AnyArray]:
    """The blocks of an array; StoreError, without what was read, where one cannot be read."""
    start, read = 0, partial(next, blocks, None)
    while True:
        problem = f"The array {name!r} of {shown(url)} cannot be read from record {start} on"
        remedy = "It is damaged, cut short or unreachable: get it again."
        block = guard_read(read, StoreError, problem, remedy=remedy, code="read")
        if block is None:
            return
        yield block
        start += len(block)


def _find_features(arrays: Mapping[str, NamedArray], layout: SourceLayout, url: str) -> str:
    if len(layout.features) > 1:
        problem = f"--features names {len(layout.features)} arrays, and {shown(url)} holds arrays."
        raise OptionError(problem, remedy="Name the one array that holds all features.")
    name = next(iter(layout.features or [n for n in FEATURE_NAMES if n in arrays]), None)
    if name is None or name not in arrays:
        what = f"{name!r}" if name else f"any of {', '.join(FEATURE_NAMES)}"
        problem = f"{shown(url)} has no array {what}{suggest(name or '', arrays)}"
        remedy = f"Name one with --features; it has: {', '.join(arrays) or 'none'}."
        raise InputError(problem, remedy=remedy, code="missing-variable")
    shape, dtype = arrays[name].shape, arrays[name].dtype
    if len(shape) != 2 or dtype.kind not in "biuf":
        problem = f"The features {name!r} have shape {shape} and dtype {dtype}."
        remedy = "Features are a matrix of real numbers, one row per record."
        raise InputError(problem, remedy=remedy)
    return name


def _name_variables(
    arrays: Mapping[str, NamedArray], n_records: int, layout: SourceLayout, url: str
) -> dict[str, tuple[str, ...]]:
    """Names of the variables that each array becomes: a matrix one per column."""
    fitting = [name for name, array in arrays.items() if array.is_along(n_records)]
    groups: dict[str, tuple[str, ...]] = {}
    for name in arrays if layout.labels is None else layout.labels:
        array = arrays.get(name)
        if name in fitting and name not in layout.drop:
            groups[name] = _name_columns(name, arrays)
        elif array is not None and array.shape[:1] == (n_records,) and name not in layout.drop:
            # It must not be left out unseen.
            problem = f"The array {name!r} of {shown(url)} is no numbers or text ({array.dtype})."
            remedy = "Leave it out with --drop, or store numbers or text instead."
            raise InputError(problem, remedy=remedy, code="column-type")
        elif name not in fitting and layout.labels is not None:
            raise explain_unknown(f"{shown(url)} has no array of {n_records} rows", name, fitting)
    return groups


def _say_left_out(arrays: Mapping[str, NamedArray], known: set[str], url: str) -> None:
    """Name the arrays that a collection has no place for: nothing is lost unseen."""
    lost = [
        f"{name} (along {', '.join(array.dims)})" if array.dims else name
        for name, array in arrays.items()
        if name not in known
    ]
    if lost:
        warnings.warn(
            f"{shown(url)}: {', '.join(lost)} hold no value per record, and are left out of the "
            "collection and of every release.",
            LeftOutWarning,
            stacklevel=7,
        )


def _name_columns(name: str, held: Mapping[str, NamedArray]) -> tuple[str, ...]:
    if len(held[name].shape) == 1:
        return (name,)
    width = held[name].shape[1]
    return _read_names(held, "target_names", width) or tuple(f"{name}_{j}" for j in range(width))


def _read_names(arrays: Mapping[str, NamedArray], name: str, count: int) -> tuple[str, ...]:
    """As many names as an array of text or whole numbers holds; else none."""
    array = arrays.get(name)
    if array is None or array.shape != (count,) or array.dtype.kind not in "UTSOiu":
        return ()
    return tuple(str(value) for block in array.blocks(max(1, count)) for value in _decode(block))


def _as_values(values: AnyArray, is_class: bool) -> AnyArray | source.Coded:
    """Numbers as they are, text and whole numbers that are said to be classes coded."""
    if values.dtype.kind not in ("USTOiu" if is_class else "USTO"):
        return values.astype(values.dtype.newbyteorder("="), copy=False)
    codes, names = pd.factorize(_decode(values).astype(np.str_).astype(object))
    # How NumPy, pandas and xarray write a missing text.
    missing = [i for i, name in enumerate(names) if name in ("", "nan", "None", "<NA>")]
    codes = np.where(np.isin(codes, missing), -1, codes)
    return source.Coded(codes, tuple(str(name) for name in names))


def _decode(values: AnyArray) -> AnyArray:
    """Text of bytes; anything else as it is."""
    if values.dtype.kind != "S":
        return values
    with suppress(UnicodeDecodeError):  # its text quotes a value
        return np.char.decode(values, "utf-8", "strict")
    problem = "An array of bytes is not text in UTF-8."
    remedy = "Store it as text, or leave it out with --drop."
    raise SourceError(problem, remedy=remedy, code="encoding")
