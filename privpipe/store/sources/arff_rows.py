"""The header of an ARFF file: attributes and where the data begin.

Format: Weka's description of ARFF (dense and sparse). scipy's reader loads whole files and
refuses text attributes and sparse data, so that only the header is read here and the data are
streamed; the tests hold this header against scipy's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from privpipe.errors import FormatError, InputError
from privpipe.protocols import IntArray
from privpipe.store.sources.reading.delimited import not_utf8
from privpipe.store.sources.reading.roles import Form

_WORD = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,{}'"]+"""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_WORD})\s*(\{{.*\}}|\S.*)$", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_WORD}|[^,]*?)\s*(?:,|$)")

MOST_HEADER_LINES = 2_000_000


@dataclass(frozen=True)
class ArffAttribute:
    """One attribute.

    Parameters
    ----------
    name
        Its name, quotes removed.
    kind
        "numeric", "nominal", "string" or "date".
    values
        Declared values of a nominal attribute.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArffHeader:
    """What comes before the data.

    Parameters
    ----------
    attributes
        In the order of the columns.
    n_lines
        Lines up to and with ``@data``.
    n_bytes
        Bytes up to and with that line.
    """

    attributes: tuple[ArffAttribute, ...]
    n_lines: int
    n_bytes: int


def read_arff_header(lines: Iterable[bytes], where: str) -> ArffHeader:
    """Read attributes up to the line ``@data``.

    Parameters
    ----------
    lines
        Lines of the file, with their ends.
    where
        The file, for messages.

    Raises
    ------
    FormatError
        If a line is not of the format, or there is no ``@data``; the line is named by number.
    """
    found: list[ArffAttribute] = []
    size = 0
    for number, raw in enumerate(lines, start=1):
        size += len(raw)
        line = raw.decode("utf-8", errors="replace").lstrip("\ufeff").strip()
        if line[:5].lower() == "@data":
            return ArffHeader(tuple(found), number, size)
        if line[:10].lower() == "@attribute":
            if "\ufffd" in line:  # comments and the relation's name may be in any encoding
                raise not_utf8(f"{where}: line {number}")
            found.append(_read_attribute(line, f"{where}: line {number}"))
        elif (line and not line.startswith(("%", "@"))) or number > MOST_HEADER_LINES:
            break
    raise FormatError(
        f"{where} has no @data line after its attributes.", remedy="Check that it is an ARFF file."
    )


def _read_attribute(line: str, where: str) -> ArffAttribute:
    match = _ATTRIBUTE.match(line)
    if match is None:
        raise FormatError(
            f"{where} is not a complete @attribute.", remedy="Write @attribute NAME TYPE."
        )
    name, type_ = unquote(match.group(1)), match.group(2).strip()
    if type_.startswith("{"):
        if "}" not in type_:
            raise FormatError(
                f"{where} opens a list of values with a brace and does not close it.",
                remedy="Write all values of the attribute on one line: {a,b,c}.",
            )
        inner = type_[1 : type_.rindex("}")]
        return ArffAttribute(name, "nominal", _read_values(inner))
    word = type_.split()[0].lower()
    kinds = {"numeric": "numeric", "real": "numeric", "integer": "numeric"}
    kinds |= {"string": "string", "date": "date"}
    if word not in kinds:
        raise FormatError(
            f"{where} declares an attribute of a type that is not known.",
            remedy="Use numeric, real, integer, string, date or a list of values in braces.",
        )
    return ArffAttribute(name, kinds[word])


def _read_values(inner: str) -> tuple[str, ...]:
    found: list[str] = []
    at = 0
    while at < len(inner):
        match = _VALUE.match(inner, at)
        assert match is not None, "an empty value matches"
        found.append(unquote(match.group(1)))
        at = match.end()
    return tuple(found)


def unquote(text: str) -> str:
    r"""Remove the quotes around a word, and the backslashes inside.

    >>> unquote("'it\\'s'"), unquote("plain")
    ("it's", 'plain')
    """
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def undeclared(count: int, name: str, where: str) -> InputError:
    """The error for values that a nominal attribute does not declare."""
    return InputError(
        f"{where}: {count} records hold a value of {name!r} that the header does not declare.",
        remedy="Declare it in the attribute's list of values.",
        code="undeclared-value",
    )


_TOKEN = re.compile(rb"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,]+""")
_ROW = re.compile(rb"""^\s*\{((?:[^}'"]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*)\}""")


@dataclass(frozen=True, eq=False)
class _Cells:
    """The cells that some rows write down, in the order of the rows."""

    row: IntArray
    column: IntArray
    value: npt.NDArray[np.bytes_]


def read_sparse(
    lines: Iterable[bytes], header: ArffHeader, forms: Mapping[str, Form], rows: int, where: str
) -> Iterator[pa.RecordBatch]:
    """Read sparse rows; what a row leaves out is 0, or the first declared value.

    Parameters
    ----------
    lines
        Lines of data; empty ones are passed over.
    header
        The attributes.
    forms
        Columns to read, and how.
    rows
        Records per batch.
    where
        The file, for messages.

    Raises
    ------
    InputError
        If a row is not of the format, or a value is not declared; rows are named by number.
    """
    written = (
        (number, line) for number, line in enumerate(lines, header.n_lines + 1) if line.strip()
    )
    known = {attribute.name: place for place, attribute in enumerate(header.attributes)}
    while block := list(islice(written, rows)):
        cells = _split_rows(block, len(header.attributes), where)
        order = np.argsort(cells.column, kind="stable")
        edges = np.searchsorted(cells.column[order], np.arange(len(header.attributes) + 1))
        columns: list[pa.Array] = []
        for name, form in forms.items():
            place = known[name]
            mine = order[edges[place] : edges[place + 1]]
            fill = _fill_text if form == "text" else _fill_numbers
            columns.append(
                fill(
                    header.attributes[place], cells.row[mine], cells.value[mine], len(block), where
                )
            )
        yield pa.RecordBatch.from_arrays(columns, names=list(forms))


def _split_rows(block: Sequence[tuple[int, bytes]], n_columns: int, where: str) -> _Cells:
    tokens: list[bytes] = []
    counts = np.empty(len(block), np.int64)
    for i, (number, line) in enumerate(block):
        match = _ROW.match(line)
        body = match.group(1) if match else b"?"
        plain = b"'" not in body and b'"' not in body
        found = body.replace(b",", b" ").split() if plain else _TOKEN.findall(body)
        if match is None or len(found) % 2:
            raise InputError(
                f"{where}: row {number} is not of the sparse format.",
                remedy="Write {column value, column value, ...} with columns from 0.",
                code="ragged",
            )
        counts[i] = len(found) // 2
        tokens += found
    column = _as_places(tokens[0::2])
    if len(column) and (column.min() < 0 or column.max() >= n_columns):
        raise InputError(
            f"{where}: rows {block[0][0]} to {block[-1][0]} name a column that is not one of 0 to "
            f"{n_columns - 1}.",
            remedy="Columns of sparse rows are numbered from 0.",
            code="ragged",
        )
    return _Cells(np.repeat(np.arange(len(block)), counts), column, np.array(tokens[1::2], "S"))


def _as_places(tokens: Sequence[bytes]) -> IntArray:
    """Numbers of columns; -1 where a token is none."""
    if all(token.isdigit() for token in set(tokens)):
        return np.array(tokens, "S").astype(np.int64)
    return np.array([int(token) if token.isdigit() else -1 for token in tokens], np.int64)


def _fill_numbers(
    attribute: ArffAttribute, row: IntArray, value: npt.NDArray[np.bytes_], n_rows: int, where: str
) -> pa.Array:
    absent = float(attribute.values[0]) if attribute.values else 0.0
    column = np.full(n_rows, absent)
    known = value != b"?"
    column[row[~known]] = np.nan
    bad = False
    try:
        column[row[known]] = np.char.strip(value[known], b"'\"").astype(np.float64)
    except ValueError:  # its text quotes a cell
        bad = True
    if bad:
        raise InputError(
            f"{where} holds something in the column {attribute.name!r} that is not a number.",
            remedy="Make the column --categorical, or leave it out with --drop.",
            code="text-feature",
        )
    return pa.array(column, from_pandas=True)


def _fill_text(
    attribute: ArffAttribute, row: IntArray, value: npt.NDArray[np.bytes_], n_rows: int, where: str
) -> pa.Array:
    column: npt.NDArray[Any] = np.full(n_rows, _absent(attribute), dtype=object)
    written = [None if token == b"?" else unquote(token.decode()) for token in value.tolist()]
    if attribute.kind == "nominal":
        declared = {None, *attribute.values}
        count = sum(text not in declared for text in written)
        if count:
            raise undeclared(count, attribute.name, where)
    column[row] = written
    return pa.array(column, pa.string())


def _absent(attribute: ArffAttribute) -> str | None:
    """What a sparse row leaves out: the first value, zero, or nothing that can be known."""
    if attribute.values:
        return attribute.values[0]
    return "0" if attribute.kind == "numeric" else None
