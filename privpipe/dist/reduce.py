"""Mergeable statistics over shards, tree-reduced on the workers.

Only merged statistics reach the driver. The shape of the tree depends on the number of chunks
alone, so that the result does not depend on the number of workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any, TypeVar

import numpy as np
from distributed import Client, Future

from privpipe.dist.boundary import run_sealed
from privpipe.dist.kept import Keeper, RunningSum
from privpipe.dist.oracles import ResidentOracle
from privpipe.dist.parcel import send
from privpipe.errors import PrivpipeError
from privpipe.protocols import Oracle, Shard, ShardSchema, Statistics, Sums
from privpipe.store.collection import Collection

__all__ = ["FAN_IN", "ShardedCollection", "merge_all", "summarise_chunks"]

FAN_IN = 8
"""Statistics merged by one task."""

S = TypeVar("S", bound=Statistics)

_questions = itertools.count()
"""Numbers of the questions of this process: no two have the same keys, whatever their labels."""


@dataclass(frozen=True)
class ShardedCollection:
    """A collection whose questions are answered on workers; implements `Shards`.

    Parameters
    ----------
    collection
        The collection, with the part of its records to use.
    client
        The cluster.
    run
        Identifier of the run: keys of two runs on one scheduler never meet.
    label
        What the dashboard shows after ``sum_`` and ``merge_``.
    keeper
        Where the statistic of each task is kept, so that an interrupted run goes on within a
        pass; None to keep nothing.
    """

    collection: Collection
    client: Client
    run: str
    label: str = "moments"
    keeper: Keeper | None = None

    @property
    def n_records(self) -> int:
        return self.collection.n_records

    @property
    def schema(self) -> ShardSchema:
        return self.collection.schema

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise and merge on the workers; see `Shards.reduce`."""
        token = f"{self.run}-{next(_questions):02d}"
        collection, summary = send(self.client, self.collection), send(self.client, summarise)
        keeper = self.keeper and self.keeper.about(self.collection, summarise)
        leaves = (
            self.client.submit(
                run_sealed,
                summarise_chunks,
                collection,
                summary,
                list(chunks),
                keeper,
                key=f"sum_{self.label}-{token}-{number:06d}",
                pure=False,
                retries=2,
            )
            for number, chunks in enumerate(self.collection.plan.tasks())
        )
        top = self._merge_tree(leaves, token)
        result: S | PrivpipeError
        try:
            result = top.result()
        except PrivpipeError as error:
            # Without the traceback, whose frames are the workers'.
            result = error.with_traceback(None)
        if isinstance(result, PrivpipeError):
            raise result
        return result

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """Sum over shards that stay on their workers; see `Shards.oracle`."""
        token = f"{self.run}-{next(_questions):02d}"
        return ResidentOracle.load(self.client, self.collection, function, resident, token)

    def _merge_tree(self, leaves: Iterator[Future[Any]], token: str) -> Future[Any]:
        """Submit merges as soon as their parts are submitted, so that few parts are alive."""
        levels: list[list[Future[Any]]] = [[]]
        numbers = itertools.count()

        def merge(parts: list[Future[Any]]) -> Future[Any]:
            key = f"merge_{self.label}-{token}-{next(numbers):06d}"
            return self.client.submit(run_sealed, merge_all, parts, key=key, pure=False, retries=2)

        for leaf in leaves:
            levels[0].append(leaf)
            for level in itertools.count():
                if len(levels[level]) < FAN_IN:
                    break
                if level + 1 == len(levels):
                    levels.append([])
                levels[level + 1].append(merge(levels[level]))
                levels[level] = []
        # What is left over, from the fullest part to the newest, keeps the order of chunks.
        rest = [future for level in reversed(levels) for future in level]
        return rest[0] if len(rest) == 1 else merge(rest)


def summarise_chunks(
    collection: Collection,
    summarise: Callable[[Shard], S],
    chunks: Sequence[int],
    keeper: Keeper | None = None,
) -> S:
    """Worker side: read chunk by chunk, summarise, merge; memory is that of one chunk.

    What an earlier run kept of these chunks is not read again.
    """
    total: RunningSum[S] = RunningSum(keeper, f"{chunks[0]:06d}-{len(chunks):02d}")
    for chunk in chunks[total.n_chunks :]:
        shard = collection.shard(chunk)
        total.add(summarise(shard), shard.n_records, _measure_bytes(collection, chunk))
    assert total.statistic is not None, "a task has chunks"
    return total.statistic


def _measure_bytes(collection: Collection, chunk: int) -> int:
    """Of the features of a chunk, decoded."""
    schema = collection.schema_of_records
    start, stop = collection.plan.rows(chunk)
    return (stop - start) * schema.n_features * np.dtype(schema.dtype).itemsize


def merge_all(parts: list[S]) -> S:
    """Worker side: merge in order."""
    return fold(lambda left, right: left.merge(right), parts)
