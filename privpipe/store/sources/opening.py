"""Open a source by what its name or its folder says it is."""

from __future__ import annotations

from privpipe.errors import InputError, OptionError
from privpipe.store.location import open_store, read_bytes, shown
from privpipe.store.sources.arff import ArffTable, find_label_list
from privpipe.store.sources.arrays import ArraySource, zarr_columns
from privpipe.store.sources.csv_table import CsvTable
from privpipe.store.sources.files import TableFiles, format_of, list_files
from privpipe.store.sources.npz import npz_columns
from privpipe.store.sources.parquet import ParquetTable
from privpipe.store.sources.source import RecordSource, SourceLayout
from privpipe.store.sources.tables import Table, TableSource

__all__ = ["open_source"]

FORMATS = ".csv, .csv.gz, .parquet, .arff, .npz, a .zarr group, or a folder of .parquet or .csv"


def open_source(url: str, layout: SourceLayout) -> RecordSource:
    """Open a file, folder or Zarr group as a source of records.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    layout
        Which array or column is what.

    Raises
    ------
    InputError
        If the format is not known, or the content does not fit.
    OptionError
        If an option does not apply to the format, or names what is not there.
    StoreError
        If it cannot be read.
    """
    if url.endswith(".npz"):
        return _open_arrays(url, layout)
    if not format_of(url) and (url.rstrip("/").endswith(".zarr") or _is_zarr(url)):
        return _open_arrays(url, layout)
    files = list_files(url)
    if files is None:
        raise InputError(
            f"The format of {shown(url)} is not known by its name.",
            remedy=f"Give one of: {FORMATS}.",
            code="source-format",
        )
    if layout.label_names is not None:
        raise OptionError(
            f"--label-names names the columns of a label matrix, and {shown(url)} is a table.",
            remedy="Name the table's own columns with --labels.",
        )
    return TableSource(
        _open_table(files, layout), layout, find_label_list(files, layout.label_file)
    )


def _open_arrays(url: str, layout: SourceLayout) -> RecordSource:
    if layout.label_file is not None:
        raise OptionError(
            "--label-file belongs to tables.", remedy="Name arrays with --labels instead."
        )
    columns = npz_columns(url) if url.endswith(".npz") else zarr_columns(url)
    return ArraySource(columns, layout, url)


def _open_table(files: TableFiles, layout: SourceLayout) -> Table:
    if files.kind == "parquet":
        return ParquetTable(files)
    return CsvTable(files, layout) if files.kind == "csv" else ArffTable(files)


def _is_zarr(url: str) -> bool:
    """Whether a folder is a Zarr group, by the document that every group has."""
    if "." in url.rstrip("/").rsplit("/", 1)[-1]:
        return False
    store = open_store(url, read_only=True)
    try:
        return any(read_bytes(store, name) is not None for name in ("zarr.json", ".zgroup"))
    except OSError:  # a file
        return False
