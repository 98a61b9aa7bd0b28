"""Drawing surrogates on the workers: every record is summed with random signs of its own.

A tile of surrogates is one pass over all records: each task sums its chunks, the sums are merged in
a tree, and the driver makes records of the last one and writes them. The sums are exact, so that
chunks, workers, retries and resumed runs give the same bytes. Neither signs nor keys leave a task.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from privpipe.capabilities import MixesRecords
from privpipe.cluster.events import Event
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.loaded_map import load_map
from privpipe.store.arrays.blocks import Receipt, write_block
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections.collection import Collection
from privpipe.store.keyring.keys import PartitionKeys
from privpipe.store.releases.release_writing import ReleasePlan


@dataclass(frozen=True)
class DrawingJob:
    """All that a worker must know to sum up chunks; no value of a record.

    Parameters
    ----------
    collection
        The records that surrogates are made of, with the part to take.
    plan
        The release being written; a chunk of it is a tile.
    model_url, model_digest
        The fitted model, and what it must be.
    keys
        Name the keys of the signs.
    """

    collection: Collection
    plan: ReleasePlan
    model_url: str
    model_digest: str
    keys: PartitionKeys


def draw_surrogates(
    executor: Executor,
    job: DrawingJob,
    record: Callable[[Sequence[Receipt]], None],
    *,
    done: frozenset[int] = frozenset(),
) -> None:
    """Draw and write every tile that is not done yet.

    Parameters
    ----------
    executor
        Who works.
    job
        What to sum up, and where surrogates go.
    record
        Called with the receipt of each tile.
    done
        Tiles that have a receipt.

    Raises
    ------
    PrivpipeError
        What a worker reported, as of a record that is not finite or too revealing.
    """
    tasks = [list(chunks) for chunks in job.collection.plan.tasks()]
    for tile in range(job.plan.chunks.n_chunks):
        if tile in done:
            continue
        begun = time.perf_counter()
        sums: Any = executor.reduce(sum_chunks, (job, tile), tasks, label="surrogates")
        fitted = load_map(job.model_url, job.model_digest)
        assert isinstance(fitted, MixesRecords), "the stage has looked"
        features, responses = fitted.finish_records(sums)
        columns = zip(fitted.response_names, responses.T, strict=True)
        block = {FEATURES: features, **dict(columns)}
        receipt = write_block(job.plan.data_url, job.plan.arrays, tile, block, job.plan.run)
        record([replace(receipt, seconds=time.perf_counter() - begun)])
        executor.listener(Event("clean_chunk", "advances", len(features)))


def sum_chunks(job: DrawingJob, tile: int, chunks: Sequence[int]) -> Any:
    """Worker side: sum up chunks one after the other; memory is that of one and of a tile."""
    fitted = load_map(job.model_url, job.model_digest)
    assert isinstance(fitted, MixesRecords), "the stage has looked"
    collection, schema = job.collection, job.collection.schema

    def sum_one(chunk: int) -> Any:
        start, stop = collection.plan.rows(chunk)
        stream = job.keys.stream(start, stop)
        places = collection.rows(chunk) - start
        return fitted.sum_records(collection.shard(chunk), schema, stream, places, tile)

    return reduce(lambda left, right: left.merge(right), map(sum_one, chunks))
