"""ARFF files with dense rows as a table, streamed."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from privpipe.errors import InputError, SourceError
from privpipe.store.sources.reading import delimited, source
from privpipe.store.sources.reading.files import Batches, TableFile, open_input, read_labels
from privpipe.store.sources.reading.source import Columns, Forms, TableColumn
from privpipe.store.sources.reading.table_source import FileTable

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
    SourceError
        If a line is not of the format, or there is no ``@data``; the line is named by number.
    """
    found: list[ArffAttribute] = []
    size = 0
    for number, raw in enumerate(lines, start=1):
        size += len(raw)
        line = raw.decode("utf-8", errors="replace").lstrip("\ufeff").strip()
        if line[:5].lower() == "@data" and found:
            return ArffHeader(tuple(found), number, size)
        if line[:10].lower() == "@attribute":
            if "\ufffd" in line:  # comments and the relation's name may be in any encoding
                raise delimited.not_utf8(f"{where}: line {number}")
            found.append(_read_attribute(line, f"{where}: line {number}"))
        elif (line and not line.startswith(("%", "@"))) or number > MOST_HEADER_LINES:
            break
    problem = f"{where} declares no attributes, or has no @data line after them."
    raise SourceError(problem, remedy="Check that it is an ARFF file.")


def _read_attribute(line: str, where: str) -> ArffAttribute:
    match = _ATTRIBUTE.match(line)
    if match is None:
        raise SourceError(
            f"{where} is not a complete @attribute.", remedy="Write @attribute NAME TYPE."
        )
    name, type_ = unquote(match[1]), match[2].strip()
    kind = "nominal" if type_.startswith("{") else _KINDS.get(type_.split()[0].lower())
    end = type_.rfind("}")
    if kind is None or (kind == "nominal" and end < 0):
        raise SourceError(
            f"{where} declares an attribute of a type that is not known, or values without an end.",
            remedy="Use numeric, real, integer, string, date or all values in braces: {a,b,c}.",
        )
    inner = type_[1:end] if kind == "nominal" else ""
    # An empty value matches, also behind the last comma, where there is none.
    found = (match for match in _VALUE.finditer(inner) if match.start() < len(inner))
    return ArffAttribute(name, kind, tuple(unquote(match[1]) for match in found))


def unquote(text: str) -> str:
    r"""Remove the quotes around a word, and the backslashes inside.

    >>> unquote("'it\\'s'"), unquote("plain")
    ("it's", 'plain')
    """
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


MISSING = ("?", " ?", "? ", " ? ")

PEEK_LINES = 200
"""Lines of data looked at to find out how they are quoted, and whether they are sparse."""


class ArffTable(FileTable):
    """ARFF files with the same attributes."""

    def describe(self, file: TableFile) -> Columns:
        """Attributes of the header."""
        return tuple(map(_as_column, self._read_header(file).attributes))

    def read_labels(self) -> tuple[str, ...]:
        """Of Mulan's list beside a file and named like it, where there is one."""
        path = self.files.files[0].path.removesuffix(".gz").removesuffix(".arff") + ".xml"
        is_there = len(self.files.files) == 1 and self.files.system.exists(path)
        return read_labels(self.files.system, path) if is_there else ()

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Read columns; see `FileTable.read`."""
        header, where = self._read_header(file), self.files.describe(file)
        data = partial(_open_data, self._open(file), header.n_bytes)
        lines = islice(delimited.read_lines(data, where), PEEK_LINES)
        first = b"".join(line for line in lines if line.strip())
        if first.lstrip().startswith(b"{"):
            problem = f"{where} has sparse rows, which are not read."
            remedy = "Write dense ones, as Weka's filter SparseToNonSparse does, or a .csv."
            raise SourceError(problem, remedy=remedy, code="sparse-rows")
        if not first:
            return
        forms = forms or {columns[0].name: "text"}
        marks = _find_marks(first)
        text = delimited.DelimitedText(data, marks, MISSING, where, first_row=header.n_lines)
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
        return read_arff_header(delimited.read_lines(self._open(file), where), where)

    def _open(self, file: TableFile) -> Callable[[], pa.NativeFile]:
        return partial(open_input, self.files.system, file.path)


def _open_data(opener: Callable[[], pa.NativeFile], n_bytes: int) -> pa.NativeFile:
    """What follows the header, as a stream to read; a comment becomes an empty line."""
    stream = opener()
    while n_bytes > 0 and (passed := stream.read(min(n_bytes, delimited.BUFFER_BYTES))):
        n_bytes -= len(passed)
    rest = b""

    def blank_comments(piece: pa.Buffer) -> bytes:
        """Whole lines of what was read; of a line beyond all measure, a part."""
        nonlocal rest
        text = rest + bytes(piece)
        # What follows the last line break waits, so that a comment is seen whole; at the end of the
        # file, where Arrow gives an empty piece, nothing does.
        is_whole = not piece.size or len(text) > delimited.MOST_LINE_BYTES
        end = len(text) if is_whole else text.rfind(b"\n") + 1
        text, rest = text[:end], text[end:]
        # Mostly there are none, and a search is faster than lines.
        if b"%" not in text:
            return text
        lines = text.splitlines(keepends=True)
        return b"".join(b"\n" if line.lstrip().startswith(b"%") else line for line in lines)

    return pa.TransformInputStream(stream, blank_comments)


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
        source.TRUTH_VALUES if {value.lower() for value in values} == {"true", "false"} else kind,
        narrow=are_whole and all(abs(int(value)) < 2**24 for value in values),  # float32 is exact
    )


def _find_marks(first: bytes) -> csv.ParseOptions:
    """Delimiter of the first lines of data, and the quote that most of their cells begin with."""
    quote = max("'\"", key=lambda q: len(re.findall(rf"(?m)(?:^|[,\t])\s*{q}".encode(), first)))
    tabs = b"," not in first and b"\t" in first
    return csv.ParseOptions(
        delimiter="\t" if tabs else ",", quote_char=quote, escape_char="\\", newlines_in_values=True
    )


def _tidy(column: pa.Array, attribute: ArffAttribute, where: str) -> pa.Array:
    """Text without spaces and quotes around it; a nominal value must be declared."""
    # Spaces and quotes are taken off once per value, not once per record.
    coded = pc.dictionary_encode(column)
    names = [unquote(str(name).strip()) for name in coded.dictionary.to_pylist()]
    if attribute.kind == "nominal":
        unknown = [i for i, name in enumerate(names) if name not in set(attribute.values)]
        if unknown:
            count = int(np.isin(coded.indices.to_numpy(zero_copy_only=False), unknown).sum())
            problem = f"{where}: {count} records hold an undeclared value of {attribute.name!r}."
            remedy = "Declare it in the attribute's list of values."
            raise InputError(problem, remedy=remedy, code="undeclared-value")
    return pa.array(names, pa.string()).take(coded.indices)
