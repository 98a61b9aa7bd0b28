"""Source partitions of a collection: who a record is, whatever the chunks.

The records of all partitions stand one after the other on one grid of chunks; a partition is a
run of them. A record is addressed by its partition and its number within, which neither the
chunk size nor the partitions before it change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(hide_input_in_errors=True))
class Partition:
    """A run of records that came from one partition of the source.

    Parameters
    ----------
    name
        Name of the file or of the Hive folder, relative to the source.
    first_record
        Number of its first record within the collection.
    n_records
        Number of its records.
    digest
        SHA-256 of its content as stored (hexadecimal): of features and variables with their
        names, dtypes and categories, and not of chunks or codecs.
    """

    name: str
    first_record: int
    n_records: int
    digest: str = ""


@plain_dataclass(frozen=True)
class PartitionRun:
    """Consecutive records within one partition.

    Parameters
    ----------
    partition
        The partition.
    first_record
        Number of the first of them within the partition.
    n_records
        How many.
    """

    partition: Partition
    first_record: int
    n_records: int


def cut_by_partition(
    partitions: Sequence[Partition], start: int, stop: int
) -> tuple[PartitionRun, ...]:
    """Cut a range of records of the collection where partitions meet.

    Parameters
    ----------
    partitions
        All partitions, in order; empty ones may be among them.
    start, stop
        Numbers within the collection, ``start <= stop``.

    Returns
    -------
    runs
        In the order of the records, none of them empty; together they are the range.

    Examples
    --------
    >>> parts = (Partition("a", 0, 3), Partition("b", 3, 4))
    >>> [(r.partition.name, r.first_record, r.n_records) for r in cut_by_partition(parts, 2, 6)]
    [('a', 2, 1), ('b', 0, 3)]
    """
    firsts = [partition.first_record for partition in partitions]
    runs: list[PartitionRun] = []
    for partition in partitions[max(0, bisect_right(firsts, start) - 1) :]:
        if partition.first_record >= stop:
            break
        low = max(start, partition.first_record)
        high = min(stop, partition.first_record + partition.n_records)
        if low < high:
            runs.append(PartitionRun(partition, low - partition.first_record, high - low))
    return tuple(runs)
