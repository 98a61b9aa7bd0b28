"""Sparse ARFF rows, ``{column value, ...}``, as batches of dense columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from privpipe.errors import InputError
from privpipe.protocols import IntArray
from privpipe.store.sources.arff.arff_header import ArffAttribute, ArffHeader, undeclared, unquote
from privpipe.store.sources.reading.roles import Form

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
