"""What replaces values that are missing, in all that learns from records or is judged by them.

A fit sees records as they will be cleaned: which values are missing may itself be confidential, and
of many features few records have all.
"""

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from privpipe.capabilities import AddsUp
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.protocols import FloatArray, IntArray, Shard
from privpipe.store.collections.collection import Collection


@dataclass(frozen=True, eq=False)
class KnownSums(AddsUp):
    """Of each feature the sum of the values that are finite, and how many are, (n_features,)."""

    sums: FloatArray
    counts: IntArray

    @classmethod
    def of(cls, shard: Shard) -> "KnownSums":
        """Sums over the records of a shard."""
        known = np.isfinite(shard.features)
        return cls(shard.features.sum(0, np.float64, where=known), known.sum(0))

    @property
    def means(self) -> tuple[float, ...]:
        """Mean of each feature; 0 of one that no record has."""
        return tuple((self.sums / np.maximum(self.counts, 1)).tolist())


def fill_training(run: Run, executor: Executor) -> Run:
    """The run with means of its training records, where it imputes: one pass over them."""
    if run.options.release.nonfinite != "impute":
        return run
    bare = replace(run.training.keeping(run.split, "fit"), weights=None, only_finite=False)
    known = ShardedCollection(bare, executor, "impute").reduce(KnownSums.of)
    return replace(run, training=replace(run.training, fill=known.means))


def fill_preview(options: RunOptions, collection: Collection) -> Collection:
    """Records as `fill_training` has them, nearly: with means of a few chunks, evenly spread."""
    if options.release.nonfinite != "impute" or collection.fill is not None:
        return collection
    bare, last = replace(collection, weights=None, only_finite=False), collection.plan.n_chunks - 1
    chunks = {round(place * last) for place in (0, 0.25, 0.5, 0.75, 1)}
    known = reduce(KnownSums.merge, [KnownSums.of(bare.shard(chunk)) for chunk in chunks])
    return replace(collection, fill=known.means)
