"""A few chunks before a run: what the method can tell of it, and what it suggests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.capabilities import Forecast
from privpipe.pipeline.runs.run import Run
from privpipe.protocols import Column, IntArray, Shard, ShardSchema
from privpipe.sanitizers import METHODS
from privpipe.store.collections.collection import Collection

MOST_CHUNKS = 4
"""Chunks read for a forecast, spread over the collection."""


@dataclass(frozen=True)
class FewChunks:
    """The `Preview` of a run.

    Parameters
    ----------
    training
        Records of the fit.
    collection
        Records to release.
    """

    training: Collection
    collection: Collection

    @property
    def is_whole(self) -> bool:
        """Whether these are all records."""
        both = (self.training, self.collection)
        return all(len(_choose(one)) == one.plan.n_chunks for one in both)

    def read_training(self) -> Sequence[Shard]:
        """Attributes and labels of records that the fit will see; no features."""
        bare = replace(self.training, reads_features=False, only_finite=False)
        return [bare.shard(chunk) for chunk in _choose(bare)]

    def read_labelled(self) -> tuple[Sequence[Shard], ShardSchema]:
        """The same records whole, with what they look like."""
        whole = replace(self.training, only_finite=True)
        return [whole.shard(chunk) for chunk in _choose(whole)], whole.schema

    def read_attributes(self) -> IntArray:
        """Attributes of records that will be released, (n_records, n_attributes)."""
        return _read_codes(self.collection)


def forecast_run(run: Run) -> Forecast | None:
    """What the method tells of a run before it; None where it tells nothing."""
    if run.method.forecast is None:
        return None
    preview = FewChunks(run.training.keeping(run.split, "fit"), run.collection)
    told: Forecast | None = run.method.forecast(preview, run.options.method)
    return told


def measure_rarest(training: Collection, least: float) -> dict[str, float]:
    """Share of the rarest class of each categorical confidential variable, in a few chunks.

    Parameters
    ----------
    training
        Records of which some will be audited.
    least
        Records that a class must have in the whole collection; of fewer it does not count, as
        the audit merges it with another or refuses it.
    """
    bare = replace(training, reads_features=False, only_finite=False)
    shards = [bare.shard(chunk) for chunk in _choose(bare)]
    codes = np.concatenate([shard.confidential for shard in shards])
    found = {}
    for column, values in zip(bare.schema.confidential, codes.T, strict=True):
        if column.n_categories is None:
            continue
        known = values[np.isfinite(values) & (values >= 0)].astype(int)
        shares = np.bincount(known, minlength=column.n_categories) / max(len(known), 1)
        counted = shares[shares * bare.schema_of_records.n_records >= least]
        if counted.size:
            found[column.name] = float(counted.min())
    return found


def suggest_method(
    collection: Collection, confidential: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """The first method that suits where only what is to be hidden is named, and options of it.

    The first method of all, without options, where none says that it does.
    """
    columns = [
        Column(variable.name, None if variable.categories is None else len(variable.categories))
        for variable in collection.schema_of_records.variables
    ]
    read = partial(_read_named, collection)
    for name, method in METHODS.items():
        if method.suggest is not None and (found := method.suggest(confidential, columns, read)):
            return name, dict(found)
    return next(iter(METHODS)), {}


def _choose(collection: Collection) -> list[int]:
    """Numbers of a few chunks, evenly spread."""
    n_chunks = collection.plan.n_chunks
    spread = np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks))
    return [int(chunk) for chunk in np.unique(spread.astype(int))]


def _read_named(collection: Collection, names: tuple[str, ...]) -> IntArray:
    return _read_codes(replace(collection, attributes=names))


def _read_codes(collection: Collection) -> IntArray:
    parts = [collection.codes(*collection.plan.rows(chunk)) for chunk in _choose(collection)]
    return np.concatenate(parts)
