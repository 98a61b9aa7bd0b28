"""Tables that others made, as batches of rows: CSV, Parquet and Zarr, streaming, columns by name.

Nothing is ingested and nothing is written; texts stay texts; lists, structs and complex numbers are
left out. What a release of another tool means is for its attackers to find.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from privpipe.errors import InputError
from privpipe.extras import explain_missing
from privpipe.store.access.location import shown

BATCH_ROWS = 2**16
"""Rows that are in memory at once."""

FORMAT_OF = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet", ".zarr": "zarr"}


def read_table(url: str) -> Iterator[pd.DataFrame]:
    """Batches of a table, in its order.

    Parameters
    ----------
    url
        Path or fsspec URL of a .csv or .tsv file, a .parquet file or folder, or a Zarr group.

    Raises
    ------
    InputError
        If it is none of these, or cannot be read; no value is shown.
    """
    path = url.rstrip("/")
    kind = next((kind for last, kind in FORMAT_OF.items() if path.endswith(last)), None)
    if kind is None:
        problem = f"{shown(url)} is no table that can be read here."
        remedy = f"Its name must end in one of: {', '.join(FORMAT_OF)}."
        raise InputError(problem, remedy=remedy, code="table-format")
    try:
        yield from _read_zarr(path) if kind == "zarr" else _read_arrow(path, kind)
    except (OSError, ValueError, KeyError) as error:
        problem = f"{shown(url)} cannot be read as {kind} ({type(error).__name__})."
        remedy = "Check the path, and that every column has one type."
        raise InputError(problem, remedy=remedy, code="table-unreadable") from None


def _read_arrow(path: str, kind: str) -> Iterator[pd.DataFrame]:
    import fsspec

    try:
        import pyarrow.dataset as datasets
        from pyarrow.types import is_nested
    except ModuleNotFoundError as error:
        raise explain_missing(error) from None

    system, place = fsspec.core.url_to_fs(path)
    how = _find_csv(system, place) if kind == "csv" and system.isfile(place) else kind
    found = datasets.dataset(place, format=how, filesystem=system)
    # With threads Arrow decodes as fast as it can, whoever waits for it: half a GB and more.
    slow = {"use_threads": False, "batch_readahead": 1, "fragment_readahead": 1}
    for batch in found.to_batches(batch_size=BATCH_ROWS, **slow):
        flat = [one.name for one in batch.schema if not is_nested(one.type)]
        yield batch.select(flat).to_pandas()


def _find_csv(system: Any, place: str) -> Any:
    """How a file is written: where its names hold no comma, semicolons or tabs may separate them.

    Spreadsheets of many countries write it so, most with a comma in numbers.
    """
    import pyarrow.csv as pc
    from pyarrow.dataset import CsvFileFormat

    from privpipe.store.sources.reading.dialect import HEAD_BYTES, find_number_signs, read_cells

    with system.open(place) as file:
        head = file.read(HEAD_BYTES).decode(errors="replace")
    names = head.partition("\n")[0]
    delimiter = next((mark for mark in ";\t" if mark in names and "," not in names), ",")
    decimal, _ = find_number_signs(read_cells(head, delimiter, 2_000)[1:], delimiter)
    converted = pc.ConvertOptions(decimal_point=decimal)
    return CsvFileFormat(pc.ParseOptions(delimiter=delimiter), convert_options=converted)


def _read_zarr(path: str) -> Iterator[pd.DataFrame]:
    """Every array with a first dimension of records; columns of a matrix by number or by name."""
    import zarr

    group = zarr.open_group(path, mode="r")
    arrays = {n: one for n, one in group.arrays() if one.ndim in (1, 2) and one.dtype.kind != "c"}
    n_records = max((one.shape[0] for one in arrays.values()), default=0)
    tables = {name: one for name, one in arrays.items() if one.shape[0] == n_records}
    for start in range(0, n_records, BATCH_ROWS):
        columns: dict[str, np.ndarray] = {}
        for name, one in tables.items():
            block = np.asarray(one[start : start + BATCH_ROWS])
            wide = block.reshape(len(block), -1)
            names = [name] if block.ndim == 1 else [f"{name}_{k}" for k in range(wide.shape[1])]
            columns |= dict(zip(names, wide.T, strict=True))
        yield pd.DataFrame(columns)
