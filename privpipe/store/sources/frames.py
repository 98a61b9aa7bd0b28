"""Data frames of Dask and datasets of xarray as sources, computed part by part.

Neither library is imported: who has such a frame has loaded it.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from privpipe.errors import InputError
from privpipe.protocols import AnyArray
from privpipe.store.sources.arrow_file import columns_of
from privpipe.store.sources.reading.files import Batches, TableFile, TableFiles
from privpipe.store.sources.reading.named_arrays import NamedArray, open_arrays
from privpipe.store.sources.reading.source import Columns, Forms, RecordSource, SourceLayout
from privpipe.store.sources.reading.table_source import FileTable, open_table


class DaskTable(FileTable):
    """A Dask data frame: each part of it is read as a file, all are one partition."""

    format_name = "a part of a data frame"

    def __init__(self, frame: Any, layout: SourceLayout) -> None:
        parts = tuple(TableFile(str(i), 0) for i in range(frame.npartitions))
        super().__init__(TableFiles(None, "dask.DataFrame", "dask", parts, ("frame",)), layout)
        self.frame = frame

    def describe(self, file: TableFile) -> Columns:
        """Columns as the frame declares them."""
        return columns_of(self._declared(self.frame))

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Compute a part; see `FileTable.read`."""
        # Where no column is needed, one column says how many records there are.
        frame = self.frame[list(forms) or list(self.frame.columns[:1])]
        compute = frame.partitions[int(file.path)].compute
        convert = partial(pa.Table.from_pandas, schema=self._declared(frame), preserve_index=False)
        yield from self.guard(file, lambda: convert(compute())).to_batches(rows)

    def _declared(self, frame: Any) -> pa.Schema:
        # Of two invented records: an empty column of objects would not say that it holds text.
        return pa.Schema.from_pandas(frame._meta_nonempty, preserve_index=False)


def open_frame(frame: Any, layout: SourceLayout) -> RecordSource:
    """A Dask data frame, or a dataset or labelled matrix of xarray, as a source.

    Raises
    ------
    InputError
        If it is neither, or does not fit.
    """
    if hasattr(frame, "npartitions") and hasattr(frame, "columns"):
        return open_table(DaskTable(frame, layout))
    if not hasattr(frame, "data_vars") and hasattr(frame, "to_dataset"):
        frame = frame.to_dataset(name=layout.features[0] if layout.features else "features")
    if not hasattr(frame, "data_vars"):
        problem = f"A {type(frame).__name__} is no Dask data frame and no dataset of xarray."
        remedy = "Frames that are in memory are for privpipe.Records; files for ingest."
        raise InputError(problem, remedy=remedy, code="kinds")
    arrays = {
        str(name): NamedArray(
            one.shape, one.dtype, partial(_read_array, one), tuple(map(str, one.dims))
        )
        for name, one in frame.variables.items()
    }
    return open_arrays(arrays, layout, "xarray.Dataset")


def _read_array(array: Any, rows: int) -> Iterator[AnyArray]:
    """Blocks of so many rows, of parts that are computed once each."""
    edges = np.cumsum([0, *(array.chunks[0] if array.chunks else [rows] * -(-len(array) // rows))])
    held: AnyArray = np.empty((0, *array.shape[1:]), array.dtype)
    for start, stop in pairwise(edges.tolist()):
        held = np.concatenate([held, np.asarray(array[start:stop])])
        while len(held) >= rows:
            yield held[:rows]
            held = held[rows:]
    if len(held):
        yield held
