"""A format of somebody else's: a text of numbers, one record a line, the last one a label."""

from __future__ import annotations

import numpy as np

from privpipe.store.sources.reading.files import TableFiles
from privpipe.store.sources.reading.named_arrays import ArraySource
from privpipe.store.sources.reading.source import SourceLayout


class Rows:
    """A column of the toy: an array that is read block by block."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.dims: tuple[str, ...] = ()

    def blocks(self, rows: int):
        yield from (self.values[i : i + rows] for i in range(0, len(self.values), rows))


def open_toy(url: str, layout: SourceLayout) -> ArraySource:
    table = np.loadtxt(url, ndmin=2)
    return ArraySource({"X": Rows(table[:, :-1]), "late": Rows(table[:, -1])}, layout, url)


def open_toy_files(files: TableFiles, layout: SourceLayout) -> ArraySource:
    tables = [np.loadtxt(file.path, ndmin=2) for file in files.files]
    table = np.concatenate(tables)
    return ArraySource({"X": Rows(table[:, :-1]), "late": Rows(table[:, -1])}, layout, files.url)


def begins_like_a_toy(url: str) -> bool:
    with open(url) as file:
        return file.read(1) == "7"
