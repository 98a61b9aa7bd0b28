"""A collection whose questions an executor answers: mergeable statistics, and rounds of sums.

Only merged statistics reach the driver. The shape of every sum depends on the number of chunks
alone, so that the result does not depend on who works. Several queries about one collection may
share a pass (`reduce_jointly`). A chunk is read once, and each query gets its shard of it, perhaps
with its released counterpart.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import cloudpickle
import numpy as np

from privpipe.cluster.executors.executor import Event, Executor, ShardSum, find_room, merge_all
from privpipe.cluster.pass_checkpoints import Checkpoints, JointSums, PartialSum, recall_sum
from privpipe.protocols import Oracle, S, Shard, ShardSchema, Sums
from privpipe.records.schema import ChunkPlan, CollectionSchema
from privpipe.sanitizers.arrays import ChangedShards
from privpipe.store.arrays.blocks import reading_once
from privpipe.store.collections.collection import Collection

LITTLE = 4 << 20
"""Bytes of records of which a round takes no longer than its messages."""


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

    @property
    def partitions(self) -> list["ShardedCollection"]:
        """Each partition that has records, alone and in order."""
        # Groups would move the edges of its chunks.
        bare = replace(self.collection, groups=())
        runs = [(p.first_record, p.n_records) for p in bare.schema_of_records.partitions]
        spans = [(first, first + n) for first, n in runs if n]
        return [replace(self, collection=replace(bare, only=span)) for span in spans]

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise and merge chunk by chunk; see `Shards.reduce`."""
        checkpoints = self.checkpoints and self.checkpoints.about(self.collection, summarise)
        tasks = self.collection.tasks()
        work, chunks = f"sum_{self.label}", [chunk for task in tasks for chunk in task]
        n_chunks = len(chunks)
        n_counted = 0

        def ask() -> PartialSum:
            nonlocal n_counted  # 0 where the whole sum is stored: the bar is filled below
            n_counted = n_chunks
            shared = (self.collection, summarise, checkpoints)
            return self.executor.reduce(summarise_chunks, shared, tasks, label=self.label)

        self.executor.listener(Event(work, "begins", n_chunks, "chunks"))
        try:
            whole = recall_sum(checkpoints, "whole", _measure_bytes(self.collection, chunks), ask)
            if not n_counted:  # no one read a chunk
                self.executor.listener(Event(work, "advances", n_chunks, "chunks"))
            return cast(S, whole.statistic)
        finally:
            self.executor.listener(Event(work, "ends", unit="chunks"))

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """Sum over shards that stay where they were loaded; see `Shards.oracle`."""
        tasks = self.collection.plan.tasks()
        sizes = [_measure_bytes(self.collection, task) for task in tasks]
        n_bytes, n_records = sum(sizes), self.collection.n_records

        @cache
        def open_oracle() -> Oracle[Any, Sums]:
            # By the first question that no checkpoint answers: a resumed run whose rounds are all
            # known reads no record.
            whole = ShardSum(load_shards, (self.collection,), tasks, function, resident, sizes)
            return self.executor.oracle(whole)

        # Not "oracle", under which sums were once stored without their number of records.
        about = ("sums of shards", self.collection, function, resident)
        checkpoints = self.checkpoints and self.checkpoints.about(*about)

        # A fit is a function of the answers to its questions: one that was interrupted poses the
        # same again, finds what is known, and resumes where it stopped, to the same map, bit for
        # bit.
        def ask_counted(parameters: Any, /) -> Sums:
            known = checkpoints and checkpoints.about(parameters)
            answer = recall_sum(
                known, "answer", n_bytes, lambda: PartialSum(n_records, open_oracle()(parameters))
            )
            self.executor.listener(Event("ask_shards", "advances", 1, "rounds"))
            return cast(Sums, answer.statistic)

        return ask_counted

    def spread(
        self, solve: Callable[["ShardedCollection", Any], Any], problems: Sequence[Any]
    ) -> list[Any]:
        """``solve(self, problem)`` of each, in order, to the same bits; see `spreads`."""
        if not self.spreads(len(problems)):
            return [solve(self, one) for one in problems]
        alone = replace(self, executor=Executor())
        # Packed: arrays that travel beside their pickle may lie at any address, and sums another
        # way.
        packed = [cloudpickle.dumps((solve, one)) for one in problems]
        return list(map(pickle.loads, self.executor.solve_apart(_solve, packed, shared=(alone,))))

    def spreads(self, n_problems: int) -> bool:
        """Whether each of so many problems is a task, which answers its own rounds.

        So it is where each thread of the smallest worker has room for all records. Of few problems
        and many records rounds engage more threads.
        """
        memory, plan = self.executor.measure(), self.collection.plan
        n_bytes = _measure_bytes(self.collection, range(plan.n_chunks))
        n_engaged = min(len(plan.tasks()), memory.n_threads) if n_bytes > LITTLE else 1
        fits = not memory.smallest or n_bytes * memory.threads <= find_room(memory.smallest)
        return not self.executor.here and n_problems >= n_engaged and fits


def _solve(shards: ShardedCollection, packed: bytes) -> bytes:
    """Worker side: one problem, by records that are read here."""
    solve, problem = pickle.loads(packed)
    return bytes(cloudpickle.dumps(solve(shards, problem)))


def load_shards(collection: Collection, chunks: Sequence[int]) -> list[Shard]:
    """Worker side: read shards, to be retained or queried once."""
    return [collection.shard(chunk) for chunk in chunks]


def summarise_chunks(
    collection: Collection,
    summarise: Callable[[Shard], S],
    checkpoints: Checkpoints | None,
    chunks: Sequence[int],
) -> PartialSum:
    """Where the records are: read chunk by chunk, summarise, merge; memory is that of one chunk.

    What an earlier run checkpointed of these chunks is not read again.
    """

    def summarise_one(chunk: int) -> PartialSum:
        shard = collection.shard(chunk)
        return PartialSum(shard.n_records, summarise(shard))

    # Named by the chunks: another split of the work finds nothing that is not its own.
    return recall_sum(
        checkpoints,
        f"{chunks[0]:06d}-{len(chunks):02d}",
        _measure_bytes(collection, chunks),
        # In order: a sum of the same chunks in another order has other bits.
        lambda: merge_all(map(summarise_one, chunks)),
    )


def _measure_bytes(collection: Collection, chunks: Sequence[int]) -> int:
    """Of the features of some chunks, decoded."""
    schema = collection.schema_of_records
    n_rows = sum(stop - start for start, stop in map(collection.plan.rows, chunks))
    return n_rows * schema.n_features * np.dtype(schema.dtype).itemsize


@dataclass(frozen=True)
class JointQuery:
    """What is summarised of which shards.

    Parameters
    ----------
    shards
        A part of a collection, perhaps with its released counterpart.
    summarise
        Picklable; makes a mergeable statistic of a shard.
    """

    shards: ShardedCollection | ChangedShards
    summarise: Callable[[Shard], Any]


def reduce_jointly(queries: Sequence[JointQuery], label: str) -> list[Any]:
    """Run queries; those about one collection in one pass.

    Parameters
    ----------
    queries
        In any order.
    label
        What the dashboard shows of the passes.

    Returns
    -------
    found
        Of each query what ``shards.reduce(summarise)`` would give.
    """
    raw = [_unwrap(query) for query in queries]
    found: list[Any] = [None] * len(raw)
    for url in dict.fromkeys(shards.collection.url for shards, _ in raw):
        mine = [i for i, (shards, _) in enumerate(raw) if shards.collection.url == url]
        views = _Views(tuple(raw[i][0].collection for i in mine))
        # A pass needs no more of a collection than its chunks, and those the views have.
        one_pass = replace(raw[mine[0]][0], collection=cast(Collection, views), label=label)
        joint: JointSums = one_pass.reduce(
            cast(Any, partial(summarise_each, summaries=tuple(raw[i][1] for i in mine)))
        )
        for i, part in zip(mine, joint.parts, strict=True):
            found[i] = part
    return found


def _unwrap(query: JointQuery) -> tuple[ShardedCollection, Callable[[Shard], Any]]:
    shards, summarise = query.shards, query.summarise
    if isinstance(shards, ChangedShards):
        # Cleaning moves into the leaf, so that raw and cleaned views share the reading.
        summarise, shards = shards.change_first(summarise), cast(ShardedCollection, shards.inner)
    return shards, summarise


@dataclass(frozen=True)
class _Views:
    """Parts of one collection that are read at once, as a pass reads a `Collection`."""

    collections: tuple[Collection, ...]

    @property
    def plan(self) -> ChunkPlan:
        return self.collections[0].plan

    @property
    def schema_of_records(self) -> CollectionSchema:
        return self.collections[0].schema_of_records

    def tasks(self) -> list[range]:
        return self.plan.tasks()

    def shard(self, chunk: int) -> "_Seen":
        """Each view's shard of a chunk, which is read and decoded once."""
        with reading_once():
            return _Seen(tuple(view.shard(chunk) for view in self.collections))


@dataclass(frozen=True, eq=False)
class _Seen:
    """One chunk as each of several queries sees it."""

    shards: tuple[Shard, ...]

    @property
    def n_records(self) -> int:
        """Of the view that has most: whether a stored statistic says too much of one record."""
        return max(shard.n_records for shard in self.shards)


def summarise_each(seen: _Seen, *, summaries: tuple[Callable[[Shard], Any], ...]) -> JointSums:
    """Worker side: each query's statistic of its shard."""
    return JointSums(tuple(take(shard) for take, shard in zip(summaries, seen.shards, strict=True)))
