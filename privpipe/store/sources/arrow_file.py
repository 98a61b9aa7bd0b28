"""Arrow files (Feather) and lines of JSON as tables, read batch by batch."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.json as pj

from privpipe.store.sources.reading.files import TableFile, open_input
from privpipe.store.sources.reading.source import Form, TableColumn
from privpipe.store.sources.reading.table_source import FileTable, is_narrow, kind_of

BLOCK_BYTES = 2**22
"""Text of JSON parsed at once; no line may be longer."""

WHOLE = rb'"%s"\s*:\s*(-?(?:[0-9]{16}|[0-9]{17,}(?:[.]0*)?))[\s,}]'
"""A pair whose number is whole. Of 17 digits and more, programs write floating ones as 1e20."""


def columns_of(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Columns as Arrow declares them."""
    return tuple(
        TableColumn(field.name, kind_of(field.type), str(field.type), is_narrow(field.type))
        for field in schema
    )


class ArrowTable(FileTable):
    """Arrow files of one schema."""

    format_name = "an Arrow file"

    def describe(self, file: TableFile) -> tuple[TableColumn, ...]:
        """Columns as the file declares them."""
        # Names are decoded when they are read, and may be no text.
        found: tuple[TableColumn, ...] = self.guard(
            file, lambda: columns_of(next(self.open_batches(file)).schema)
        )
        return found

    def read(
        self, file: TableFile, columns: Sequence[TableColumn], forms: Mapping[str, Form], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read columns; see `FileTable.read`."""
        batches = self.open_batches(file)
        while (batch := self.guard(file, partial(next, batches, None))) is not None:
            yield batch.select(list(forms)) if forms else batch

    def open_batches(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        """All batches of a file; at least one, which may be empty."""
        opened = pa.ipc.open_file(open_input(self.files.system, file.path))
        yield from map(opened.get_batch, range(opened.num_record_batches))
        if not opened.num_record_batches:
            yield opened.schema.empty_table().to_batches()[0]


class JsonTable(ArrowTable):
    """Files of a JSON object per line; types are those of the first block."""

    format_name = "lines of JSON"

    def open_batches(self, file: TableFile) -> Iterator[pa.RecordBatch]:
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
