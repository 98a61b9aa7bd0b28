"""What a column is, by a sample of its cells: how to read it, what it is for, and why.

Nothing in what is said is a cell: examples are invented, and those that occur are left out.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

from privpipe.store.sources.reading import conversions, source
from privpipe.store.sources.reading.conversions import CELLS, FALSE, TRUE
from privpipe.store.sources.reading.source import Columns, ColumnText, Dialect, TableColumn

VariableUse = Literal["variable", "subject", "weights", "time"]
"""What a column that is no feature becomes, and which role it has."""

Use = Literal["feature", "days", "calendar", "marked", "indicators", "drop", VariableUse]
"""What a column becomes. Features are one, one of days, four of a date, two where gaps are marked,
or one per category. Else it becomes what `VariableUse` says, or nothing."""

MISSING_MARKS: tuple[str, ...] = (*source.MISSING_TEXT, *CELLS["missing"])
"""Cells that mean a missing value wherever they are."""

PHONE = re.compile(r"(\+|00)\d[\d ()/-]{6,}")
CODE, POWER = re.compile(r"\d+[eE]\d+"), re.compile(r"0|[1-9][eE]\d+")
MOSTLY = 0.9
LEAST_JUDGED, MOST_PAIRED = 100, 60
"""Cells by which an identifier is known; columns of which each pair is compared."""


STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)


@checked(frozen=True, config=STRICT)
class ColumnPlan:
    """A column of a schema.

    Parameters
    ----------
    kind, format, missing, order
        How its cells are read; see `ColumnText`.
    use
        What it becomes.
    why
        Why that was proposed: a sentence without a value.
    examples
        Invented cells of the kind.
    share_missing
        Of the sample.
    """

    kind: source.TextKind
    use: Use
    format: str = ""
    missing: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    why: str = ""
    examples: tuple[str, ...] = ()
    share_missing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an order that orders nothing."""
        if len(set(self.order)) < 2 if self.kind == "ordered" else self.order:
            raise ValueError(
                'kind = "ordered" has order = ["low", "high"], all values from the least'
            )

    @property
    def text(self) -> ColumnText:
        """How its cells are read."""
        return ColumnText(self.kind, self.format, self.missing, self.order)


def guess_columns(columns: Columns, sample: pa.Table, dialect: Dialect) -> dict[str, ColumnPlan]:
    """Guess what each column of a sample is, and name those that are functions of others."""
    if len(columns) > 1 and not any(map(pa.types.is_nested, sample.schema.types)):
        different = sample.group_by(sample.column_names, use_threads=False).aggregate([])
        # Of a few repeated records keys are still keys; of a few profiles all are repeated.
        sample = different if len(different) > 0.8 * len(sample) else sample
    found = {
        column.name: _guess_column(column, sample.column(column.name).combine_chunks(), dialect)
        for column in columns
    }
    for name, other in _find_functions(found, sample).items():
        found[name] = replace(found[name], why=f"{found[name].why}; a function of {other}")
    return found


def _guess_column(column: TableColumn, values: Any, dialect: Dialect) -> ColumnPlan:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not pa.types.is_string(values.type) and not pa.types.is_large_string(values.type):
        return _guess_typed(column, values)
    cells = pc.utf8_trim_whitespace(values)
    is_missing = pc.is_in(cells, pa.array(MISSING_MARKS, cells.type))
    present = cells.filter(pc.and_(pc.invert(is_missing), pc.is_valid(cells)))
    missing = 1 - len(present) / max(1, len(cells))
    if not len(present):
        return ColumnPlan("text", "drop", why="no value in the sample", share_missing=1.0)
    counts = Counter(present.to_pylist())
    text, use, why, shown = _guess_text(counts, dialect)
    if use in ("variable", "feature") and len(counts) == 1 and len(present) > 1:
        use, why = "drop", f"{why}; a constant in the sample"
    elif column.name.startswith("unnamed_") and len(counts) == len(values):
        use, why = "drop", f"{why}; without a name, and another in each record: names of rows"
    if text.kind == "number":
        shown = "number"
        if marks := _find_sentinels(present, text, dialect):
            text = replace(text, missing=marks)
            why = f"{why}; {', '.join(marks)} lies far from all others and is taken for missing"
    examples = _invent(shown, text, dialect, counts)
    about: Any = {"why": why, "examples": examples, "share_missing": round(missing, 4)}
    return ColumnPlan(text.kind, use, text.format, text.missing, **about)


def _guess_text(counts: Counter[str], dialect: Dialect) -> tuple[ColumnText, Use, str, str]:
    """How cells are read, for what, why, and what examples of them look like."""
    names, n = list(counts), counts.total()
    said = ColumnText("number", _find_marks(counts))
    numbers, bad = conversions.convert_cells(pa.array(names, pa.string()), said, dialect, ())
    zeros = [name for name in names if re.match(conversions.LOST_ZERO, name)]
    digits = [name for name in names if name.isdecimal() or CODE.fullmatch(name)]
    is_code = len(digits) == len(names) and (zeros or any(map(CODE.fullmatch, names)))
    is_code = is_code and not all(map(POWER.fullmatch, names))  # 1e30 as programs write numbers
    if is_code or sum(counts[name] for name in names if PHONE.fullmatch(name)) > MOSTLY * n:
        what = "leading zeros" if zeros else "digits with an e, or as of telephones"
        use: Use = "drop" if _is_key(counts) else "variable"
        why = f"a code: {what}; as a number it would change"
        return ColumnText("text"), use, why, "code"
    if date := _guess_date(counts):
        return date
    words = {name.lower() for name in names}
    if words <= {*TRUE, *FALSE} and words & {*TRUE} and words & {*FALSE} and words != {"0", "1"}:
        return ColumnText("boolean"), "variable", "words for true and false", "boolean"
    whole = all(float(v).is_integer() for v in numbers.drop_null().to_pylist())
    what = "whole numbers" if whole else "numbers"
    what += f", each as {said.format}" if said.format else ""
    if not len(bad):
        if whole and _is_key(counts):
            return said, "drop", "another whole number in each record: a key", ""
        return said, "feature", what, ""
    # Some cells are no numbers: their rows are refused, named by the second call.
    if sum(counts[names[i]] for i in bad) < (1 - MOSTLY) * n and not zeros:
        why = f"{what}; {len(bad)} other texts in the sample, which are refused unless `missing`"
        return said, "feature", f"{why} names them", ""
    if _is_key(counts):
        return ColumnText("text"), "drop", "another text in nearly every record", "text"
    why = f"text of {len(counts):,} different values"
    return ColumnText("text"), "variable", why, "text"


def _find_marks(counts: Counter[str]) -> str:
    """Format of numbers by the unit that most cells have, and by brackets or a minus behind."""
    units = Counter[str]()
    for name, n in counts.items():
        units.update(dict.fromkeys(conversions.UNIT.findall(name)[:1], n))
    unit = next((one for one, n in units.most_common(1) if n > MOSTLY * counts.total()), "")
    signed = any(re.fullmatch(r"\(.*\d.*\)|[^()]*\d\D*-", name) for name in counts)
    return conversions.BRACKETS * signed + unit


def _guess_date(counts: Counter[str]) -> tuple[ColumnText, Use, str, str] | None:
    n, fitting = counts.total(), dict[str, int]()
    for form, pattern in CELLS["dates"].items():
        alike = [name for name in counts if re.fullmatch(pattern, name)]
        texts = pd.Series(alike, dtype=str)
        times = pd.to_datetime(texts, format=form or "ISO8601", errors="coerce")
        fitting[form] = sum(counts[one] for one, ok in zip(alike, times.notna(), strict=True) if ok)
    # Two formats may share the column; then the rows of the rarer one are refused, by number.
    form = max(fitting, key=lambda one: fitting[one])
    mixed = {form, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", ""}
    if sum(fitting[one] for one in mixed) < MOSTLY * n or not fitting[form]:
        return None
    other = {"%m/%d/%Y": "%d/%m/%Y", "%d/%m/%Y": "%m/%d/%Y"}.get(form)
    text = ColumnText("date", form)
    if other is not None and fitting[other] == fitting[form]:
        why = "dates of which day and month cannot be distinguished: say the format, and use days"
        return text, "drop", why, "date"
    why = f"dates, as {form or 'ISO 8601'}"
    why += f"; {n - fitting[form]} cells in the sample are not" if n > fitting[form] else ""
    return text, "days", why, "date"


def _guess_typed(column: TableColumn, values: Any) -> ColumnPlan:
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
        return ColumnPlan(kind, use, why=why, share_missing=missing)
    counts = Counter(map(str, values.drop_null().to_pylist()))
    if column.kind == "integer" and _is_key(counts):
        use, why = "drop", "another whole number in each record: a key"
    elif len(counts) == 1 and len(values) > 1:
        use, why = "drop", f"{why}; a constant in the sample"
    examples = _invent(kind, ColumnText(kind), Dialect(), counts)
    return ColumnPlan(kind, use, why=why, examples=examples, share_missing=missing)


def _is_key(counts: Counter[str]) -> bool:
    n = counts.total()
    return n >= LEAST_JUDGED and len(counts) > 0.98 * n


def _find_sentinels(cells: Any, text: ColumnText, dialect: Dialect) -> tuple[str, ...]:
    """Numbers such as 999 that occur several times, far beyond all others."""
    marks = [mark for mark in CELLS["sentinels"] if pc.sum(pc.equal(cells, mark)).as_py() > 1]
    values = conversions.convert_cells(cells, text, dialect, marks)[0].drop_null().to_numpy()
    if not marks or len(values) < LEAST_JUDGED:
        return ()
    spread = max(float(values.max() - values.min()), 1.0)
    return tuple(
        mark
        for mark in marks
        if float(mark) > values.max() + 2 * spread or float(mark) < values.min() - 2 * spread
    )


def _invent(kind: str, text: ColumnText, dialect: Dialect, counts: Counter[str]) -> tuple[str, ...]:
    examples = tuple(CELLS["invented"][kind or text.kind])
    if kind == "date" and text.format:
        examples = tuple(pd.Timestamp(one).strftime(text.format) for one in examples)
    if kind == "number":
        examples = tuple(one.replace(".", dialect.decimal) for one in examples)
    return tuple(one for one in examples if one not in counts)[:3]


def _find_functions(found: Mapping[str, ColumnPlan], sample: pa.Table) -> dict[str, str]:
    """By column, one that determines it in the sample: both repeat, and neither is constant."""
    codes = dict[str, Any]()
    # What is left out may be of any type, lists too.
    compared = [name for name, one in found.items() if one.use in ("feature", "variable")]
    for name in compared[:MOST_PAIRED]:
        column = pc.dictionary_encode(sample.column(name).combine_chunks().cast(pa.string()))
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        n = len(column.dictionary)
        if 2 < n < sample.num_rows / 5:
            codes[name] = (column.indices.fill_null(n).to_numpy().astype(np.int64), n + 1)
    determined = dict[str, str]()
    for name, (mine, n_mine) in codes.items():
        for other, (theirs, n_theirs) in codes.items():
            # Of two that determine one another only the later is named.
            if name != other and other not in determined and n_theirs >= n_mine:
                if len(np.unique(theirs * n_mine + mine)) == len(np.unique(theirs)):
                    determined[name] = other
                    break
    return determined
