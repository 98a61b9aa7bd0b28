"""The sample that adversaries see: held-out records, raw and released, read on a worker.

A few chunks spread over the collection are read, and a bounded number of their different
records is kept. Repeats of a record teach an adversary nothing and would flatter its intervals,
so each counts once: a collection and its whole repeats give the same evidence.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from privpipe.attacks.evidence import Evidence, prepare_evidence
from privpipe.attacks.options import AttackOptions
from privpipe.dist.apply import load_map
from privpipe.protocols import Shard
from privpipe.store.collection import Collection

__all__ = ["sample_evidence"]

MOST_CHUNKS = 16
"""Chunks that are read, evenly spread."""


def sample_evidence(
    collection: Collection,
    options: AttackOptions,
    *,
    model_url: str = "",
    model_digest: str = "",
) -> Evidence:
    """Worker side: draw the sample and prepare it for attacks.

    Parameters
    ----------
    collection
        Held-out records with their confidential variables, and with their released features
        unless a model is named.
    options
        How many records, and how rare classes are treated.
    model_url, model_digest
        A stored map that releases the features of each shard, when `collection` does not.

    Raises
    ------
    InputError
        If the sample cannot be attacked, as when a variable has a single class.
    """
    n_chunks = collection.plan.n_chunks
    chosen = np.unique(np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks)).astype(int))
    share = -(-options.max_records // len(chosen))
    shards: list[Shard] = []
    for chunk in chosen:
        shard = _thin(_distinct(collection.shard(int(chunk))), share)
        if model_url:
            shard = replace(shard, released=load_map(model_url, model_digest).apply(shard.features))
        shards.append(shard)
    sample = _distinct(_join(shards))
    return prepare_evidence(
        sample.released,
        sample.confidential,
        raw=sample.features,
        columns=collection.schema.confidential,
        options=options,
    )


def _distinct(shard: Shard) -> Shard:
    """Each record once, in the order of their values: the order tells nothing of the chunking."""
    parts = [shard.features, shard.confidential]
    parts += [shard.released] if len(shard.released) else []
    rows = np.ascontiguousarray(np.hstack([part.astype(np.float64) for part in parts]))
    packed = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first = np.unique(packed, return_index=True)
    return _take(shard, first)


def _thin(shard: Shard, share: int) -> Shard:
    """At most `share` records, evenly spread over the distinct ones."""
    if shard.n_records <= share:
        return shard
    return _take(shard, np.linspace(0, shard.n_records - 1, share).astype(int))


def _take(shard: Shard, rows: npt.NDArray[np.intp]) -> Shard:
    """Some rows of what adversaries are given."""
    released = shard.released[rows] if len(shard.released) else shard.released
    return Shard(
        features=shard.features[rows],
        confidential=shard.confidential[rows],
        released=released,
        first_record=-1,
    )


def _join(shards: list[Shard]) -> Shard:
    return Shard(
        features=np.concatenate([shard.features for shard in shards]),
        confidential=np.concatenate([shard.confidential for shard in shards]),
        released=np.concatenate([shard.released for shard in shards]),
        first_record=-1,
    )
