"""A format of somebody else's: a text of numbers, one record a line, the last one a label."""

from __future__ import annotations

import numpy as np

from privpipe.store.sources.reading.files import TableFiles
from privpipe.store.sources.reading.named_arrays import NamedArray, open_arrays
from privpipe.store.sources.reading.source import RecordSource, SourceLayout


def as_array(values: np.ndarray) -> NamedArray:
    """A column of the toy: an array that is read block by block."""
    return NamedArray(
        values.shape,
        values.dtype,
        lambda rows: (values[i : i + rows] for i in range(0, len(values), rows)),
    )


def open_rows(table: np.ndarray, layout: SourceLayout, url: str) -> RecordSource:
    return open_arrays({"X": as_array(table[:, :-1]), "late": as_array(table[:, -1])}, layout, url)


def open_toy(url: str, layout: SourceLayout) -> RecordSource:
    return open_rows(np.loadtxt(url, ndmin=2), layout, url)


def open_toy_files(files: TableFiles, layout: SourceLayout) -> RecordSource:
    tables = [np.loadtxt(file.path, ndmin=2) for file in files.files]
    return open_rows(np.concatenate(tables), layout, files.url)


def begins_like_a_toy(url: str) -> bool:
    with open(url) as file:
        return file.read(1) == "7"
