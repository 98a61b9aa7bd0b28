"""Tables for the tests of ingest, and how a collection is read back whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections.collection import open_collection


def make_frame(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, whole numbers, a flag, text with gaps, and an identifier."""
    assert n >= 7, "gaps are in the first seven records"
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(n) + 7_000_000,
            "height": rng.normal(size=n),
            "weight": rng.normal(size=n),
            "steps": rng.integers(0, 9, n),
            "smoker": rng.integers(0, 2, n),
            "town": rng.choice(["Ulm", "Köln", "a, b"], n),
            "score": rng.normal(size=n),
        }
    )
    frame.loc[3, "weight"] = np.nan
    frame.loc[5, "town"] = None
    frame.loc[6, "score"] = np.nan
    return frame


def read_collection(url: Any) -> dict[str, Any]:
    """Features, numbers of numeric variables, and text of categorical ones (None if missing)."""
    collection = open_collection(str(url))
    schema = collection.schema_of_records
    found: dict[str, Any] = {FEATURES: collection.read(FEATURES, 0, schema.n_records)}
    for variable in schema.variables:
        values = collection.read(variable.name, 0, schema.n_records)
        if variable.categories is not None:
            found[variable.name] = [
                variable.categories[code] if code >= 0 else None for code in values.tolist()
            ]
        else:
            found[variable.name] = values
    return found
