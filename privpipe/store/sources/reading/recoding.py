"""Columns of text as features, columns of numbers as categories: only where an option names them.

What categories and edges are called becomes part of names that a release publishes. So rare
categories are pooled, and edges are rounded quantiles of a part of the records. These are chosen by
their number alone, and no record's value need be an edge.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from privpipe.errors import GuessWarning, InputError, OptionError
from privpipe.protocols import AnyArray, FloatArray
from privpipe.store.sources.reading.source import BinningLoss, Block, Coded, RecordSource, unstable

MOST_CATEGORIES = 1_000
"""Categories that all columns may become in all: more are surely identifiers or free text."""

MISSING, RARE = "(missing)", "(other)"


def spread_texts(
    source: RecordSource, columns: Sequence[str], least: int = 1, known: Sequence[str] = ()
) -> RecordSource:
    """A source in which some variables of text are features, after the features that there are.

    Parameters
    ----------
    source
        The source; it is read once to learn the categories.
    columns
        Variables that become features.
    least
        Categories of fewer records are pooled.
    known
        Names of the features that are made, as those of an earlier table; else those of the
        categories that there are.

    Raises
    ------
    OptionError
        If a column is no categorical variable of the source.
    InputError
        If there are more than `MOST_CATEGORIES` categories.
    """
    for name in set(columns) - {variable.name for variable in source.variables}:
        problem = f"--one-hot names {name!r}, which is no column of text."
        remedy = "Name columns of a table; numbers are features as they are."
        raise OptionError(problem, remedy=remedy)
    categories = _learn(source, columns, least, known)
    made = tuple(f"{name}={one}" for name, found in categories.items() for one in found)
    # float32 holds 0 and 1 exactly; numbers that are there may need more.
    dtype = source.features_dtype if source.n_features else np.dtype(np.float32)

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        for block in source.read(rows, with_features):
            features = block.features
            if with_features:
                new = [_spread(block, *item, bool(known)) for item in categories.items()]
                features = np.hstack([features.astype(dtype, copy=False), *new])
            rest = {k: v for k, v in block.variables.items() if k not in categories}
            yield replace(block, features=features, variables=rest)

    return replace(
        source,
        feature_names=(*source.feature_names, *made),
        n_features=source.n_features + len(made),
        features_dtype=dtype,
        variables=tuple(v for v in source.variables if v.name not in categories),
        read=read,
    )


def split_dates(source: RecordSource, columns: Sequence[str]) -> RecordSource:
    """A source in which features that are days have year, month and weekday as features too.

    Parameters
    ----------
    source
        The source; NaN stays NaN.
    columns
        Features that are days since 1970-01-01. The month is 1 to 12, the weekday 0 for a Monday.
    """
    made = tuple(f"{name} {part}" for name in columns for part in ("year", "month", "weekday"))
    return _add_features(source, columns, made, _split_days)


def mark_missing(source: RecordSource, columns: Sequence[str]) -> RecordSource:
    """A source in which further features are 1 where some features are missing, else 0."""
    made = tuple(f"{name} missing" for name in columns)
    return _add_features(source, columns, made, lambda values: (np.isnan(values),))


def _add_features(
    source: RecordSource,
    columns: Sequence[str],
    made: tuple[str, ...],
    make: Callable[[FloatArray], tuple[AnyArray, ...]],
) -> RecordSource:
    """A source with features made of some features, after those that there are."""
    places = [source.feature_names.index(name) for name in columns]

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        for block in source.read(rows, with_features):
            features = block.features
            if with_features:
                parts = [part for place in places for part in make(features[:, place])]
                features = np.column_stack([features, *parts]).astype(features.dtype)
            yield replace(block, features=features)

    names, n = (*source.feature_names, *made), source.n_features + len(made)
    return replace(source, feature_names=names, n_features=n, read=read)


def _split_days(days: FloatArray) -> tuple[FloatArray, ...]:
    """Year, month and weekday, (n_records,) each."""
    missing = np.isnan(days)
    dates = pd.DatetimeIndex(np.where(missing, 0, np.floor(days)).astype("datetime64[D]"))
    parts = (dates.year, dates.month, dates.day_of_week)
    return tuple(np.where(missing, np.nan, part) for part in parts)


def _learn(
    source: RecordSource, columns: Sequence[str], least: int, known: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """Categories of each column in natural order; rare ones and missing values come last.

    Where names are known, theirs, and a warning of how many cells have another.
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in columns}
    for block in source.read(2**16, False):
        for name, found in counts.items():
            coded = block.variables[name]
            assert isinstance(coded, Coded), "the columns are read as text"
            names = (*coded.names, MISSING)  # the code -1 picks the last
            found.update(names[code] for code in coded.codes)
            if sum(map(len, counts.values())) > MOST_CATEGORIES:
                problem = f"{name} and others of --one-hot exceed {MOST_CATEGORIES} categories."
                remedy = "Leave identifiers and free text out with --drop."
                raise InputError(problem, remedy=remedy, code="too-many-categories")
    if not known:
        return {name: _choose_categories(found, least) for name, found in counts.items()}
    chosen: dict[str, list[str]] = {name: [] for name in columns}
    for one in known:
        # Of a column `a` and one called `a=b` the longer name is meant.
        meant = [name for name in columns if one.startswith(f"{name}=")]
        if meant:
            name = max(meant, key=len)
            chosen[name].append(one.removeprefix(f"{name}="))
    for name, found in counts.items():
        others = [n for one, n in found.items() if one not in chosen[name]]
        if others and RARE not in chosen[name]:
            warnings.warn(
                f"{name}: {sum(others)} of {found.total()} records have one of {len(others)} "
                "categories that the model does not know. All its indicators are 0 there.",
                GuessWarning,
                stacklevel=2,
            )
    return {name: tuple(found) for name, found in chosen.items()}


def _choose_categories(counts: Counter[str], least: int) -> tuple[str, ...]:
    common = sorted(c for c, n in counts.items() if n >= least and c not in (MISSING, RARE))
    pooled = set(counts) - {*common, MISSING}
    return (*common, *([RARE] if pooled else []), *([MISSING] if MISSING in counts else []))


def _spread(block: Block, name: str, categories: tuple[str, ...], fixed: bool) -> FloatArray:
    """A block's column as columns of 0 and 1, (n_records, n_categories).

    Where categories are fixed, others are 0 in all.
    """
    values = block.variables[name]
    assert isinstance(values, Coded), "the columns are read as text"
    places = {category: place for place, category in enumerate(categories)}
    other = places.get(RARE, -1)
    table = [places.get(value, other) for value in values.names] + [places.get(MISSING, -1)]
    found = np.asarray(table)[values.codes]
    if (found < 0).any() and not fixed:
        raise unstable(f"holds categories of {name!r} that it did not hold")
    # The last row, of zeros, is that of -1.
    return np.asarray(np.eye(len(categories) + 1, len(categories), dtype=np.float32)[found])


MOST_CHOSEN = 2**18
"""Records that edges are chosen by, at most; every 2nd, 4th, ... where there are more."""

MOST_BINS = 1000

_DIGITS = 3
"""Of an edge, counted from the first of the range of the values."""
_MOST_DIGITS = 12

Bins = Mapping[str, int | tuple[float, ...]]
"""By variable: how many bins, or their edges."""


def parse_bins(given: Sequence[str]) -> Bins:
    """Numbers of bins, or edges, by column.

    Examples
    --------
    >>> parse_bins(("age=8", "hours=20:40"))
    {'age': 8, 'hours': (20.0, 40.0)}
    """
    found: dict[str, int | tuple[float, ...]] = {}
    for one in given:
        name, _, what = one.rpartition("=")
        bins: int | tuple[float, ...] = ()
        with suppress(ValueError):
            bins = tuple(map(float, what.split(":"))) if ":" in what else int(what)
        if isinstance(bins, int):
            right = 2 <= bins <= MOST_BINS
        else:  # NaN fails both, so that it is no edge either
            right = bool(np.isfinite(bins).all() and (np.diff(bins) > 0).all())
            right = right and 0 < len(bins) < MOST_BINS
        if not right or not name or name in found:
            raise OptionError(
                f"The bins {one!r} are not understood.",
                remedy=f"Name each column once: age=8 for that many bins (2 to {MOST_BINS:,}), or "
                "age=25:40:60 for edges, finite and ascending.",
                code="bins",
            )
        found[name] = bins
    return found


def choose_edges(values: FloatArray, n_bins: int) -> FloatArray:
    """Rounded quantiles that cut values into at most `n_bins` bins, ascending, each once.

    Parameters
    ----------
    values : (n_records,)
        Finite.
    n_bins

    Returns
    -------
    edges : (n_edges,)
        A value on an edge belongs to the bin above. Fewer than ``n_bins - 1`` where values repeat;
        every bin has a record.

    Examples
    --------
    >>> choose_edges(np.arange(100.0), 4)
    array([25., 50., 75.])
    """
    if not len(values):
        return np.empty(0)
    found = np.quantile(values, np.arange(1, n_bins) / n_bins, method="higher")
    spread = float(values.max() - values.min())
    # Three digits of the spread: a published edge says nothing of a single record's last digits.
    digits = _DIGITS - 1 - int(np.floor(np.log10(spread))) if spread > 0 else _MOST_DIGITS
    if abs(digits) < _MOST_DIGITS:
        found = np.array([round(float(edge), digits) for edge in found]) + 0.0  # no -0.0
    edges = np.unique(found)
    filled = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1) > 0
    # Of an edge both sides must hold records: rounding may have moved one past the last of them.
    return np.asarray(edges[filled[:-1] & (np.cumsum(filled[::-1])[::-1][1:] > 0)])


def measure_loss(values: FloatArray, edges: FloatArray) -> BinningLoss:
    """What only knowing bins loses.

    Parameters
    ----------
    values : (n_records,)
        NaN where missing; those are left out.
    edges : (n_edges,)
    """
    x = values[np.isfinite(values)]
    if not len(x):
        return BinningLoss(len(edges) + 1, 0, 0.0, 0.0)
    bins = pd.Series(x).groupby(np.searchsorted(edges, x, side="right"))
    distance = float(np.abs(x - bins.transform("median")).mean())
    total = float(np.var(x))
    share = float(((x - bins.transform("mean")) ** 2).mean()) / total if total > 0 else 0.0
    return BinningLoss(len(edges) + 1, len(x), distance, share)


def bin_numbers(source: RecordSource, bins: Bins, dates: Collection[str] = ()) -> RecordSource:
    """A source in which some variables of numbers are categories: their bins.

    Parameters
    ----------
    source
        The source; it is read once to choose bins and to measure `losses`.
    bins
        See `parse_bins`.
    dates
        Variables that are days since 1970-01-01; their bins are named by dates.

    Raises
    ------
    OptionError
        If a column is no variable of numbers of the source.
    InputError
        If a variable has a single value, or none; of dates this is one bin.
    """
    numbers = {one.name for one in source.variables if one.kind in ("number", "integer")}
    for name in set(bins) - numbers:
        problem = f"--bins names {name!r}, which is no column of numbers."
        remedy = "Name columns of numbers of a table; texts are categories as they are."
        raise OptionError(problem, remedy=remedy, code="bins")
    chosen = _choose_records(source, list(bins))
    edges = {
        name: _find_edges(name, chosen[name], given, is_date=name in dates)
        for name, given in bins.items()
    }
    names = {name: name_bins(found, is_date=name in dates) for name, found in edges.items()}

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        for block in source.read(rows, with_features):
            made = {}
            for name, found in edges.items():
                values = _as_numbers(block.variables[name])
                places = np.searchsorted(found, values, side="right")
                made[name] = Coded(np.where(np.isnan(values), -1, places), names[name])
            yield replace(block, variables={**block.variables, **made})

    variables = (replace(v, kind="text") if v.name in bins else v for v in source.variables)
    losses = {name: measure_loss(chosen[name], found) for name, found in edges.items()}
    return replace(source, variables=tuple(variables), read=read, losses=losses)


def name_bins(edges: FloatArray, *, is_date: bool = False) -> tuple[str, ...]:
    """Names of bins, whose order is that of the numbers.

    >>> name_bins(np.array([25.0, 40.5]))
    ('0: below 25', '1: 25 to below 40.5', '2: from 40.5')
    """
    texts = [f"{np.datetime64(int(e), 'D')}" if is_date else f"{e:.15g}" for e in edges]
    if not texts:
        return ("0: any",)
    inner = [f"{low} to below {high}" for low, high in pairwise(texts)]
    names = [f"below {texts[0]}", *inner, f"from {texts[-1]}"]
    width = len(str(len(names) - 1))
    return tuple(f"{k:0{width}d}: {name}" for k, name in enumerate(names))


def _as_numbers(values: FloatArray | Coded) -> FloatArray:
    if isinstance(values, Coded):  # whole numbers that are exact
        return np.array([*map(float, values.names), np.nan])[values.codes]
    return values.astype(np.float64)


def _find_edges(
    name: str, values: FloatArray, given: int | tuple[float, ...], *, is_date: bool
) -> FloatArray:
    if not isinstance(given, int):
        return np.array(given)
    edges = choose_edges(values[np.isfinite(values)], given)
    if is_date:  # as they are named, by whole days; a file to come may be of one day
        whole = np.unique(np.floor(edges))
        return whole[whole > np.nanmin(values, initial=np.inf)]
    if not len(edges):
        problem = f"{name!r} has a single value, or none: there is nothing to cut."
        raise InputError(problem, remedy="Leave it out of --bins.", code="bins")
    return edges


def _choose_records(source: RecordSource, names: Sequence[str]) -> dict[str, FloatArray]:
    """Some variables of every 2**k-th record, by its number; k as `MOST_CHOSEN` allows."""
    chosen = [pd.DataFrame(columns=list(names), dtype=np.float64)]
    every, at = 1, 0
    for block in source.read(2**16, False):
        table = pd.DataFrame({name: _as_numbers(block.variables[name]) for name in names})
        chosen.append(table[-at % every :: every])
        at += block.n_records
        while sum(map(len, chosen)) > MOST_CHOSEN:
            # Every second of those that are left: no value decides which records choose the edges.
            chosen, every = [pd.concat(chosen)[::2]], 2 * every
    whole = pd.concat(chosen)
    return {name: whole[name].to_numpy() for name in names}
