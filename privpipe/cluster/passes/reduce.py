"""A collection whose questions an executor answers: mergeable statistics, and rounds of sums.

Only merged statistics reach the driver. The shape of every sum depends on the number of chunks
alone, so that the result does not depend on who works.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from privpipe.cluster.events import Event
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.executors.oracles import load_shards
from privpipe.cluster.pass_checkpoints import (
    Checkpoints,
    KnownResponses,
    RunningSum,
    remember_whole,
)
from privpipe.protocols import Oracle, Shard, ShardSchema, Statistics, Sums
from privpipe.store.access.checkpoints import PartialSum
from privpipe.store.collections.collection import Collection

S = TypeVar("S", bound=Statistics)


@dataclass(frozen=True)
class ShardedCollection:
    """A collection whose questions are answered where the executor works; implements `Shards`.

    Parameters
    ----------
    collection
        The collection, with the part of its records to use.
    executor
        Who works.
    label
        What the dashboard shows after ``sum_`` and ``merge_``.
    checkpoints
        Where the statistic of each task is checkpointed, so that an interrupted run resumes within
        a pass; None for nowhere.
    """

    collection: Collection
    executor: Executor
    label: str = "moments"
    checkpoints: Checkpoints | None = None

    @property
    def n_records(self) -> int:
        return self.collection.n_records

    @property
    def schema(self) -> ShardSchema:
        return self.collection.schema

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise and merge chunk by chunk; see `Shards.reduce`."""
        checkpoints = self.checkpoints and self.checkpoints.about(self.collection, summarise)
        work, n_chunks = f"sum_{self.label}", self.collection.plan.n_chunks
        n_counted = 0

        def ask() -> PartialSum:
            nonlocal n_counted  # 0 where the whole sum is stored: the bar is filled below
            n_counted = n_chunks
            shared = (self.collection, summarise, checkpoints)
            return self.executor.reduce(summarise_chunks, shared, self._tasks(), label=self.label)

        self.executor.listener(Event(work, "begins", n_chunks, "chunks"))
        try:
            whole = remember_whole(checkpoints, self._measure_bytes(), ask)
            if not n_counted:  # no one read a chunk
                self.executor.listener(Event(work, "advances", n_chunks, "chunks"))
            return cast(S, whole.statistic)
        finally:
            self.executor.listener(Event(work, "ends", unit="chunks"))

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """Sum over shards that stay where they were loaded; see `Shards.oracle`."""
        # A list, for the closure below: opened at most once.
        opened: list[Oracle[Any, Sums]] = []

        def ask(parameters: Any, /) -> Sums:
            # Loaded by the first question that no checkpoint answers: a resumed run whose rounds
            # are all known reads no record.
            if not opened:
                tasks = self._tasks()
                sizes = [sum(_measure_bytes(self.collection, c) for c in task) for task in tasks]
                opened.append(
                    self.executor.oracle(
                        load_shards,
                        (self.collection,),
                        tasks,
                        function,
                        resident,
                        label=self.label,
                        sizes=sizes,
                    )
                )
            return opened[0](parameters)

        checkpoints = self.checkpoints and self.checkpoints.about(
            "oracle", self.collection, function, resident
        )
        known = KnownResponses(checkpoints, self.collection.n_records, self._measure_bytes())

        def ask_counted(parameters: Any, /) -> Sums:
            answer = known.find(parameters, ask)
            self.executor.listener(Event("ask_shards", "advances", 1, "rounds"))
            return answer

        return ask_counted

    def _measure_bytes(self) -> int:
        """Of all features, decoded."""
        return sum(
            _measure_bytes(self.collection, chunk) for chunk in range(self.collection.plan.n_chunks)
        )

    def _tasks(self) -> list[list[int]]:
        return [list(chunks) for chunks in self.collection.plan.tasks()]


def summarise_chunks(
    collection: Collection,
    summarise: Callable[[Shard], S],
    checkpoints: Checkpoints | None,
    chunks: Sequence[int],
) -> PartialSum:
    """Where the records are: read chunk by chunk, summarise, merge; memory is that of one chunk.

    What an earlier run checkpointed of these chunks is not read again.
    """
    # Named by the chunks: another split of the work finds nothing that is not its own.
    total: RunningSum[S] = RunningSum(checkpoints, f"{chunks[0]:06d}-{len(chunks):02d}")
    # In order: a sum of the same chunks in another order has other bits.
    for chunk in chunks[total.n_chunks :]:
        shard = collection.shard(chunk)
        total.add(summarise(shard), shard.n_records, _measure_bytes(collection, chunk))
    return total.total


def _measure_bytes(collection: Collection, chunk: int) -> int:
    """Of the features of a chunk, decoded."""
    schema = collection.schema_of_records
    start, stop = collection.plan.rows(chunk)
    return (stop - start) * schema.n_features * np.dtype(schema.dtype).itemsize
