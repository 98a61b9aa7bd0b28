"""Partitions: any range of records is cut where they meet, empty partitions included."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from privpipe.records.schema import Partition, cut_by_partition


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_cut_by_partition__names_every_record_once_and_in_order(sizes, data):
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    partitions = tuple(
        Partition(str(i), first, size)
        for i, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    )
    n_records = sum(sizes)
    start = data.draw(st.integers(0, n_records))
    stop = data.draw(st.integers(start, n_records))
    everything = [(str(i), number) for i, size in enumerate(sizes) for number in range(size)]
    found = [
        (run.partition.name, run.first_record + i)
        for run in cut_by_partition(partitions, start, stop)
        for i in range(run.n_records)
    ]
    assert found == everything[start:stop]
    assert all(run.n_records for run in cut_by_partition(partitions, start, stop))
