"""The standard records of the tests: every branch of a formula gets data of its own.

Two desired and two confidential columns of different means, a constant feature, and a block of
features that depend on one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from privpipe.protocols import FloatArray
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.writing import write_collection

N_FEATURES = 9
DESIRED = ("height", "late")
CONFIDENTIAL = ("income", "party")


def make_standard(n_records: int, seed: int = 0) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Features (n_records, 9) of different scales, and the four variables by name."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_records, N_FEATURES)) * np.array([1, 2, 5, 0.1, 1, 1, 1, 1, 1.0])
    x += np.array([0, 10, -3, 0.5, 0, 0, 0, 0, 0.0])
    x[:, 6] = 7.0
    x[:, 7] = x[:, 0] - 2 * x[:, 1]
    x[:, 8] = x[:, 4] + x[:, 5]
    noise = rng.normal(size=(n_records, 4))
    party = np.digitize(x[:, 2] + 3 * x[:, 4] + noise[:, 3], [-5.0, -1.0])
    variables = {
        "height": 100 + 3 * x[:, 0] - x[:, 1] + 0.3 * noise[:, 0],
        "late": (x[:, 4] - x[:, 5] + 0.5 * noise[:, 1] > 0.4).astype(float),
        "income": -20 + 2 * x[:, 2] + x[:, 5] + 0.5 * noise[:, 2],
        "party": party.astype(float),
    }
    return x, variables


def write_standard(
    url: str,
    n_records: int,
    *,
    chunk_rows: int = 64,
    dtype: str = "float64",
    seed: int = 0,
    cells: Mapping[tuple[int, int], float] | None = None,
) -> CollectionSchema:
    """The standard records as a collection, with the record's number as variable `person`.

    `cells` replaces some of the features, by record and column.
    """
    x, variables = make_standard(n_records, seed)
    for place, value in (cells or {}).items():
        x[place] = value
    schema = CollectionSchema(
        n_records=n_records,
        n_features=N_FEATURES,
        dtype=dtype,
        chunk_rows=min(chunk_rows, n_records),
        variables=(
            Variable("height", "float64"),
            Variable("late", "int8", ("no", "yes")),
            Variable("income", "float64"),
            Variable("party", "int8", ("left", "middle", "right")),
            Variable("person", "int32"),
        ),
        feature_names=tuple(f"feature_{j}" for j in range(N_FEATURES)),
    )

    def blocks() -> Iterator[Mapping[str, Any]]:
        for start in range(0, n_records, schema.chunk_rows):
            rows = slice(start, min(start + schema.chunk_rows, n_records))
            yield {
                "features": x[rows].astype(dtype),
                "height": variables["height"][rows],
                "late": variables["late"][rows].astype(np.int8),
                "income": variables["income"][rows],
                "party": variables["party"][rows].astype(np.int8),
                "person": np.arange(n_records, dtype=np.int32)[rows],
            }

    write_collection(url, schema, blocks())
    return schema
