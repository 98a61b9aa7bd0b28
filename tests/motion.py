"""Raw motion windows as drawn: what is done shows in their frequency, who does it in one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.writing import write_collection

AXES, SAMPLES = 3, 32
ACTIVITIES = ("sitting", "walking", "running")


def draw_windows(
    n_subjects: int, n_each: int, *, seed: int = 0, lean: float = 0.7
) -> dict[str, Any]:
    """Windows (n_records, 3 * 32), subject after subject; a subject's sex leans the third axis."""
    rng = np.random.default_rng(seed)
    n = n_subjects * n_each
    subject = np.repeat(np.arange(n_subjects), n_each)
    activity, sex = rng.integers(0, len(ACTIVITIES), n), subject % 2
    time = np.arange(SAMPLES)
    frequency = np.array([0.08, 0.16, 0.3])[activity]
    phase = rng.uniform(0, 2 * np.pi, (n, AXES, 1))
    x = np.sin(2 * np.pi * frequency[:, None, None] * time + phase)
    x[:, 2] += lean * (2 * sex - 1)[:, None]
    x += 0.3 * rng.normal(size=x.shape)
    features = x.reshape(n, -1).astype(np.float32)
    return {"features": features, "activity": activity, "sex": sex, "subject": subject}


def write_windows(url: str, windows: dict[str, Any], chunk_rows: int) -> None:
    """The windows as a collection."""
    n_records, n_features = windows["features"].shape
    n_subjects = int(windows["subject"].max()) + 1
    schema = CollectionSchema(
        n_records=n_records,
        n_features=n_features,
        dtype="float32",
        chunk_rows=chunk_rows,
        variables=(
            Variable("activity", "int8", ACTIVITIES),
            Variable("sex", "int8", ("f", "m")),
            Variable("subject", "int16", tuple(f"s{i}" for i in range(n_subjects))),
        ),
    )
    dtypes = {"features": np.float32, "activity": np.int8, "sex": np.int8, "subject": np.int16}
    blocks = (
        {name: windows[name][i : i + chunk_rows].astype(dtype) for name, dtype in dtypes.items()}
        for i in range(0, n_records, chunk_rows)
    )
    write_collection(url, schema, blocks)
