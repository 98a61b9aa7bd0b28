"""Whole runs in one thread whose releases are broken in a known way, or sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.records.schema import CollectionSchema, Partition, Variable
from privpipe.store.collections.writing import write_collection

N_RECORDS, N_FEATURES, CHUNK_ROWS = 6000, 4, 1000

QUICK = ("least_squares", "naive_bayes")


def make_records(n_records: int = N_RECORDS, seed: int = 5) -> dict[str, np.ndarray]:
    """Features that are noise but for the first two: one tells the wanted, one the secret."""
    random = np.random.default_rng(seed)
    secret = random.integers(0, 2, n_records).astype(np.int8)
    wanted = random.integers(0, 2, n_records).astype(np.int8)
    features = random.normal(size=(n_records, N_FEATURES))
    features[:, 0] += 6.0 * wanted
    features[:, 1] += 6.0 * secret
    other = random.integers(0, 3, n_records).astype(np.int8)
    return {"features": features, "wanted": wanted, "secret": secret, "other": other}


def write_records(url: str, records: dict[str, np.ndarray], *, cuts: Sequence[int] = ()) -> None:
    """The records as a collection; of several partitions where it is cut."""
    n_records, n_features = records["features"].shape
    names = [name for name in records if name != "features"]
    ends = [*cuts, n_records]
    partitions = tuple(
        Partition(f"part-{first}", first, last - first)
        for first, last in zip([0, *cuts], ends, strict=True)
    )
    schema = CollectionSchema(
        n_records=n_records,
        n_features=n_features,
        dtype="float64",
        chunk_rows=CHUNK_ROWS,
        variables=tuple(
            Variable(
                name, "int8", tuple(f"{name}-{k}" for k in range(int(records[name].max()) + 1))
            )
            for name in names
        ),
        partitions=partitions if cuts else (),
    )
    starts = range(0, n_records, CHUNK_ROWS)
    write_collection(
        url, schema, [{k: v[s : s + CHUNK_ROWS] for k, v in records.items()} for s in starts]
    )


def make_leaky_options(folder: Path, **changes: Any) -> RunOptions:
    """Linear erasure of the secret, held against limits that 3,000 held-out records can show."""
    sections: dict[str, Any] = {
        "collection": {
            "path": str(folder / "records.zarr"),
            "desired": ["wanted"],
            "confidential": ["secret"],
        },
        "method": {"name": "null_space", "utility_budget": 0.01, "ridge": 0.01},
        "release": {"path": str(folder / "release.zarr")},
        "audit": {"holdout": 0.5, "adversaries": QUICK},
        # A planted leak of half of so few records is found whatever the sample.
        "gate": {"confidential_advantage_max": 0.3, "exposed_max": 0.1, "must_find": 0.9},
    }
    if "method" in changes:
        sections["method"] = {}
    for name in changes.keys() - sections.keys():
        sections[name] = {}
    return RunOptions(**{name: value | changes.get(name, {}) for name, value in sections.items()})
