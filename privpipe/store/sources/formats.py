"""The table of source formats: a row each, light enough for `--help`; modules load when opened.

A new format is one module with a function that opens it, and one row here. Reading it begins at
`open_source`; what it gives is a `RecordSource`, of arrays by `open_arrays`, of files with columns
by a `FileTable` and `open_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privpipe.store.sources.reading.source import RecordSource, SourceLayout


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
        `RecordSource`. The place is its URL, or `TableFiles` where `of_files`.
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

    def recognises(self, url: str) -> bool:
        """Whether a place is of this format, by its name or else by its content."""
        if _ends_with(url, self.endings):
            return True
        known = any(_ends_with(url, row.endings) for row in FORMATS)
        return bool(self.mark) and not known and bool(_load(self.mark)(url))

    def open(self, place: Any, layout: SourceLayout) -> RecordSource:
        """Open a place of this format; see `open_source` for what it raises."""
        source: RecordSource = _load(self.opener)(place, layout)
        return source


_ROOM = "privpipe.store.sources"
FORMATS: tuple[SourceFormat, ...] = (
    SourceFormat("csv", (".csv", ".csv.gz"), f"{_ROOM}.csv_table:open_csv", of_files=True),
    SourceFormat("parquet", (".parquet", ".pq"), f"{_ROOM}.parquet:open_parquet", of_files=True),
    SourceFormat("arff", (".arff", ".arff.gz"), f"{_ROOM}.arff:open_arff", of_files=True),
    SourceFormat("npz", (".npz",), f"{_ROOM}.npz:open_npz"),
    SourceFormat(
        "zarr",
        (".zarr",),
        f"{_ROOM}.zarr_arrays:open_zarr",
        mark=f"{_ROOM}.zarr_arrays:is_zarr_group",
    ),
)


def find_format(url: str) -> SourceFormat | None:
    """The first row that recognises a place; None for a folder of files, or what is not known."""
    return next((row for row in FORMATS if row.recognises(url)), None)


def endings_of_files() -> Mapping[str, str]:
    """Name of the format by ending, of those whose files may be in a folder."""
    return {end: row.name for row in FORMATS if row.of_files for end in row.endings}


def describe_formats() -> str:
    """What can be ingested, for help and errors.

    >>> describe_formats()
    '.csv, .csv.gz, .parquet, .pq, .arff, .arff.gz, .npz or .zarr, or a folder of
    csv, parquet or arff files'
    """
    endings = [end for row in FORMATS for end in row.endings]
    files = [row.name for row in FORMATS if row.of_files]
    return f"{_either(endings)}, or a folder of {_either(files)} files"


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _ends_with(url: str, endings: tuple[str, ...]) -> bool:
    return url.rstrip("/").lower().endswith(endings)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    # Here, not at the top: `--help` would load pyarrow and Zarr.
    return getattr(import_module(module), name)
