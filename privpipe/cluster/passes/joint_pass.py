"""Several questions in one pass: a chunk is read once, and each question gets its shard of it.

The questions may concern other parts of the records, and other released counterparts of them;
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
    """What is asked of which shards.

    Parameters
    ----------
    shards
        A part of a collection, perhaps with its released counterpart.
    summarise
        Picklable; makes a mergeable statistic of a shard.
    """

    shards: ShardedCollection | CleanedShards
    summarise: Callable[[Shard], Any]


def reduce_jointly(questions: Sequence[JointQuery], label: str) -> list[Any]:
    """Answer questions; those about one collection in one pass.

    Parameters
    ----------
    questions
        In any order.
    label
        What the dashboard shows of the passes.

    Returns
    -------
    answers
        Of each question what ``shards.reduce(summarise)`` would give.
    """
    asked = [_unwrap(question) for question in questions]
    answers: list[Any] = [None] * len(asked)
    for url in dict.fromkeys(shards.collection.url for shards, _ in asked):
        mine = [i for i, (shards, _) in enumerate(asked) if shards.collection.url == url]
        views = _Views(tuple(asked[i][0].collection for i in mine))
        # A pass asks no more of a collection than its chunks, and those the views have.
        one_pass = replace(asked[mine[0]][0], collection=cast(Collection, views), label=label)
        found: JointSums = one_pass.reduce(
            cast(Any, partial(summarise_each, summaries=tuple(asked[i][1] for i in mine)))
        )
        for i, answer in zip(mine, found.parts, strict=True):
            answers[i] = answer
    return answers


def _unwrap(question: JointQuery) -> tuple[ShardedCollection, Callable[[Shard], Any]]:
    shards, summarise = question.shards, question.summarise
    if isinstance(shards, CleanedShards):
        summarise, shards = shards.clean_first(summarise), cast(ShardedCollection, shards.inner)
    return shards, summarise


@dataclass(frozen=True)
class _Views:
    """Parts of one collection that are read together; stands for a `Collection` in a pass."""

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
    """One chunk as each of several questions sees it."""

    shards: tuple[Shard, ...]

    @property
    def n_records(self) -> int:
        """Of the view that has most: whether a stored statistic says too much of one record."""
        return max(shard.n_records for shard in self.shards)


def summarise_each(seen: _Seen, *, summaries: tuple[Callable[[Shard], Any], ...]) -> JointSums:
    """Worker side: each question's statistic of its shard."""
    return JointSums(
        tuple(summarise(shard) for summarise, shard in zip(summaries, seen.shards, strict=True))
    )
