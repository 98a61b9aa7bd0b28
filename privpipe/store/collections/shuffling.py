"""An external shuffle: records in a secret random order, with memory for a few blocks."""

import secrets
from collections.abc import Iterable, Iterator
from itertools import accumulate

import numpy as np

from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.protocols import AnyArray
from privpipe.records.schema import CollectionSchema, Partition, cut_by_partition
from privpipe.store.access import objects
from privpipe.store.arrays.sealed_arrays import collection_arrays

BUCKET_BYTES = 2**27
"""Of the records that are put in order at once, about; memory holds them three times."""


def shuffle_blocks(
    blocks: Iterable[dict[str, AnyArray]], schema: CollectionSchema, place: str
) -> Iterator[dict[str, AnyArray]]:
    """Bring the records of each partition into an order of which all are equally likely.

    Parameters
    ----------
    blocks
        Records in the dtypes of the schema, by array, in the order of the source.
    schema
        Its partitions say where one ends: records stay within theirs.
    place
        URL of a private folder for raw records on the way; it is removed.

    Yields
    ------
    block
        The records of one bucket.

    Notes
    -----
    Each record goes to a bucket at random, and each bucket is put in random order (Rao 1961,
    Sandelius 1962). The words come from a key that is never written: whoever knows the source
    and the release, but not the collection, does not know which record came from where.
    """
    key, store = secrets.token_bytes(KEY_BYTES), objects.open_store(place)
    rows = np.dtype([(one.name, one.dtype, one.shape[1:]) for one in collection_arrays(schema)])
    partitions = schema.partitions or (Partition("", 0, schema.n_records),)
    n_buckets = {one: -(-one.n_records * rows.itemsize // BUCKET_BYTES) for one in partitions}
    first = dict(zip(partitions, accumulate(n_buckets.values(), initial=0), strict=False))

    def draw(purpose: str, start: int, count: int) -> AnyArray:
        stream = KeyedStream(key, partition="shuffle", first_record=start, n_records=count)
        return stream.words(purpose, 1)[:, 0]

    waiting: dict[int, list[bytes]] = {}
    start = held = n_pieces = 0
    for block in blocks:
        records = np.empty(len(next(iter(block.values()))), rows)
        for name, values in block.items():
            records[name] = values
        for run in cut_by_partition(partitions, start, start + len(records)):
            some, records = np.split(records, [run.n_records])
            chosen = draw("bucket", start, len(some)) % np.uint64(n_buckets[run.partition])
            order = np.argsort(chosen, kind="stable")
            found, cuts = np.unique(chosen[order], return_index=True)
            numbers = (first[run.partition] + found.astype(np.int64)).tolist()
            for number, part in zip(numbers, np.split(some[order], cuts[1:]), strict=True):
                waiting.setdefault(number, []).append(part.tobytes())
            start, held = start + len(some), held + some.nbytes
        if held >= BUCKET_BYTES or start == schema.n_records:
            for number, pieces in waiting.items():
                objects.write_bytes(store, f"{number}/{n_pieces}", b"".join(pieces))
            waiting, held, n_pieces = {}, 0, n_pieces + 1
    start = 0
    for number in range(sum(n_buckets.values())):
        stored = objects.read_many(store, objects.list_keys(store, f"{number}/"))
        records = np.frombuffer(b"".join(stored.values()), rows)
        records = records[np.argsort(draw("order", start, len(records)))]
        start += len(records)
        yield {name: records[name] for name in rows.names or ()}
    objects.remove_tree(place)
