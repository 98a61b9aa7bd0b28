"""ARFF files as a table, dense or sparse, streamed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from privpipe.errors import FormatError
from privpipe.store.access.location import shown
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
from privpipe.store.sources.reading.files import (
    TableFile,
    TableFiles,
    open_input,
    read_label_file,
    read_labels,
    with_key_columns,
    with_keys,
)
from privpipe.store.sources.reading.roles import TRUTH_VALUES, Form, TableColumn, check_drift
from privpipe.store.sources.reading.source import SourceLayout
from privpipe.store.sources.reading.table_source import TableSource

MISSING = ("?", " ?", "? ", " ? ")

PEEK_LINES = 200
"""Lines of data looked at to find out whether they are sparse, and how they are quoted."""


def open_arff(files: TableFiles, layout: SourceLayout) -> TableSource:
    """ARFF files as a source, with the labels of the list given or of the one beside the file."""
    given = layout.label_file
    labels = _labels_beside(files) if given is None else read_label_file(given)
    return TableSource(ArffTable(files), layout, labels)


class ArffTable:
    """ARFF files with the same attributes.

    Parameters
    ----------
    files
        The files.
    """

    def __init__(self, files: TableFiles) -> None:
        self._files = files

    @property
    def where(self) -> str:
        return shown(self._files.url)

    @property
    def partitions(self) -> tuple[str, ...]:
        return self._files.partitions

    @cached_property
    def columns(self) -> tuple[TableColumn, ...]:
        """Attributes of the first file, and the Hive keys."""
        header = self._read_header(self._files.files[0])
        return with_key_columns(_describe(header.attributes), self._files)

    def count_records(self) -> Sequence[int] | None:
        """None: a text must be read to count its records."""
        return None

    def locate_text(self, name: str) -> str:
        """Nothing: types are declared."""
        return ""

    def batches(self, forms: Mapping[str, Form], rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read columns; see `Table`."""
        first = tuple(column for column in self.columns if not column.optional)
        wanted: dict[str, Form] = {c.name: forms[c.name] for c in first if c.name in forms}
        wanted = wanted or {first[0].name: "text"}
        for file in self._files.files:
            header, where = self._read_header(file), self._files.describe(file)
            check_drift(first, _describe(header.attributes), where)
            for batch in self._read(file, header, wanted, rows):
                for start in range(0, batch.num_rows, rows):
                    yield file.partition, with_keys(batch.slice(start, rows), file, forms)

    def _read(
        self, file: TableFile, header: ArffHeader, forms: Mapping[str, Form], rows: int
    ) -> Iterator[pa.RecordBatch]:
        where, opener = self._files.describe(file), self._opener(file)

        def data() -> pa.NativeFile:
            return pa.PythonFile(DataLines(opener(), header.n_bytes), mode="r")

        first = self._peek(file, header)
        if not first:
            return
        if first.lstrip().startswith(b"{"):
            lines = read_lines(opener, header.n_bytes, where)
            try:
                yield from read_sparse(lines, header, forms, rows, where)
                return
            except UnicodeDecodeError:  # its text quotes a cell
                pass
            raise not_utf8(f"{where}{find_undecodable(data, header.n_lines + 1)}")
        text = DelimitedText(data, _find_dialect(first), where, first_row=header.n_lines)
        names = [attribute.name for attribute in header.attributes]
        types = {n: pa.string() if form == "text" else pa.float64() for n, form in forms.items()}
        known = {attribute.name: attribute for attribute in header.attributes}
        for batch in text.read(names, types, skip=0):
            columns = [
                _tidy(batch.column(name), known[name], where)
                if form == "text"
                else batch.column(name)
                for name, form in forms.items()
            ]
            yield pa.RecordBatch.from_arrays(columns, names=list(forms))

    def _read_header(self, file: TableFile) -> ArffHeader:
        where = self._files.describe(file)
        header = read_arff_header(read_lines(self._opener(file), 0, where), where)
        if not header.attributes:
            raise FormatError(f"{where} declares no attributes.", remedy="Check the file.")
        return header

    def _opener(self, file: TableFile) -> Callable[[], pa.NativeFile]:
        return partial(open_input, self._files.system, file.path)

    def _peek(self, file: TableFile, header: ArffHeader) -> bytes:
        """The first lines of data, comments left out."""
        lines = read_lines(self._opener(file), header.n_bytes, self._files.describe(file))
        found = [line for line, _ in zip(lines, range(PEEK_LINES), strict=False)]
        return b"".join(line for line in found if line.strip())


def _labels_beside(files: TableFiles) -> tuple[str, ...]:
    """Of Mulan's list beside a file and named like it; none where there is no such list."""
    path = files.files[0].path.removesuffix(".gz").removesuffix(".arff") + ".xml"
    if len(files.files) > 1 or not files.system.exists(path):
        return ()
    return read_labels(files.system, path)


def _describe(attributes: Sequence[ArffAttribute]) -> tuple[TableColumn, ...]:
    return tuple(_as_column(attribute) for attribute in attributes)


def _as_column(attribute: ArffAttribute) -> TableColumn:
    if attribute.kind == "numeric":
        return TableColumn(attribute.name, "number", "numeric")
    if attribute.kind == "nominal":
        # {0,1} are numbers that a feature may hold; as a variable they are few whole numbers.
        return TableColumn(
            attribute.name,
            "integer" if all(map(_is_whole, attribute.values)) else "text",
            TRUTH_VALUES if _are_truth_values(attribute.values) else "nominal",
            narrow=all(_is_whole(value) and abs(int(value)) < 2**24 for value in attribute.values),
        )
    return TableColumn(
        attribute.name, "text" if attribute.kind == "string" else "other", attribute.kind
    )


def _are_truth_values(values: Sequence[str]) -> bool:
    return {value.lower() for value in values} == {"true", "false"}


def _is_whole(text: str) -> bool:
    return text.lstrip("+-").isdecimal()


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
