"""Parquet files as a table, read row group by row group with pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from privpipe.errors import FormatError
from privpipe.store.access.location import shown
from privpipe.store.sources.reading.files import (
    TableFile,
    TableFiles,
    open_input,
    read_label_file,
    with_key_columns,
    with_keys,
)
from privpipe.store.sources.reading.roles import Form, TableColumn, check_drift
from privpipe.store.sources.reading.source import SourceLayout
from privpipe.store.sources.reading.table_source import TableSource, is_narrow, kind_of

T = TypeVar("T")

MOST_COLUMN_BYTES = 2**29
"""Largest column of a row group, unfolded: a page is decoded whole, and may be all of it."""

_INDEX = "__index_level_"
"""How pandas names the index of a frame that it stores as a column."""


def open_parquet(files: TableFiles, layout: SourceLayout) -> TableSource:
    """Parquet files as a source."""
    return TableSource(ParquetTable(files), layout, read_label_file(layout.label_file))


class ParquetTable:
    """Parquet files of one schema.

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
        """Columns of the first file, and the Hive keys."""
        first = self._files.files[0]
        found = _describe(self._open(first, ()).schema_arrow)
        return with_key_columns(found, self._files)

    def locate_text(self, name: str) -> str:
        """Nothing: types are declared."""
        return ""

    def batches(self, forms: Mapping[str, Form], rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read columns; see `Table`. Files that differ from the first are refused.

        So are columns that unfold beyond `MOST_COLUMN_BYTES` in a row group, as the footer says;
        pyarrow itself holds pages of a footer that lies to 2 GiB.
        """
        stored = {column.name: column for column in self.columns if not column.optional}
        names = [name for name in forms if name in stored]
        texts = [name for name in names if stored[name].kind == "text"]
        for file in self._files.files:
            opened = self._open(file, texts)
            self._check_drift(opened.schema_arrow, file)
            self._check_size(opened.metadata, file, names)
            batches = opened.iter_batches(batch_size=rows, columns=names)
            while (batch := self._guard(file, partial(next, batches, None))) is not None:
                if batch.num_rows:
                    yield file.partition, with_keys(batch, file, forms)

    def count_records(self) -> Sequence[int]:
        """Records of each partition, from the files' footers."""
        counts = [0] * len(self.partitions)
        for file in self._files.files:
            opened = self._open(file, ())
            self._check_drift(opened.schema_arrow, file)
            counts[file.partition] += opened.metadata.num_rows
        return counts

    def _open(self, file: TableFile, texts: Sequence[str]) -> pq.ParquetFile:
        return self._guard(
            file,
            lambda: pq.ParquetFile(
                open_input(self._files.system, file.path),
                read_dictionary=list(texts),
                buffer_size=2**20,
                pre_buffer=False,  # it would keep all that it reads
            ),
        )

    def _guard(self, file: TableFile, read: Callable[[], T]) -> T:
        """Read; what pyarrow says of a damaged file may quote it, so it is not passed on."""
        try:
            return read()
        except (pa.ArrowException, OSError) as error:
            problem = type(error).__name__
        raise FormatError(
            f"{self._files.describe(file)} cannot be read as Parquet ({problem}).",
            remedy="The file is damaged, cut short or something else: write it again.",
        )

    def _check_size(self, metadata: pq.FileMetaData, file: TableFile, names: Sequence[str]) -> None:
        wanted = set(names)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for place in range(group.num_columns):
                column = group.column(place)
                size = column.total_uncompressed_size
                if size <= MOST_COLUMN_BYTES or column.path_in_schema not in wanted:
                    continue
                raise FormatError(
                    f"{self._files.describe(file)} has a row group ({number}) whose column "
                    f"{column.path_in_schema!r} unfolds from {column.total_compressed_size:,} to "
                    f"{size:,} bytes; at most {MOST_COLUMN_BYTES:,} are read at once.",
                    remedy="Write it with smaller row groups, as pyarrow.parquet.write_table("
                    "table, path, row_group_size=2**20), or leave the column out with --drop.",
                    code="row-group",
                )

    def _check_drift(self, schema: pa.Schema, file: TableFile) -> None:
        first = [column for column in self.columns if not column.optional]
        check_drift(first, _describe(schema), self._files.describe(file))


def _describe(schema: pa.Schema) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(field.name, kind_of(field.type), str(field.type), is_narrow(field.type))
        for field in schema
        if not field.name.startswith(_INDEX)
    )
