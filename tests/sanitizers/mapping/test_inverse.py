"""Readers of a mapping's release estimate shares of raw values, and others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from privpipe import NullSpaceCleaner, PrivacyMappingOptions, fit_privacy_mapping
from privpipe.cluster.estimate import estimate
from privpipe.errors import OptionError
from privpipe.fitted_schema import NamedCodes
from privpipe.protocols import Column, Shard, ShardSchema
from privpipe.records.memory import Records
from privpipe.store.models import write_model

N = 4_000
TABLES = {"colour": ("red", "green", "blue"), "size": ("s", "m", "l", "xl"), "region": ("n", "w")}


def draw() -> tuple[np.ndarray, np.ndarray]:
    """Attributes, of which the first depends on the private value, which is the second result."""
    rng = np.random.default_rng(0)
    private = rng.integers(0, 2, N)
    colour = np.where(rng.random(N) < 0.4, private, rng.choice(3, N, p=(0.2, 0.3, 0.5)))
    return np.column_stack([colour, rng.choice(4, N), rng.choice(2, N, p=(0.7, 0.3))]), private


def fit(**given: Any) -> tuple[Any, xr.Dataset, np.ndarray]:
    """A mapping, its release with another order of categories, and the raw codes."""
    from privpipe.numerics.random.streams import KeyedStream

    codes, private = draw()
    records = Records(np.zeros((N, 1)), attributes=codes, confidential=private)
    del records, Shard, ShardSchema, Column, NamedCodes, KeyedStream
    raise NotImplementedError
