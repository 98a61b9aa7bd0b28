"""Which columns of a table are features, which variables, and which are left out."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from privpipe.errors import InputError, OptionError, SourceError
from privpipe.records.schema import suggest
from privpipe.store.access.location import MOST_NAME_BYTES
from privpipe.store.sources.reading import source

MOST_COLUMNS = 2**16
"""Of a table: Arrow needs some kilobytes for each, whatever the column holds."""


LEAST_COUNTED, LEAST_DIFFERENT = 100, 1_000
"""First records by which a row number, and a key in any order, is surely no measurement."""

RESERVED = ("features", "zarr.json")
"""Names within a collection that are no variable's."""


_NESTED = ("list", "large_list", "fixed_size_list", "struct", "map", "dense_union", "sparse_union")
"""How Arrow begins the names of types that hold more than one value."""


@dataclass(frozen=True)
class Roles:
    """What each column of a table is for.

    Parameters
    ----------
    features
        Columns of the feature matrix, in the order of the table.
    variables
        Columns that become variables, likewise.
    forms
        How to read each variable.
    features_dtype
        float32 where it holds all features exactly, else float64.
    """

    features: tuple[str, ...]
    variables: tuple[source.SourceVariable, ...]
    forms: source.Forms
    features_dtype: np.dtype[np.floating]


def assign_roles(
    columns: source.Columns,
    layout: source.SourceLayout,
    labels: Sequence[str],
    where: str,
    locate: Callable[[str], str],
) -> Roles:
    """Decide from options and types what each column is for.

    Parameters
    ----------
    columns
        Columns of the table.
    layout
        The options.
    labels
        Columns that a list of labels beside the table names.
    where
        The table, for messages.
    locate
        Says where a column's first text is, or nothing.

    Raises
    ------
    OptionError
        If an option names a column that is not there (with the closest), or two roles for one.
    InputError
        If a name occurs twice, a feature is not a number, or a variable neither number nor text.
    SourceError
        If there are more than `MOST_COLUMNS`.
    """
    if len(columns) > MOST_COLUMNS:
        raise too_wide(where)
    check_names([c.name for c in columns], where, {c.name: c.label for c in columns})
    known = {column.name: column for column in columns}
    named = (*(layout.labels or ()), *labels, *layout.categorical, *layout.numeric)
    _check_known((*named, *layout.features, *layout.dates, *layout.drop), known, where)
    _check_apart(layout, named)
    if wrong := [known[name] for name in layout.dates if not known[name].is_date]:
        problem = f"{where} holds no dates in {_typed(wrong)}."
        remedy = "Write dates as 2024-07-01, times as 2024-07-01T09:30:00; leave others out."
        raise InputError(problem, remedy=remedy, code="column-type")
    chosen, variables = {*layout.features, *layout.dates}, set(named)
    left_over = [
        name
        for name, column in known.items()
        if name not in chosen | variables | set(layout.drop) and not column.optional
    ]
    if not layout.features:
        chosen |= set(left_over)
    elif layout.labels is None and not labels:
        variables |= set(left_over)
    features = [column for name, column in known.items() if name in chosen]
    _check_features([c for c in features if c.name not in layout.dates], where, locate)
    rest = [c for name, c in known.items() if name in variables - set(layout.drop)]
    as_text, is_narrow = set(layout.categorical), all(column.narrow for column in features)
    _check_variables(rest, layout, where)
    return Roles(
        features=tuple(column.name for column in features),
        variables=tuple(
            source.SourceVariable(c.name, "text" if c.name in as_text else _kind(c, layout))
            for c in rest
        ),
        forms={column.name: _form(column, layout) for column in rest},
        features_dtype=np.dtype(np.float32 if is_narrow else np.float64),
    )


def check_names(names: Sequence[str], where: str, labels: Mapping[str, str] | None = None) -> None:
    """Refuse names that occur twice.

    Parameters
    ----------
    names
        The names.
    where
        What has them, for messages.
    labels
        How messages call them, where their names are not to be published.

    Raises
    ------
    InputError
        With the names.
    """
    twice = sorted((labels or {}).get(name, name) for name, n in Counter(names).items() if n > 1)
    if twice:
        problem = f"{where} has several columns named {list_names(twice)}."
        remedy = "Give each column a name of its own; an array target_names has a matrix's."
        raise InputError(problem, remedy=remedy, code="duplicate-names")


def check_schema(names: Iterable[str], columns: source.Columns, where: str) -> None:
    """Refuse a table whose columns are not those of its schema: all it lacks, all it adds.

    Raises
    ------
    InputError
        With the names; `details` has all of them.
    """
    known = [source.TableColumn(name, "text", "") for name in dict.fromkeys(names)]
    here = [column for column in columns if not column.optional]
    check_drift(known, here, where, with_types=False, against="its schema")


def check_variable_name(name: str) -> None:
    """Refuse a name that cannot be that of an array beside the features.

    Raises
    ------
    InputError
        With the name.
    """
    n_bytes = len(name.encode(errors="replace"))
    is_taken = name in RESERVED or "/" in name or name.startswith((".", "__")) or not name
    if is_taken or n_bytes > MOST_NAME_BYTES or "\0" in name:
        cut = name if len(name) <= 40 else f"{name[:40]}..."
        raise InputError(
            f"A variable cannot be named {cut!r} ({n_bytes} bytes).",
            remedy="Rename it: 'features', 'zarr.json', slashes, a leading dot or two underscores "
            f"are taken. An array has a name of at most {MOST_NAME_BYTES} bytes without a null "
            "character.",
            code="reserved-name",
        )


def too_wide(where: str) -> SourceError:
    """The error for more columns than are read."""
    problem = f"{where} has more than {MOST_COLUMNS:,} columns."
    remedy = "Check the delimiter; store such wide records as one array, in .npz or Zarr."
    return SourceError(problem, remedy=remedy, code="wide")


def check_drift(
    first: source.Columns,
    here: source.Columns,
    where: str,
    *,
    with_types: bool,
    against: str = "the first file",
) -> None:
    """Refuse a file whose columns differ from the first file's in name or, `with_types`, kind.

    Order and widths of integers do not matter; a null column goes with any. `against` is what
    messages call the other.

    Raises
    ------
    InputError
        With the columns, and never what they hold; `details` has all of them.
    """
    known, found = {c.name: c for c in first}, {c.name: c for c in here}
    check_names([column.name for column in here], where, {c.name: c.label for c in here})
    both = [(known[name], c) for name, c in found.items() if name in known and with_types]
    problems = {
        "lacks": [c.label for name, c in known.items() if name not in found],
        "adds": [c.label for name, c in found.items() if name not in known],
        "has other types in": [
            f"{mine.label} ({mine.type_name} here, {other.type_name} there)"
            for other, mine in both
            if not _agree(other, mine)
        ],
    }
    wrong = [f"{what} {list_names(names)}" for what, names in problems.items() if names]
    if wrong:
        raise InputError(
            f"{where} {'; '.join(wrong)}, compared with {against}.",
            remedy="Give a file like the one that the schema was made for, or remove the schema."
            if against == "its schema"
            else "Give all files the same columns and types, or ingest them apart.",
            code="schema-drift",
            details=[{"column": one, "problem": how} for how in problems for one in problems[how]],
        )


def check_keys(columns: source.Columns, features: Mapping[str, Any], where: str) -> None:
    """Refuse features that look like keys of records: whole numbers, each another one.

    Parameters
    ----------
    columns
        Columns that became features without being named.
    features
        Their first values by name, (n_records,), NaN where missing.
    where
        The table, for messages.

    Raises
    ------
    InputError
        With the columns, and never what they hold.
    """
    table = pd.DataFrame(features)
    different = table.drop_duplicates()
    if len(columns) > 1 and len(different) > 0.8 * len(table):  # of a few repeated records
        table = different
    # Floats are not looked at: measurements differ, all of them.
    keys = [c for c in columns if c.kind == "integer" and _is_key(table[c.name].to_numpy())]
    if not keys:
        return
    name = shlex.quote(keys[0].label) if keys[0].place is None else "COLUMN"
    raise InputError(
        f"{where} holds in {list_names([c.label for c in keys])} another whole number for each "
        "record, as a record's key: a feature would carry it into model and release.",
        remedy=f"--drop {name} leaves it out; --labels {name} keeps it beside "
        "the records, released only where [release] include names it; --features names features.",
        code="record-key",
    )


def _is_key(values: Any) -> bool:
    """Whether so many records have a number each that they are surely no measurements.

    A row number in a hundred records; any whole numbers in a thousand.
    """
    values = values[np.isfinite(values)]
    n = len(values)
    if n < LEAST_COUNTED:
        return False
    # Rising or falling by the same step: a row number.
    if np.unique(np.diff(values)).size == 1 and values[0] != values[-1]:
        return True
    return n >= LEAST_DIFFERENT and np.unique(values).size == n


def _agree(first: source.TableColumn, here: source.TableColumn) -> bool:
    numbers = ("number", "integer")
    same = first.kind == here.kind or (first.kind in numbers and here.kind in numbers)
    # A column without a value has no type yet; a wider integer would lose digits in float32.
    return here.type_name == "null" or (same and (here.narrow or not first.narrow))


def _check_known(names: Iterable[str], known: Mapping[str, source.TableColumn], where: str) -> None:
    named = [column.name for column in known.values() if column.place is None]
    for name in names:
        if name not in known:
            raise OptionError(
                f"{where} has no column {name!r}{suggest(name, named)}",
                remedy=f"It has: {list_names(named)}."
                if named
                else "Its first row may be a record, so that it is not shown here. Put the names "
                "of the columns into a first row of their own.",
                code="missing-variable",
            )


def _check_apart(layout: source.SourceLayout, named: Sequence[str]) -> None:
    pairs = {
        "a feature and a variable": set(layout.features) & set(named),
        "a feature and dropped": {*layout.features, *layout.dates} & set(layout.drop),
        "a date and a variable": set(layout.dates) & set(named),
        "categorical and numeric": set(layout.categorical) & set(layout.numeric),
    }
    for what, both in pairs.items():
        if both:
            raise OptionError(
                f"{list_names(sorted(both))} cannot be both {what}.", remedy="Name it once."
            )


def _check_features(features: source.Columns, where: str, locate: Callable[[str], str]) -> None:
    """Refuse all that is no number at once, with what to do about each kind."""
    texts = [column for column in features if column.kind == "text"]
    others = [column for column in features if column.kind == "other"]
    dates = [column for column in others if column.is_date]
    # All that is wrong at once: who must change a file does it once.
    problems, remedies = list[str](), list[str]()
    if texts:
        # Of the first alone: finding it may take a pass over the file.
        problems.append(f"text in {list_names([c.label for c in texts])}{locate(texts[0].name)}")
        remedies.append(
            "Make text features of 0 and 1 with --one-hot, or a variable with --labels or "
            "--categorical. --drop leaves it out; --missing names a missing value. "
            "A decimal comma is for a schema, which is written where columns are named by none."
        )
    if dates:
        named = ",".join(column.label for column in dates)
        days = named if all(c.place is None for c in dates) else "COLUMN"
        remedies.append(f"Name dates with --dates {shlex.quote(days)}, which makes days of them.")
    if others:
        problems.append(f"columns that are neither numbers nor text: {_typed(others)}")
        remedies.append("Leave others out with --drop, or store numbers.")
    if problems:
        problem = f"{where} holds {' and '.join(problems)}, and a feature is a number."
        remedy = " ".join(remedies)
        raise InputError(problem, remedy=remedy, code="text-feature" if texts else "column-type")


def _check_variables(columns: source.Columns, layout: source.SourceLayout, where: str) -> None:
    for column in columns:
        check_variable_name(column.name)
        is_nested = column.type_name.startswith(_NESTED)
        is_read = column.name in (*layout.categorical, *(layout.numeric if column.is_date else ()))
        if is_nested or (column.kind == "other" and not is_read):
            problem = "holds lists or structures" if is_nested else "is neither number nor text"
            way = "Store one value per record" if is_nested else "Make it --categorical"
            problem = f"The variable {column.label!r} of {where} {problem} ({column.type_name})."
            remedy = f"{way}, or leave it out with --drop."
            raise InputError(problem, remedy=remedy, code="column-type")


def _kind(column: source.TableColumn, layout: source.SourceLayout) -> source.Kind:
    """What a variable holds: dates that are numbers are days."""
    if column.kind != "other":
        return column.kind
    return "number" if column.name in layout.numeric else "text"


def _form(column: source.TableColumn, layout: source.SourceLayout) -> source.Form:
    is_text = column.kind in ("text", "other", "boolean") or column.name in layout.categorical
    return "text" if is_text and column.name not in layout.numeric else "number"


def _typed(columns: source.Columns) -> str:
    return list_names([f"{column.label} ({column.type_name})" for column in columns])


def list_names(names: Sequence[str], most: int = 12) -> str:
    """Names for a message, cut where there are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
