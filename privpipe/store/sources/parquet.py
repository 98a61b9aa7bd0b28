"""Parquet files as a table, read row group by row group with pyarrow."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from privpipe.errors import SourceError
from privpipe.store.sources.arrow_file import columns_of
from privpipe.store.sources.reading.files import TableFile, open_input
from privpipe.store.sources.reading.source import Form, TableColumn
from privpipe.store.sources.reading.table_source import MOST_BATCHES, SAMPLE_ROWS, FileTable

MOST_COLUMN_BYTES = 2**29
"""Largest column of a row group, unfolded: a page is decoded whole, and may be all of it."""

_INDEX = "__index_level_"
"""How pandas names the index of a frame that it stores as a column."""


class ParquetTable(FileTable):
    """Parquet files of one schema."""

    format_name = "Parquet"

    def describe(self, file: TableFile) -> tuple[TableColumn, ...]:
        """Columns as the footer declares them."""
        found = columns_of(self._open(file, ()).schema_arrow)
        return tuple(column for column in found if not column.name.startswith(_INDEX))

    def read(
        self, file: TableFile, columns: Sequence[TableColumn], forms: Mapping[str, Form], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read columns; see `FileTable.read`.

        Columns that unfold beyond `MOST_COLUMN_BYTES` in a row group are refused, as the footer
        says; pyarrow itself holds pages of a footer that lies to 2 GiB.
        """
        texts = [column.name for column in columns if column.kind == "text"]
        opened = self._open(file, [name for name in texts if name in forms])
        self._check_size(opened.metadata, file, set(forms))
        # No column at all is read where none is needed: a batch then only has its length.
        batches = opened.iter_batches(batch_size=rows, columns=list(forms))
        while (batch := self.guard(file, partial(next, batches, None))) is not None:
            yield batch

    def read_sample(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        """First rows of row groups from all parts of a file."""
        opened = self._open(file, ())
        names = [column.name for column in self.describe(file)]
        for group in range(0, opened.num_row_groups, max(1, opened.num_row_groups // MOST_BATCHES)):
            batches = opened.iter_batches(SAMPLE_ROWS, row_groups=[group], columns=names)
            yield from islice(batches, 1)

    def _open(self, file: TableFile, texts: Sequence[str]) -> pq.ParquetFile:
        return self.guard(
            file,
            lambda: pq.ParquetFile(
                open_input(self.files.system, file.path),
                read_dictionary=list(texts),
                buffer_size=2**20,
                pre_buffer=False,  # it would hold all that it reads
            ),
        )

    def _check_size(self, metadata: pq.FileMetaData, file: TableFile, names: set[str]) -> None:
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for column in map(group.column, range(group.num_columns)):
                size = column.total_uncompressed_size
                if size > MOST_COLUMN_BYTES and column.path_in_schema in names:
                    raise SourceError(
                        f"{self.files.describe(file)} has a row group ({number}) whose column "
                        f"{column.path_in_schema!r} unfolds from {column.total_compressed_size:,} "
                        f"to {size:,} bytes; at most {MOST_COLUMN_BYTES:,} are read at once.",
                        remedy="Write it with smaller row groups, as pyarrow.parquet.write_table("
                        "table, path, row_group_size=2**20), or leave the column out with --drop.",
                        code="row-group",
                    )
