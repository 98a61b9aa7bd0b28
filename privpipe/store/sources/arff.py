"""ARFF files as a table, dense or sparse, streamed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from privpipe.errors import FormatError, InputError
from privpipe.store.sources.reading import delimited
from privpipe.store.sources.reading.files import TableFile, TableFiles, open_input, read_labels
from privpipe.store.sources.reading.source import (
    TRUTH_VALUES,
    Form,
    RecordSource,
    SourceLayout,
    TableColumn,
)
from privpipe.store.sources.reading.table_source import FileTable, open_table

_WORD = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,{}'"]+"""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_WORD})\s*(\{{.*\}}|\S.*)$", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_WORD}|[^,]*?)\s*(?:,|$)")

_KINDS = {"numeric": "numeric", "real": "numeric", "integer": "numeric"}
_KINDS |= {"string": "string", "date": "date"}

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
                raise delimited.not_utf8(f"{where}: line {number}")
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
    kind = _KINDS.get(type_.split()[0].lower())
    if kind is None:
        raise FormatError(
            f"{where} declares an attribute of a type that is not known.",
            remedy="Use numeric, real, integer, string, date or a list of values in braces.",
        )
    return ArffAttribute(name, kind)


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
    written = (item for item in enumerate(lines, header.n_lines + 1) if item[1].strip())
    while block := list(islice(written, rows)):
        cells = _split_rows(block, header, where)
        columns = [
            (_fill_text if form == "text" else _fill_numbers)(cells[name], len(block), where)
            for name, form in forms.items()
        ]
        yield pa.RecordBatch.from_arrays(columns, names=list(forms))


@dataclass(frozen=True)
class _Cells:
    """What some rows write down of an attribute: numbers of rows, and the values there."""

    attribute: ArffAttribute
    rows: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


def _split_rows(
    block: Sequence[tuple[int, bytes]], header: ArffHeader, where: str
) -> Mapping[str, _Cells]:
    """Cells of each attribute, by its name; rows are counted within the block."""
    cells = [_Cells(attribute) for attribute in header.attributes]
    for i, (number, line) in enumerate(block):
        match = _ROW.match(line)
        tokens = _TOKEN.findall(match[1]) if match else [b"?"]
        problem = "" if len(tokens) % 2 == 0 else "is not of the sparse format"
        for place, value in zip(tokens[::2], tokens[1::2], strict=False):
            if not place.isdigit() or int(place) >= len(cells):
                problem = f"names a column that is not one of 0 to {len(cells) - 1}"
                break
            # Rows and values apart, so that each column is filled at once.
            cells[int(place)].rows.append(i)
            cells[int(place)].values.append(value)
        if problem:
            raise InputError(
                f"{where}: row {number} {problem}.",
                remedy="Write {column value, column value, ...} with columns from 0.",
                code="ragged",
            )
    return {one.attribute.name: one for one in cells}


def _fill_numbers(cells: _Cells, n_rows: int, where: str) -> pa.Array:
    attribute = cells.attribute
    column = np.full(n_rows, float(attribute.values[0]) if attribute.values else 0.0)
    values = np.array([b"nan" if value == b"?" else value.strip(b"'\"") for value in cells.values])
    with suppress(ValueError):  # its text quotes a cell
        column[cells.rows] = values.astype(np.float64)
        return pa.array(column, from_pandas=True)
    raise InputError(
        f"{where} holds something in the column {attribute.name!r} that is not a number.",
        remedy="Make the column --categorical, or leave it out with --drop.",
        code="text-feature",
    )


def _fill_text(cells: _Cells, n_rows: int, where: str) -> pa.Array:
    attribute = cells.attribute
    # What a row leaves out: the first value, zero, or nothing that can be known.
    absent = "0" if attribute.kind == "numeric" else None
    column = [attribute.values[0] if attribute.values else absent] * n_rows
    written = [None if value == b"?" else unquote(value.decode()) for value in cells.values]
    if attribute.kind == "nominal":
        declared = {None, *attribute.values}
        count = sum(text not in declared for text in written)
        if count:
            raise undeclared(count, attribute.name, where)
    for row, text in zip(cells.rows, written, strict=True):
        column[row] = text
    return pa.array(column, pa.string())


MISSING = ("?", " ?", "? ", " ? ")

PEEK_LINES = 200
"""Lines of data looked at to find out whether they are sparse, and how they are quoted."""


def open_arff(files: TableFiles, layout: SourceLayout) -> RecordSource:
    """ARFF files as a source."""
    return open_table(ArffTable(files, layout))


class ArffTable(FileTable):
    """ARFF files with the same attributes."""

    def describe(self, file: TableFile) -> tuple[TableColumn, ...]:
        """Attributes of the header."""
        return tuple(map(_as_column, self._read_header(file).attributes))

    def read_labels(self) -> tuple[str, ...]:
        """Of the list given, or of Mulan's beside a file and named like it, where there is one."""
        path = self.files.files[0].path.removesuffix(".gz").removesuffix(".arff") + ".xml"
        alone = self.layout.label_file is None and len(self.files.files) == 1
        if alone and self.files.system.exists(path):
            return read_labels(self.files.system, path)
        return super().read_labels()

    def read(
        self, file: TableFile, columns: Sequence[TableColumn], forms: Mapping[str, Form], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read columns; see `FileTable.read`."""
        header, where, opener = self._read_header(file), self.files.describe(file), self._open(file)
        forms = forms or {columns[0].name: "text"}

        def data() -> pa.NativeFile:
            return pa.PythonFile(delimited.DataLines(opener(), header.n_bytes), mode="r")

        lines = islice(delimited.read_lines(opener, header.n_bytes, where), PEEK_LINES)
        first = b"".join(line for line in lines if line.strip())
        if first.lstrip().startswith(b"{"):
            written = delimited.read_lines(opener, header.n_bytes, where)
            try:
                yield from read_sparse(written, header, forms, rows, where)
                return
            except UnicodeDecodeError:  # its text quotes a cell
                pass
            raise delimited.not_utf8(
                f"{where}{delimited.find_undecodable(data, header.n_lines + 1)}"
            )
        if not first:
            return
        text = delimited.DelimitedText(data, _find_dialect(first), where, first_row=header.n_lines)
        known = {attribute.name: attribute for attribute in header.attributes}
        types = {n: pa.string() if form == "text" else pa.float64() for n, form in forms.items()}
        for batch in text.read(list(known), types, skip=0):
            found = [
                _tidy(batch.column(name), known[name], where)
                if form == "text"
                else batch.column(name)
                for name, form in forms.items()
            ]
            yield pa.RecordBatch.from_arrays(found, names=list(forms))

    def _read_header(self, file: TableFile) -> ArffHeader:
        where = self.files.describe(file)
        header = read_arff_header(delimited.read_lines(self._open(file), 0, where), where)
        if not header.attributes:
            raise FormatError(f"{where} declares no attributes.", remedy="Check the file.")
        return header

    def _open(self, file: TableFile) -> Callable[[], pa.NativeFile]:
        return partial(open_input, self.files.system, file.path)


def _as_column(attribute: ArffAttribute) -> TableColumn:
    name, kind, values = attribute.name, attribute.kind, attribute.values
    if kind == "numeric":
        return TableColumn(name, "number", kind)
    if kind != "nominal":
        return TableColumn(name, "text" if kind == "string" else "other", kind)
    # {0,1} are numbers that a feature may hold; as a variable they are few whole numbers.
    are_whole = all(value.lstrip("+-").isdecimal() for value in values)
    return TableColumn(
        name,
        "integer" if are_whole else "text",
        TRUTH_VALUES if {value.lower() for value in values} == {"true", "false"} else kind,
        narrow=are_whole and all(abs(int(value)) < 2**24 for value in values),  # float32 is exact
    )


def _find_dialect(first: bytes) -> delimited.Dialect:
    """Delimiter of the first lines of data, and the quote that most of their cells begin with."""
    quote = max(
        "'\"", key=lambda mark: len(re.findall(rf"(?m)(?:^|[,\t])\s*{mark}".encode(), first))
    )
    tabs = b"," not in first and b"\t" in first
    return delimited.Dialect("\t" if tabs else ",", quote, MISSING, escape="\\")


def _tidy(column: pa.Array, attribute: ArffAttribute, where: str) -> pa.Array:
    """Text without spaces and quotes around it; a nominal value must be declared."""
    # Spaces and quotes are taken off once per value, not once per record.
    coded = pc.dictionary_encode(column)
    names = [unquote(str(name).strip()) for name in coded.dictionary.to_pylist()]
    if attribute.kind == "nominal":
        unknown = [i for i, name in enumerate(names) if name not in set(attribute.values)]
        if unknown:
            count = int(np.isin(coded.indices.to_numpy(zero_copy_only=False), unknown).sum())
            raise undeclared(count, attribute.name, where)
    found: Any = pa.array(names, pa.string()).take(coded.indices)
    return found
