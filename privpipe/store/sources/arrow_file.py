"""Arrow files (Feather), Parquet files and lines of JSON as tables, read batch by batch."""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from privpipe.errors import SourceError
from privpipe.store.sources.reading import table_source as tables
from privpipe.store.sources.reading.files import Batches, TableFile, open_input
from privpipe.store.sources.reading.source import Columns, Forms, TableColumn
from privpipe.store.sources.reading.table_source import FileTable, is_narrow, kind_of

BLOCK_BYTES = 2**22
"""Text of JSON parsed at once; no line may be longer."""

WHOLE = rb'"%s"\s*:\s*(-?(?:[0-9]{16}|[0-9]{17,}(?:[.]0*)?))[\s,}]'
"""A pair whose number is whole. Of 17 digits and more, programs write floating ones as 1e20."""

MOST_COLUMN_BYTES = 2**29
"""Largest column of a row group, unfolded: a page is decoded whole, and may be all of it."""

_INDEX = "__index_level_"
"""How pandas names the index of a frame that it stores as a column."""


def columns_of(schema: pa.Schema) -> Columns:
    """Columns as Arrow declares them."""
    return tuple(
        TableColumn(field.name, kind_of(field.type), str(field.type), is_narrow(field.type))
        for field in schema
    )


class ArrowTable(FileTable):
    """Arrow files of one schema."""

    format_name = "an Arrow file"

    def describe(self, file: TableFile) -> Columns:
        """Columns as the file declares them."""
        # Names are decoded when they are read, and may be no text.
        found: Columns = self.guard(file, lambda: columns_of(next(self.open_batches(file)).schema))
        return found

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Read columns; see `FileTable.read`."""
        batches = self.open_batches(file)
        while (batch := self.guard(file, partial(next, batches, None))) is not None:
            yield batch.select(list(forms)) if forms else batch

    def open_batches(self, file: TableFile) -> Batches:
        """All batches of a file; at least one, which may be empty."""
        opened = pa.ipc.open_file(open_input(self.files.system, file.path))
        yield from map(opened.get_batch, range(opened.num_record_batches))
        if not opened.num_record_batches:
            yield opened.schema.empty_table().to_batches()[0]


class JsonTable(ArrowTable):
    """Files of a JSON object per line; types are those of the first block."""

    format_name = "lines of JSON"

    def open_batches(self, file: TableFile) -> Batches:
        """All batches of a file."""
        stream = open_input(self.files.system, file.path)
        yield from pj.open_json(stream, pj.ReadOptions(use_threads=False, block_size=BLOCK_BYTES))

    def find_lost(self, file: TableFile, names: Sequence[str]) -> Iterable[str]:
        """By the text: Arrow makes floating numbers of whole ones; see `FileTable.find_lost`."""
        double = {c.name for c in self.describe(file) if c.type_name == "double"} & {*names}
        held, stream = b"", open_input(self.files.system, file.path)
        while double and (piece := self.guard(file, partial(stream.read, BLOCK_BYTES))):
            held = held[-(2**12) :] + piece  # a pair that lies across two of them
            for name in double:
                # Any other sign may be written as it is, or as an escape of up to 12 bytes.
                key = re.sub(b"[^A-Za-z0-9_]", b".{1,12}", name.encode())
                if any(abs(float(m[1])) >= 2**53 for m in re.finditer(WHOLE % key, held)):
                    yield name


class ParquetTable(FileTable):
    """Parquet files of one schema."""

    format_name = "Parquet"

    def describe(self, file: TableFile) -> Columns:
        """Columns as the footer declares them."""
        found = columns_of(self._open(file, ()).schema_arrow)
        return tuple(column for column in found if not column.name.startswith(_INDEX))

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Read columns; see `FileTable.read`.

        Columns that unfold beyond `MOST_COLUMN_BYTES` in a row group are refused, as the footer
        says. Where a footer lies, pyarrow itself holds pages to 2 GiB.
        """
        texts = [column.name for column in columns if column.kind == "text"]
        opened = self._open(file, [name for name in texts if name in forms])
        self._check_size(opened.metadata, file, set(forms))
        # No column at all is read where none is needed: a batch then only has its length.
        batches = opened.iter_batches(batch_size=rows, columns=list(forms))
        while (batch := self.guard(file, partial(next, batches, None))) is not None:
            yield batch

    def read_sample(self, file: TableFile) -> Batches:
        """First rows of row groups from all parts of a file."""
        opened = self._open(file, ())
        names = [column.name for column in self.describe(file)]
        step = max(1, opened.num_row_groups // tables.MOST_BATCHES)
        for group in range(0, opened.num_row_groups, step):
            batches = opened.iter_batches(tables.SAMPLE_ROWS, row_groups=[group], columns=names)
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
