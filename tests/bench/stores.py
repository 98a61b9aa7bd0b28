"""Stores and jobs that benchmarks clean: many chunks made from few, models, fresh releases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from privpipe.cluster.passes.cleaning_pass import CleaningJob
from privpipe.records.schema import CollectionSchema
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner
from privpipe.store.access.objects import open_store, write_bytes
from privpipe.store.access.workspace import remove_workspace
from privpipe.store.arrays.layout import (
    FEATURES,
    ROOT_DOCUMENT,
    SEAL,
    ArrayPlan,
    array_documents,
    chunk_key,
    digest_documents,
    read_header,
    root_document,
)
from privpipe.store.arrays.sealed_arrays import ReceiptBook, collection_arrays, read_receipts
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.writing import write_collection
from privpipe.store.models import write_model
from privpipe.store.releases.release_writing import ReleasePlan

N_FEATURES = 294
CHUNK_ROWS = 8 * 2**20 // (4 * N_FEATURES)
"""Records in a chunk of 8 MiB."""
RANK = 3
DISTINCT = 8
"""Different chunks in a collection, however many it has."""


def make_collection(folder: Path, n_chunks: int, chunk_rows: int = CHUNK_ROWS) -> Collection:
    """Random float32 records of little compressible content, as measured data are.

    At most `DISTINCT` chunks are different; the rest are further names of the same files, so
    that eight gigabytes take no time to make. All are read from the page cache, which leaves
    cleaning and copying less to do and shows what is not work of either in full.
    """
    seed = folder / f"seed-{chunk_rows}.zarr"
    if not seed.exists():
        rng = np.random.default_rng(0)
        schema = CollectionSchema(DISTINCT * chunk_rows, N_FEATURES, "float32", chunk_rows)
        blocks = (rng.normal(size=(chunk_rows, N_FEATURES)).round(2) for _ in range(DISTINCT))
        write_collection(str(seed), schema, ({FEATURES: x.astype(np.float32)} for x in blocks))
    url = folder / f"records-{n_chunks}-{chunk_rows}.zarr"
    if url.exists():
        return open_collection(str(url))
    schema = CollectionSchema(n_chunks * chunk_rows, N_FEATURES, "float32", chunk_rows)
    arrays = collection_arrays(schema)
    for chunk in range(n_chunks):
        target = url / chunk_key(arrays[0], chunk)
        target.parent.mkdir(parents=True)
        os.link(seed / chunk_key(arrays[0], chunk % DISTINCT), target)
    header = dict(read_header(str(seed), "collection"))
    del header[SEAL]
    known = read_receipts(open_collection(str(seed)).sealed.proof, 0)
    book = ReceiptBook(str(url), [FEATURES], n_chunks)
    for chunk in range(n_chunks):
        book.add([tuple(known[chunk % DISTINCT, 0].tolist())])
    documents = array_documents(arrays)
    header |= {
        "schema": asdict(schema),
        "digest": f"{n_chunks:064d}",
        "documents_sha256": digest_documents(documents),
        "receipts": book.close(str(url)).describe(),
    }
    for key, content in {**documents, ROOT_DOCUMENT: root_document(header)}.items():
        write_bytes(open_store(str(url)), key, content)
    return open_collection(str(url))


def write_cleaner(folder: Path) -> tuple[str, str]:
    """A stored model of rank three: its place and digest."""
    predictor = np.random.default_rng(1).normal(size=(N_FEATURES, RANK))
    url = str(folder / "model.zarr")
    return url, write_model(NullSpaceCleaner.from_predictor(predictor, utility_budget=0.5), url)


@contextmanager
def fresh_job(
    folder: Path, collection: Collection, model: tuple[str, str], run: str
) -> Iterator[CleaningJob]:
    """A job whose release is still to be prepared, and is removed at the end.

    What earlier work has left to be put on the disk is waited for first.
    """
    os.sync()
    schema = collection.schema_of_records
    shape = (schema.n_records, schema.n_features)
    array = ArrayPlan(FEATURES, shape, schema.chunk_rows, schema.dtype)
    plan = ReleasePlan(run, str(folder / f"{run}-release.zarr"), (array,))
    try:
        yield CleaningJob(collection, plan, *model)
    finally:
        remove_workspace(plan.url)
