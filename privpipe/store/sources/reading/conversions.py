"""Cells of text as numbers, dates and truth values, where a reviewed schema says how to read them.

What does not fit is an error with its rows, all of them, and never its cells.
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from privpipe.errors import InputError
from privpipe.store.sources.reading.source import ColumnText, Dialect

TRUE = ("true", "t", "yes", "y", "1", "ja", "j", "oui", "o", "si", "sí", "s", "wahr", "vrai", "on")
FALSE = ("false", "f", "no", "n", "0", "nein", "non", "falsch", "faux", "off")
"""Words for truth values, in lower case."""

CELLS = tomllib.loads(Path(__file__).with_name("cells.toml").read_text("utf-8"))
"""What cells of a text look like, for guesses."""

UNIT = re.compile("|".join(map(re.escape, CELLS["units"])))

LOST_ZERO = r"^[+-]?0[0-9]"
"""How a number begins that is a code: as a number it would lose its zeros."""

ZEROS = "zeros"
"""Format of a column of numbers that may begin with zeros."""

BRACKETS = "()"
"""How the format of numbers begins of which (5) and 5- are less than 0; a unit may follow."""

WORDS = {"boolean": "truth value", "ordered": "category in order"}
"""What messages call a kind that has another name than its own."""

MOST_SHOWN = 12
"""Rows in a message; `details` has all."""


def needs_text(said: ColumnText, dialect: Dialect) -> bool:
    """Whether a column is read as text first, because no reader knows how its cells are written."""
    is_number = said.kind == "number" and not dialect.thousands and said.format in ("", ZEROS)
    return not (is_number or said.kind == "text") or bool(said.missing) or dialect.trim


def convert_cells(
    column: pa.Array, said: ColumnText, dialect: Dialect, missing: Iterable[str]
) -> tuple[pa.Array, npt.NDArray[np.intp]]:
    """Cells as what they mean, and the places of those that mean nothing of the kind.

    Parameters
    ----------
    column
        (n_records,) of text, or anything else, which has its meaning already.
    said, dialect
        How they are written.
    missing
        Cells that mean a missing value in all columns.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column, np.empty(0, np.intp)
    cells = pc.utf8_trim_whitespace(column) if dialect.trim or said.kind != "text" else column
    gone = pa.array([*said.missing, *missing], cells.type)
    cells = pc.if_else(pc.is_in(cells, gone), pa.scalar(None, cells.type), cells)
    read = {
        "number": _read_numbers,
        "date": _read_dates,
        "boolean": _read_truths,
        "ordered": _read_order,
    }
    found = cells if said.kind == "text" else read[said.kind](cells, said, dialect)
    bad = pc.and_(pc.is_null(found), pc.is_valid(cells))
    return found, np.flatnonzero(bad.to_numpy(zero_copy_only=False))


def _read_numbers(cells: pa.Array, said: ColumnText, dialect: Dialect) -> pa.Array:
    if said.format not in ("", ZEROS):
        cells = _take_marks(cells, said.format)
    group, sign = re.escape(dialect.thousands), re.escape(dialect.decimal)
    grouped = rf"[0-9]{{1,3}}(?:{group}[0-9]{{3}})+|" if group else ""
    pattern = rf"^[+-]?(?:{grouped}[0-9]+)?(?:{sign}[0-9]*)?(?:[eE][+-]?[0-9]+)?$"
    has_digit = pc.match_substring_regex(cells, "[0-9]")
    is_number = pc.and_(pc.match_substring_regex(cells, pattern), has_digit)
    # 1.23 where a dot groups thousands is no 123, and 007 no 7: neither is changed in silence.
    if said.format != ZEROS:
        is_number = pc.and_(is_number, pc.invert(pc.match_substring_regex(cells, LOST_ZERO)))
    plain = cells
    if dialect.thousands:
        plain = pc.replace_substring(plain, dialect.thousands, "")
    plain = pc.replace_substring(plain, dialect.decimal, ".")
    return pc.if_else(is_number, plain, pa.scalar(None, plain.type)).cast(pa.float64())


def _take_marks(cells: pa.Array, form: str) -> pa.Array:
    """Numbers without the marks of their format; null where a cell lacks its unit.

    A column has one unit: 5 beside 5 %, or dollars beside euros, are other numbers.
    """
    unit = form.removeprefix(BRACKETS)
    if unit != form:
        for brackets in (r"^\((.*)\)$", r"^([^()]*[0-9]\D*)-$"):
            cells = pc.replace_substring_regex(cells, brackets, r"-\1")
    if not unit:
        return cells
    before = rf"^([+-]?)\s*{re.escape(unit)}\s*|\s*{re.escape(unit)}$"
    has_unit = pc.match_substring_regex(cells, before)
    bare = pc.replace_substring_regex(cells, before, r"\1", max_replacements=1)
    return pc.if_else(has_unit, bare, pa.scalar("", cells.type))


def _read_dates(cells: pa.Array, said: ColumnText, _: Dialect) -> pa.Array:
    # Of each text once: pandas refuses a 31st of February, which Arrow takes for the 2nd of March.
    coded = pc.dictionary_encode(cells)
    texts = coded.dictionary.to_pandas()
    times = pd.to_datetime(texts, format=said.format or "ISO8601", errors="coerce", utc=True)
    times = times.dt.tz_localize(None).astype("datetime64[us]")
    return pa.array(times, pa.timestamp("us"), from_pandas=True).take(coded.indices)


def _read_truths(cells: pa.Array, _: ColumnText, __: Dialect) -> pa.Array:
    words = pc.utf8_lower(cells)
    true, false = (pc.is_in(words, pa.array(known, words.type)) for known in (TRUE, FALSE))
    return pc.if_else(pc.or_(true, false), true, pa.scalar(None, pa.bool_()))


def _read_order(cells: pa.Array, said: ColumnText, _: Dialect) -> pa.Array:
    return pc.index_in(cells, pa.array(said.order, cells.type)).cast(pa.float32())


def explain_cells(where: str, name: str, said: ColumnText, rows: list[int]) -> InputError:
    """Cells of a column that are not of its kind, by row, all of them in `details`."""
    more = f" and {len(rows) - MOST_SHOWN:,} more" if len(rows) > MOST_SHOWN else ""
    what = WORDS.get(said.kind, said.kind)
    how = f" written as {said.format}" if said.format else ""
    return InputError(
        f"{where}: the column {name!r} holds no {what}{how} in "
        f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows[:MOST_SHOWN]))}{more}.",
        remedy="Fix these rows, or change what the schema says of the column: its kind, its "
        "format, or the cells that mean a missing value.",
        code="cell",
        details=[{"column": name, "row": row} for row in rows],
    )
