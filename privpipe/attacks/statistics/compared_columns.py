"""Columns of two tables in one way: numbers, intervals, dates, categories, texts and their hashes.

What a release of others means is not known. Units, codes, and how dates and intervals are written
may differ from those of the raw records. Here values of both become coordinates that agree where
the values do.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from privpipe.protocols import FloatArray, IntArray

MOST_LEVELS = 50
"""Categories of a column that is compared; a text column of more is an identifier."""

LEAST_NUMBERS = 0.95
"""Share of a column's values that are numbers, or intervals of numbers, where it is of numbers."""

DATES = [f"%{day}{time}" for day in ("d-%m-%Y", "m-%d-%Y", "Y-%m-%d") for time in ("", " %X")]
"""Ways in which dates are written, apart from ISO 8601, whatever is between the numbers."""

DIGESTS = {32: "md5", 40: "sha1", 64: "sha256"}
"""Hashes by their hexadecimal digits: whoever knows a key can hash it."""

SEEN = 0.05
"""Share of texts in which values are no chance."""

_WORD = re.compile(r"(?:[^\W_]|(?<=\d)\.(?=\d))+")
"""A word or a number within a text."""

Column: TypeAlias = "pd.Series[Any]"


def read_text(values: Column, digest: str = "") -> Column:
    """Texts of one case, without blanks and leading zeros; or their hashes."""
    codes, kinds = pd.factorize(values, use_na_sentinel=False)
    texts = pd.Series(kinds).astype(str).str.strip()
    if digest:
        texts = texts.map(lambda text: hashlib.new(digest, text.encode()).hexdigest())
    texts = texts.str.casefold().str.replace(r"^0+(?=\d)|\.0$", "", regex=True)
    return pd.Series(texts.to_numpy()[codes], values.index)


def holds_values(texts: Column, known: pd.DataFrame, partner: str) -> bool:
    """Whether released texts hold values of other known columns than the one they correspond to.

    One in a text, more often than in texts of that column; or two, which may be a whole record. The
    known columns are as `read_text` gives them.
    """
    if pd.api.types.is_numeric_dtype(texts.dtype):
        return False
    said, raw = read_text(texts).fillna(""), known[partner]
    others = pd.unique(known.drop(columns=partner).to_numpy(object).ravel())
    values = {value.lstrip("-") for value in others}
    if np.isfinite(read_intervals(texts)[0]).mean() > LEAST_NUMBERS:
        # The numbers of intervals and dates are compared; words beside them are not.
        values = {value for value in values if not value[:1].isdigit()}
    n_said = [one.map(lambda text: len(values & {*_WORD.findall(text)})) for one in (said, raw)]
    released, before = n_said[0] * ~said.isin(raw), n_said[1]
    return bool((released > 1).mean() > SEEN or (released > 0).mean() > (before > 0).mean() + SEEN)


def read_law(values: Column) -> FloatArray:
    """Numbers by which distributions are compared, of texts too."""
    x = read_intervals(values)[0]
    is_text = np.isfinite(x).mean() < LEAST_NUMBERS
    return ComparedColumn(is_text=True).place(values)[0].ravel() if is_text else x


@dataclass(frozen=True)
class ComparedColumn:
    """How values of one column become coordinates, in both tables.

    Parameters
    ----------
    mean, scale
        Of the known records, where it is of numbers.
    stretch, offset
        Bring the release's numbers to the units of the known ones.
    levels
        Categories, where it is not.
    is_text, digest
        Whether texts are compared by equality alone, and the hash of them that is released.
    """

    mean: float = 0.0
    scale: float = 1.0
    stretch: float = 1.0
    offset: float = 0.0
    levels: tuple[str, ...] = ()
    is_text: bool = False
    digest: str = ""

    def place(self, values: Column, *, released: bool = False) -> FloatArray:
        """Middles and half-widths, (2, n_rows, 1), or n_levels of categories; missing is 0."""
        if self.levels:
            codes = pd.Index(self.levels).get_indexer(pd.Index(read_text(values)))
            # Two different categories are at distance 1.
            one_hot = (codes[:, None] == np.arange(len(self.levels))) / np.sqrt(2)
            return np.stack([one_hot, np.zeros_like(one_hot)])
        if self.is_text:
            texts = read_text(values, "" if released else self.digest)
            number = pd.util.hash_array(texts.to_numpy(object))[:, None] / 2**54  # up to 1,024
            return np.stack([number, np.zeros_like(number)])
        x, half = read_intervals(values)
        x = x * self.stretch + self.offset if released else x
        middle = np.nan_to_num((x - self.mean) / self.scale)
        return np.stack([middle, half * self.stretch / self.scale])[:, :, None]


def choose_column(known: Column, released: Column, recodes: bool = False) -> ComparedColumn:
    """How a column is compared; what has too many values for categories as texts.

    Of one that may be recoded the release's own categories are coordinates as well.
    """
    (x, _), (z, _) = read_intervals(known), read_intervals(released)
    if min(np.isfinite(x).mean(), np.isfinite(z).mean()) < LEAST_NUMBERS:
        levels = read_text(known).value_counts().index
        if len(levels) <= MOST_LEVELS:
            others = read_text(released).value_counts().index.difference(levels, sort=False)
            levels = levels.append(others[: (MOST_LEVELS - len(levels)) * recodes])
            return ComparedColumn(levels=tuple(levels))
        sizes, old = (set(one.astype(str).str.len()) for one in (released, known))
        digest = DIGESTS.get(sizes.pop(), "") if len(sizes) == 1 and sizes != old else ""
        return ComparedColumn(is_text=True, digest=digest)
    mean, scale = float(np.nanmean(x)), float(np.nanstd(x)) or 1.0
    center, width = float(np.nanmean(z)), float(np.nanstd(z)) or 1.0
    is_near = abs(center - mean) < scale and 0.5 < width / scale < 2
    if is_near or np.isin(z, x).mean() > LEAST_NUMBERS:
        return ComparedColumn(mean, scale)
    # Other units: the release is brought to the mean and deviation of the known.
    stretch = scale / width
    return ComparedColumn(mean, scale, stretch, mean - stretch * center)


_NUMBER = r"(?:(?<![\d.])[+-])?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_COMMA = r"(?<=\d),(?=\d)"


def read_intervals(values: Column) -> tuple[FloatArray, FloatArray]:
    """Middle and half-width of each value; of a text such as "[30, 40)" or "30-39" its interval.

    >>> [end.tolist() for end in read_intervals(pd.Series(["[30, 40)", "25", "x", "(-2,4]"]))]
    [[35.0, 25.0, nan, 1.0], [5.0, 0.0, 0.0, 3.0]]
    """
    if not pd.api.types.is_numeric_dtype(values.dtype):
        # Most texts are of few kinds: each is read once.
        codes, kinds = pd.factorize(values, use_na_sentinel=False)
        middle, half = _read_kinds(pd.Series(kinds), np.bincount(codes))
        return middle[codes], half[codes]
    x = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return x, np.zeros(len(x))


def _read_kinds(kinds: Column, n_rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """The same of different values, of which so many rows have each."""
    values = _read_dates(kinds, n_rows)
    x = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if np.isfinite(x).all():
        return x, np.zeros(len(x))
    texts = values.astype(str).fillna("")
    # A comma is between ends where there are brackets; elsewhere it is within a number.
    texts = texts.where(texts.str.contains(r"[\[(]"), texts.str.replace(_COMMA, "", regex=True))
    pairs = [list(map(float, two)) for two in texts.str.findall(_NUMBER)]
    ends = np.array([(min(p), max(p)) if 0 < len(p) < 3 else (np.nan, np.nan) for p in pairs])
    ends[np.isinf(ends)] = np.nan  # digests such as 4e999
    middle, half = ends.mean(axis=1), np.nan_to_num((ends[:, 1] - ends[:, 0]) / 2)
    is_plain = np.isfinite(x)
    return np.where(is_plain, x, middle), np.where(is_plain, 0.0, half)


def _read_dates(values: Column, n_rows: IntArray) -> Column:
    """Seconds since 1970 of dates, and of texts that are dates; all else as it is."""
    dates = values
    if not pd.api.types.is_datetime64_any_dtype(values.dtype):
        texts = values.dropna().astype(str).str.replace(r"(?<=\d)[./](?=\d)", "-", regex=True)
        rows = n_rows[texts.index]
        if not rows @ texts.str.match(r"\d{1,4}-\d{1,2}-\d") >= max(LEAST_NUMBERS * rows.sum(), 1):
            return values
        parse = partial(pd.to_datetime, texts, errors="coerce", utc=True)
        ways = [pd.Series(parse(format=form)) for form in ("ISO8601", *DATES)]
        dates = max(ways, key=lambda one: one.count()).reindex(values.index)
    # In milliseconds: those of nanoseconds end in 2262, and "open" is often the year 9999.
    stamps = pd.to_datetime(dates, utc=True, errors="coerce").dt.as_unit("ms")
    return (stamps - pd.Timestamp(0, tz="UTC").as_unit("ms")).dt.total_seconds()
