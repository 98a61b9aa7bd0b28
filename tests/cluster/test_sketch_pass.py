"""Sketches of collections: made once, by whatever says who a record is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.sketch_pass import sketch_collection
from privpipe.numerics.random.record_grids import Overlap
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.writing import write_collection
from privpipe.store.keyring.sketches import Sketches


def write_codes(url: str, codes: np.ndarray, towns: tuple[str, ...]) -> Collection:
    """Records without features: a town and a trade of many."""
    trades = tuple(f"trade-{k}" for k in range(500))
    variables = (Variable("town", "int16", towns), Variable("trade", "int16", trades))
    schema = CollectionSchema(len(codes), 0, "float64", 64, variables)
    empty = np.empty((len(codes), 0))
    blocks = [
        {"features": empty[s : s + 64], "town": codes[s : s + 64, 0], "trade": codes[s : s + 64, 1]}
        for s in range(0, len(codes), 64)
    ]
    write_collection(url, schema, blocks)
    return open_collection(url)


def test_sketch__of_codes_is_by_names_of_categories_and_of_any_variables(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    codes = np.column_stack([rng.integers(0, 3, 200), rng.permutation(500)[:200]]).astype(np.int16)
    moved = codes.copy()
    moved[:, 0] += 1  # a town that nobody lives in comes first
    first = write_codes(str(tmp_path / "a.zarr"), codes, ("bern", "linz", "ulm"))
    later = write_codes(str(tmp_path / "b.zarr"), moved[1:], ("aarau", "bern", "linz", "ulm"))
    sketches = Sketches(str(tmp_path / "account"))
    sketch_collection(Executor(), first, sketches, variables=("town", "trade"))
    sketch_collection(Executor(), later, sketches, variables=("trade",))
    (one,), (other,) = (
        [part.digest for part in some.schema_of_records.partitions] for some in (first, later)
    )
    assert sketches.ties().between(other, one) == Overlap(1.0, 199 / 200)
    before = sketches.known()
    sketch_collection(Executor(), later, sketches)
    assert sketches.known() == before
