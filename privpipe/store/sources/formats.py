"""The table of source formats: a row each, light enough for `--help`; modules load when opened.

A new format is one module with a function that opens it, and one row here. Reading it begins at
`open_source`; what it gives is a `RecordSource`, of arrays by `open_arrays`, of files with columns
by a `FileTable` and `open_table`.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from privpipe.errors import InputError
from privpipe.extras import explain_missing
from privpipe.store.access.location import local_path, shown

if TYPE_CHECKING:
    from privpipe.store.sources.reading.source import RecordSource, SourceLayout
    from privpipe.store.sources.reading.table_source import FileTable


@dataclass(frozen=True)
class SourceFormat:
    """One format that can be ingested.

    Parameters
    ----------
    name
        Short and stable.
    endings
        Of its names, lower case.
    opener
        ``"module:function"``; the function takes the place and the `SourceLayout` and returns a
        `RecordSource`, or is a `FileTable`. The place is its URL, or `TableFiles` where `of_files`.
    of_files
        Whether a source may also be a folder of such files, each a partition, or Hive folders.
    mark
        ``"module:function"`` that says of a URL without any known ending whether it is one.
    """

    name: str
    endings: tuple[str, ...]
    opener: str
    of_files: bool = False
    mark: str = ""


_ROOM = "privpipe.store.sources"
_ARRAYS = f"{_ROOM}.array_files"
_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".zip", ".data")
FORMATS: tuple[SourceFormat, ...] = (
    SourceFormat("csv", _TEXT, f"{_ROOM}.csv_table:CsvTable", of_files=True),
    SourceFormat("parquet", (".parquet", ".pq"), f"{_ROOM}.arrow_file:ParquetTable", of_files=True),
    SourceFormat("arff", (".arff", ".arff.gz"), f"{_ROOM}.arff:ArffTable", of_files=True),
    SourceFormat("arrow", (".arrow", ".feather"), f"{_ROOM}.arrow_file:ArrowTable", of_files=True),
    SourceFormat("json", _LINES, f"{_ROOM}.arrow_file:JsonTable", of_files=True),
    SourceFormat("xlsx", (".xlsx",), f"{_ROOM}.workbook:WorkbookTable", of_files=True),
    SourceFormat("sqlite", (".sqlite", ".db"), f"{_ROOM}.workbook:SqliteTable", of_files=True),
    SourceFormat("duckdb", (".duckdb",), f"{_ROOM}.workbook:DuckdbTable", of_files=True),
    SourceFormat("npz", (".npz",), f"{_ARRAYS}:open_npz"),
    SourceFormat("zarr", (".zarr",), f"{_ARRAYS}:open_zarr", mark=f"{_ARRAYS}:is_zarr_group"),
)


def find_format(url: str) -> SourceFormat | None:
    """The first row that recognises a place, by its name or else by its content.

    None for a folder of files, or what is not known.
    """
    by_name = [row for row in FORMATS if url.rstrip("/").lower().endswith(row.endings)]
    by_content = (row for row in FORMATS if row.mark and not by_name and _load(row.mark)(url))
    return next(chain(by_name, by_content), None)


def describe_formats() -> str:
    """What can be ingested, for help and errors.

    >>> describe_formats()
    '.csv, .csv.gz, .tsv, .tsv.gz, .zip, .data, .parquet, .pq, .arff, .arff.gz, .arrow, .feather,
    .jsonl, .ndjson, .jsonl.gz, .ndjson.gz, .xlsx, .sqlite, .db, .duckdb, .npz or .zarr, or a
    folder of csv, parquet, arff, arrow, json, xlsx, sqlite or duckdb files'
    """
    endings = [end for row in FORMATS for end in row.endings]
    files = [row.name for row in FORMATS if row.of_files]
    return f"{_either(endings)}, or a folder of {_either(files)} files"


def open_source(url: str, layout: "SourceLayout", *, min_category_count: int = 1) -> "RecordSource":
    """Open a file, folder or Zarr group as a source of records.

    Parameters
    ----------
    url
        Local path or fsspec URL, of one of the `FORMATS`.
    layout
        Which array or column is what.
    min_category_count
        Rarer categories of columns that become features are pooled.

    Raises
    ------
    InputError
        If the format is not known, or the content does not fit.
    OptionError
        If an option does not apply to the format, or names what is not there.
    StoreError
        If it cannot be read.
    """
    # Here, not at the top: `--help` would load pandas and pyarrow.
    from privpipe.store.sources.reading import recoding

    local_path(url)  # refuses a path that cannot be one
    # Outermost: its edges are chosen by numbers, which the source below must read as such.
    if layout.bins:
        bins = recoding.parse_bins(layout.bins)
        as_numbers = replace(layout, numeric=(*layout.numeric, *bins), bins=())
        source = open_source(url, as_numbers, min_category_count=min_category_count)
        dates = {name for name, said in layout.dialect.columns.items() if said.kind == "date"}
        return recoding.bin_numbers(source, bins, dates)
    if layout.one_hot:
        as_text = (*layout.categorical, *layout.one_hot)
        texts = open_source(url, replace(layout, categorical=as_text, one_hot=(), spread=()))
        return recoding.spread_texts(texts, layout.one_hot, min_category_count, layout.spread)
    if layout.marked:
        return recoding.mark_missing(open_source(url, replace(layout, marked=())), layout.marked)
    if layout.calendar:
        as_days = replace(layout, dates=(*layout.dates, *layout.calendar), calendar=())
        return recoding.split_dates(open_source(url, as_days), layout.calendar)
    from privpipe.store.sources.reading.table_source import FileTable, open_table

    opened = _load_format(url, layout)
    return cast("RecordSource", open_table(opened) if isinstance(opened, FileTable) else opened)


def open_file_table(url: str, layout: "SourceLayout") -> "FileTable | None":
    """A file or folder of a format with columns; None where it is something else.

    Raises
    ------
    InputError, StoreError
        As `open_source`.
    """
    from privpipe.store.sources.reading.table_source import FileTable

    opened = _load_format(url, layout)
    return opened if isinstance(opened, FileTable) else None


def _load_format(url: str, layout: "SourceLayout") -> Any:
    from privpipe.store.sources.reading.files import list_files

    place: Any = url
    row = find_format(url)
    if row is None or row.of_files:  # a folder is what its files are
        kinds = {end: one.name for one in FORMATS if one.of_files for end in one.endings}
        if (place := list_files(url, kinds)) is None:
            if url.lower().endswith(".xls"):
                problem = f"{shown(url)} is a workbook of before 2007."
                remedy = "Save it as .xlsx or .csv."
                raise InputError(problem, remedy=remedy, code="source-format")
            problem = f"The format of {shown(url)} is not known by its name."
            remedy = f"Give one of: {describe_formats()}."
            raise InputError(problem, remedy=remedy, code="source-format")
        row = next(one for one in FORMATS if one.name == place.kind)
    try:
        return _load(row.opener)(place, layout)
    except ModuleNotFoundError as error:
        raise explain_missing(error) from None


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    # Here, not at the top: `--help` would load pyarrow and Zarr.
    return getattr(import_module(module), name)
