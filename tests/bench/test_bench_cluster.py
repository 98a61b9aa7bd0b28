"""What the cluster's bench leans on: collections of repeated chunks, the copy, one measured job."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from privpipe.cluster.passes.cleaning_pass import clean_chunks
from tests.bench.cluster_jobs import JobBench, measure_job
from tests.bench.stores import DISTINCT, make_collection
from tests.bench.watching import copy_chunks


def test_make_collection__repeats_its_chunks(tmp_path):
    collection = make_collection(tmp_path, DISTINCT + 2, chunk_rows=4)
    first, second, again = (collection.read("features", 4 * i, 4 * i + 4) for i in (0, 1, DISTINCT))
    assert collection.n_records == 4 * (DISTINCT + 2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_measure_job__cleans_or_copies_every_chunk_and_tells_what_it_took(tmp_path):
    bench = JobBench(tmp_path, chunk_rows=16)
    collection = bench.collection(9)
    raw = collection.read("features", 0, collection.n_records)
    with bench.cluster(2) as client:
        for work, same in ((copy_chunks, True), (clean_chunks, False)):
            with bench.job(collection) as job:
                spent = measure_job(client, job, work)
                written = zarr.open_array(job.plan.data_url, path="features", mode="r")[...]
            assert np.array_equal(written, raw) == same
            assert np.isfinite(written).all()
            assert 0 < spent.receipts < spent.chunks < spent.available
            assert len(spent.workers) == 2
            assert spent.busiest <= spent.processor
