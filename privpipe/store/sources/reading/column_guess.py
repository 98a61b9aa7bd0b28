"""What a column is, by a sample of its cells: how to read it, what it is for, and why.

Nothing in what is said is a cell: examples are invented, and those that occur are left out.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from privpipe.store.sources.reading import source
from privpipe.store.sources.reading.conversions import FALSE, LOST_ZERO, TRUE, convert_cells

VariableUse = Literal["variable", "subject", "weights", "time"]
"""What a column that is no feature becomes, and which role it has."""

Use = Literal["feature", "days", "calendar", "marked", "indicators", "drop", VariableUse]
"""What a column becomes: a feature, one of days, four of a date, two where gaps are marked, one per
category, what `VariableUse` says, or nothing."""

CELLS = tomllib.loads(Path(__file__).with_name("cells.toml").read_text("utf-8"))
MISSING_MARKS: tuple[str, ...] = (*source.MISSING_TEXT, *CELLS["missing"])
"""Cells that mean a missing value wherever they are."""

PHONE = re.compile(r"(\+|00)\d[\d ()/-]{6,}")
CODE = re.compile(r"\d+[eE]\d+")
MOSTLY = 0.9
LEAST_JUDGED, MOST_PAIRED = 100, 60
"""Cells by which an identifier is known; columns of which each pair is compared."""


@dataclass(frozen=True)
class ColumnGuess:
    """What a column was taken for.

    Parameters
    ----------
    name
    text
        How its cells are read.
    use
        What it becomes.
    why
        A sentence without a value.
    examples
        Invented cells of the kind.
    missing
        Share of the sample without a value.
    """

    name: str
    text: source.ColumnText
    use: Use
    why: str
    examples: tuple[str, ...] = ()
    missing: float = 0.0


def guess_columns(
    columns: Sequence[source.TableColumn], sample: pa.Table, dialect: source.Dialect
) -> tuple[ColumnGuess, ...]:
    """Guess what each column of a sample is, and name those that are functions of others."""
    found = [
        _guess_column(column, sample.column(column.name).combine_chunks(), dialect)
        for column in columns
    ]
    determined = _find_functions(found, sample)
    return tuple(
        replace(one, why=f"{one.why}; a function of {determined[one.name]}")
        if one.name in determined
        else one
        for one in found
    )


def _guess_column(column: source.TableColumn, values: Any, dialect: source.Dialect) -> ColumnGuess:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not pa.types.is_string(values.type) and not pa.types.is_large_string(values.type):
        return _guess_typed(column, values)
    cells = pc.utf8_trim_whitespace(values)
    is_missing = pc.is_in(cells, pa.array(MISSING_MARKS, cells.type))
    present = cells.filter(pc.and_(pc.invert(is_missing), pc.is_valid(cells)))
    missing = 1 - len(present) / max(1, len(cells))
    if not len(present):
        text = source.ColumnText("text")
        return ColumnGuess(column.name, text, "drop", "no value in the sample", (), 1.0)
    counts = Counter(present.to_pylist())
    text, use, why, shown = _guess_text(counts, dialect)
    if use in ("variable", "feature") and len(counts) == 1 and len(present) > 1:
        use, why = "drop", f"{why}; a constant in the sample"
    if text.kind == "number":
        shown = "number"
        if marks := _find_sentinels(present, text, dialect):
            text = replace(text, missing=marks)
            why = f"{why}; {', '.join(marks)} lies far from all others and is taken for missing"
    examples = _invent(shown, text, dialect, counts)
    return ColumnGuess(column.name, text, use, why, examples, round(missing, 4))


def _guess_text(
    counts: Counter[str], dialect: source.Dialect
) -> tuple[source.ColumnText, Use, str, str]:
    """How cells are read, for what, why, and what examples of them look like."""
    names, n = list(counts), counts.total()
    as_numbers = pa.array(names, pa.string())
    numbers, bad = convert_cells(as_numbers, source.ColumnText("number"), dialect, ())
    zeros = [name for name in names if re.match(LOST_ZERO, name)]
    digits = [name for name in names if name.isdecimal() or CODE.fullmatch(name)]
    is_code = len(digits) == len(names) and (zeros or any(map(CODE.fullmatch, names)))
    if is_code or sum(counts[name] for name in names if PHONE.fullmatch(name)) > MOSTLY * n:
        what = "leading zeros" if zeros else "digits with an e, or as of telephones"
        use: Use = "drop" if _is_key(counts) else "variable"
        return (
            source.ColumnText("text"),
            use,
            f"a code: {what}; as a number it would change",
            "code",
        )
    if date := _guess_date(counts):
        return date
    words = {name.lower() for name in names}
    if words <= {*TRUE, *FALSE} and words & {*TRUE} and words & {*FALSE} and words != {"0", "1"}:
        return source.ColumnText("boolean"), "variable", "words for true and false", "boolean"
    whole = all(float(v).is_integer() for v in numbers.drop_null().to_pylist())
    if not len(bad):
        if whole and _is_key(counts):
            return (
                source.ColumnText("number"),
                "drop",
                "another whole number in each record: a key",
                "",
            )
        return source.ColumnText("number"), "feature", "whole numbers" if whole else "numbers", ""
    # Some cells are no numbers: their rows are refused, named by the second call.
    if sum(counts[names[i]] for i in bad) < (1 - MOSTLY) * n and not zeros:
        why = f"numbers; {len(bad)} other texts in the sample, which are refused unless `missing`"
        return source.ColumnText("number"), "feature", f"{why} names them", ""
    if _is_key(counts):
        return source.ColumnText("text"), "drop", "another text in nearly every record", "text"
    return (
        source.ColumnText("text"),
        "variable",
        f"text of {len(counts):,} different values",
        "text",
    )


def _guess_date(counts: Counter[str]) -> tuple[source.ColumnText, Use, str, str] | None:
    n, fitting = counts.total(), dict[str, int]()
    for form, pattern in CELLS["dates"].items():
        alike = [name for name in counts if re.fullmatch(pattern, name)]
        times = pd.to_datetime(
            pd.Series(alike, dtype=str), format=form or "ISO8601", errors="coerce"
        )
        fitting[form] = sum(
            counts[name] for name, ok in zip(alike, times.notna(), strict=True) if ok
        )
    # Two formats may share the column; then the rows of the rarer one are refused, by number.
    form = max(fitting, key=lambda one: fitting[one])
    if sum(fitting[one] for one in (form, *_others(form))) < MOSTLY * n or not fitting[form]:
        return None
    other = {"%m/%d/%Y": "%d/%m/%Y", "%d/%m/%Y": "%m/%d/%Y"}.get(form)
    text = source.ColumnText("date", form)
    if other is not None and fitting[other] == fitting[form]:
        why = "dates of which day and month cannot be distinguished: say the format, and use days"
        return text, "drop", why, "date"
    rest = n - fitting[form]
    why = f"dates, as {form or 'ISO 8601'}"
    return text, "days", f"{why}; {rest} cells in the sample are not" if rest else why, "date"


def _others(form: str) -> tuple[str, ...]:
    return tuple(one for one in ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "") if one != form)


def _guess_typed(column: source.TableColumn, values: Any) -> ColumnGuess:
    """What a column of declared type is for."""
    missing = round(values.null_count / max(1, len(values)), 4)
    kinds: Mapping[str, tuple[source.TextKind, Use, str]] = {
        "number": ("number", "feature", "numbers"),
        "integer": ("number", "feature", "whole numbers"),
        "boolean": ("boolean", "variable", "truth values"),
        "other": ("text", "drop", f"{column.type_name}: neither numbers nor text"),
        "text": ("text", "variable", "text"),
    }
    kind, use, why = kinds[column.kind]
    if column.is_date:
        kind, use, why = "date", "days", "dates"
    elif column.kind == "other":
        return ColumnGuess(column.name, source.ColumnText(kind), use, why, (), missing)
    counts = Counter(map(str, values.drop_null().to_pylist()))
    if column.kind == "integer" and _is_key(counts):
        use, why = "drop", "another whole number in each record: a key"
    elif len(counts) == 1 and len(values) > 1:
        use, why = "drop", f"{why}; a constant in the sample"
    examples = _invent(kind, source.ColumnText(kind), source.Dialect(), counts)
    return ColumnGuess(column.name, source.ColumnText(kind), use, why, examples, missing)


def _is_key(counts: Counter[str]) -> bool:
    n = counts.total()
    return n >= LEAST_JUDGED and len(counts) > 0.98 * n


def _find_sentinels(
    cells: Any, text: source.ColumnText, dialect: source.Dialect
) -> tuple[str, ...]:
    """Numbers such as 999 that occur several times, far beyond all others."""
    marks = [mark for mark in CELLS["sentinels"] if pc.sum(pc.equal(cells, mark)).as_py() > 1]
    values = convert_cells(cells, text, dialect, marks)[0].drop_null().to_numpy()
    if not marks or len(values) < LEAST_JUDGED:
        return ()
    spread = max(float(values.max() - values.min()), 1.0)
    return tuple(
        mark
        for mark in marks
        if float(mark) > values.max() + 2 * spread or float(mark) < values.min() - 2 * spread
    )


def _invent(
    kind: str, text: source.ColumnText, dialect: source.Dialect, counts: Counter[str]
) -> tuple[str, ...]:
    examples = tuple(CELLS["invented"][kind or text.kind])
    if kind == "date" and text.format:
        examples = tuple(pd.Timestamp(one).strftime(text.format) for one in examples)
    if kind == "number":
        examples = tuple(one.replace(".", dialect.decimal) for one in examples)
    return tuple(one for one in examples if one not in counts)[:3]


def _find_functions(found: Sequence[ColumnGuess], sample: pa.Table) -> dict[str, str]:
    """By column, one that determines it in the sample: both repeat, and neither is constant."""
    codes = dict[str, Any]()
    # What is left out may be of any type, lists too.
    compared = [one for one in found if one.use in ("feature", "variable")]
    for one in compared[:MOST_PAIRED]:
        column = pc.dictionary_encode(sample.column(one.name).combine_chunks().cast(pa.string()))
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        n = len(column.dictionary)
        if 2 < n < sample.num_rows / 5:
            codes[one.name] = (column.indices.fill_null(n).to_numpy().astype(np.int64), n + 1)
    determined = dict[str, str]()
    for name, (mine, n_mine) in codes.items():
        for other, (theirs, n_theirs) in codes.items():
            # Of two that determine one another only the later is named.
            if name != other and other not in determined and n_theirs >= n_mine:
                pairs = len(np.unique(theirs * n_mine + mine))
                if pairs == len(np.unique(theirs)):
                    determined[name] = other
                    break
    return determined
