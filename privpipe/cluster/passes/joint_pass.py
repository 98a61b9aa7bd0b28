"""Several queries in one pass: a chunk is read once, and each query gets its shard of it.

The queries may concern other parts of the records, and other released counterparts of them;
those about one collection share a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from privpipe.attacks.statistics.joint_sums import JointSums
from privpipe.cluster.passes.loaded_map import CleanedShards
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.protocols import Shard
from privpipe.records.chunks import ChunkPlan
from privpipe.records.schema import CollectionSchema
from privpipe.store.arrays.blocks import reading_once
from privpipe.store.collections.collection import Collection


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

    shards: ShardedCollection | CleanedShards
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
    if isinstance(shards, CleanedShards):
        # Cleaning moves into the leaf, so that raw and cleaned views share the reading.
        summarise, shards = shards.clean_first(summarise), cast(ShardedCollection, shards.inner)
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

    def shard(self, chunk: int) -> _Seen:
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
    return JointSums(
        tuple(summarise(shard) for summarise, shard in zip(summaries, seen.shards, strict=True))
    )
