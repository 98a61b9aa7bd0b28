"""ARFF files as a table, dense or sparse, streamed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from privpipe.errors import FormatError
from privpipe.store.sources.arff_rows import (
    ArffAttribute,
    ArffHeader,
    read_arff_header,
    read_sparse,
    undeclared,
    unquote,
)
from privpipe.store.sources.reading.delimited import (
    DataLines,
    DelimitedText,
    Dialect,
    find_undecodable,
    not_utf8,
    read_lines,
)
from privpipe.store.sources.reading.files import TableFile, TableFiles, open_input, read_labels
from privpipe.store.sources.reading.roles import TRUTH_VALUES, Form, TableColumn
from privpipe.store.sources.reading.source import RecordSource, SourceLayout
from privpipe.store.sources.reading.table_source import FileTable, open_table

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
            return pa.PythonFile(DataLines(opener(), header.n_bytes), mode="r")

        lines = islice(read_lines(opener, header.n_bytes, where), PEEK_LINES)
        first = b"".join(line for line in lines if line.strip())
        if first.lstrip().startswith(b"{"):
            written = read_lines(opener, header.n_bytes, where)
            try:
                yield from read_sparse(written, header, forms, rows, where)
                return
            except UnicodeDecodeError:  # its text quotes a cell
                pass
            raise not_utf8(f"{where}{find_undecodable(data, header.n_lines + 1)}")
        if not first:
            return
        text = DelimitedText(data, _find_dialect(first), where, first_row=header.n_lines)
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
        header = read_arff_header(read_lines(self._open(file), 0, where), where)
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


def _find_dialect(first: bytes) -> Dialect:
    """Delimiter of the first lines of data, and the quote that most of their cells begin with."""
    quote = max(
        "'\"", key=lambda mark: len(re.findall(rf"(?m)(?:^|[,\t])\s*{mark}".encode(), first))
    )
    tabs = b"," not in first and b"\t" in first
    return Dialect("\t" if tabs else ",", quote, MISSING, escape="\\")


def _tidy(column: pa.Array, attribute: ArffAttribute, where: str) -> pa.Array:
    """Text without spaces and quotes around it; a nominal value must be declared."""
    coded = pc.dictionary_encode(column)
    names = [unquote(str(name).strip()) for name in coded.dictionary.to_pylist()]
    if attribute.kind == "nominal":
        unknown = [i for i, name in enumerate(names) if name not in set(attribute.values)]
        if unknown:
            count = int(np.isin(coded.indices.to_numpy(zero_copy_only=False), unknown).sum())
            raise undeclared(count, attribute.name, where)
    found: Any = pa.array(names, pa.string()).take(coded.indices)
    return found
