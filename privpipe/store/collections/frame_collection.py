"""Collections that are not stored: frames of others, computed anew in each pass over them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from privpipe.protocols import AnyArray
from privpipe.records.schema import as_names
from privpipe.store.arrays.sealed_arrays import SealedArrays
from privpipe.store.collections import ingest as ingesting
from privpipe.store.collections.collection import Collection, in_roles
from privpipe.store.collections.writing import Chunk
from privpipe.store.sources.frames import open_frame

# A shard of whole groups reaches into the chunks before and after its own.
HELD = 3
"""Chunks in memory."""


class ChunksInTurn:
    """Chunks in their order: the last `HELD` stay, an earlier one begins a new pass."""

    def __init__(self, begin: Callable[[], Iterator[Chunk]]) -> None:
        self._begin, self._held, self._next = begin, dict[int, Chunk](), 0
        self._running = begin()

    def get(self, number: int) -> Chunk:
        """One chunk."""
        if number < self._next and number not in self._held:
            self._running, self._next = self._begin(), 0
        while number >= self._next:
            self._held[self._next] = next(self._running)
            self._held.pop(self._next - HELD, None)
            self._next += 1
        return self._held[number]


@dataclass(frozen=True, repr=False)
class FrameCollection(Collection):
    """A collection whose chunks are computed.

    It is `Shards` in this process; the frame's own scheduler computes.
    """

    chunks: ChunksInTurn | None = field(default=None, repr=False, compare=False)

    def read(self, name: str, start: int, stop: int) -> AnyArray:
        """Rows of one array; see `Collection.read`."""
        assert self.chunks is not None, "made by from_dask or from_xarray"
        rows = self.schema_of_records.chunk_rows
        parts = [
            self.chunks.get(n)[name][max(start - n * rows, 0) : stop - n * rows]
            for n in range(start // rows, -(-stop // rows))
        ]
        return np.concatenate(parts)


def from_dask(
    frame: Any, *, options: ingesting.IngestOptions = ingesting.USUAL, **roles: Any
) -> Collection:
    """A Dask data frame as a collection, without storing it or holding it in memory.

    Parameters
    ----------
    frame
        The data frame; columns that are in no role and no option are features.
    options
        How it is read, as `ingest` does; a schema and `shuffle` have no say.
    roles
        `desired`, `confidential`, `attributes`, `groups`, `weights`, `public`; see
        `open_collection`.

    Returns
    -------
    Collection
        What every fit takes. Each pass computes the frame anew, part by part; `ingest` takes the
        frame as well, and stores it for runs.

    Raises
    ------
    InputError, OptionError
        As `ingest` and `open_collection`.
    """
    if options.layout.labels is None:
        named = [as_names(names) for role, names in roles.items() if role != "public" and names]
        labels = tuple(dict.fromkeys(chain.from_iterable(named)))
        options = replace(options, layout=replace(options.layout, labels=labels))
    return from_xarray(frame, options=options, **roles)


def from_xarray(
    dataset: Any, *, options: ingesting.IngestOptions = ingesting.USUAL, **roles: Any
) -> Collection:
    """A dataset of xarray, (record, feature), as a collection; see `from_dask`.

    Its features are the array called features, X, x or data, or that of the options' layout; other
    arrays along the records are variables.
    """
    ingesting.check_options(options)
    source = open_frame(dataset, options.whole_layout)
    plan = ingesting.plan_collection(source, "The frame", options)

    def begin() -> Iterator[Chunk]:
        blocks = ingesting.encode_blocks(source, plan.schema, plan.survey.coders, plan.rows)
        return ingesting.fill_chunks(blocks, plan.schema)

    nowhere = SealedArrays("", (), "")
    made = FrameCollection("a frame", plan.schema, "", nowhere, chunks=ChunksInTurn(begin))
    return in_roles(made, **roles)
