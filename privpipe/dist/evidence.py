"""The sample that adversaries see: held-out records, raw and released, read on a worker.

A few chunks spread over the collection are read, and a bounded number of their different
records is kept. Repeats of a measured record teach an adversary nothing and would flatter its
intervals, so each counts once: a collection and its whole repeats give the same evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from privpipe.attacks.evidence import Evidence, prepare_evidence
from privpipe.attacks.options import AttackOptions
from privpipe.dist.cleaned import release_shard
from privpipe.protocols import Shard, WordArray
from privpipe.records.splits import hash_rows
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
    sample = _Drawn.none()
    for chunk in chosen:
        shard = collection.shard(int(chunk))
        drawn = _draw(shard, _identify(shard, int(chunk), collection), options.max_records)
        if model_url:
            attributes = collection.schema.attributes
            released = release_shard(drawn.shard, model_url, model_digest, attributes)
            drawn = replace(drawn, shard=replace(drawn.shard, released=released))
        joined = drawn if sample.hashes.size == 0 else _join(sample, drawn)
        sample = _draw(joined.shard, joined.hashes, options.max_records)
    return prepare_evidence(
        sample.shard.released,
        sample.shard.confidential,
        raw=sample.shard.features,
        columns=collection.schema.confidential,
        options=options,
    )


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Records of a sample with the hashes that decided for them, (n_records,)."""

    shard: Shard
    hashes: WordArray

    @classmethod
    def none(cls) -> _Drawn:
        return cls(Shard(np.empty((0, 0))), np.empty(0, np.uint64))


def _identify(shard: Shard, chunk: int, collection: Collection) -> WordArray:
    """What makes a record different from others, hashed.

    Equal measured records are repeats of one. Categorical records are equal by nature, and what
    is drawn for them differs: there each record counts.
    """
    if collection.indicators:
        places = np.column_stack(np.broadcast_arrays(chunk, np.arange(shard.n_records)))
        return hash_rows(places.astype(np.float64))
    rows = np.hstack([shard.features, shard.confidential]).astype(np.float64)
    return hash_rows(rows + 0.0)  # one zero only


def _draw(shard: Shard, hashes: WordArray, most: int) -> _Drawn:
    """Each record once, and of many those of smallest hash, in the order of their hashes.

    Who is drawn does not depend on chunks, their order or repeats.
    """
    drawn, first = np.unique(hashes, return_index=True)
    return _Drawn(_take(shard, first[:most]), drawn[:most])


def _take(shard: Shard, rows: npt.NDArray[np.intp]) -> Shard:
    """Some rows of what adversaries are given."""
    released = shard.released[rows] if len(shard.released) else shard.released
    return Shard(
        features=shard.features[rows],
        confidential=shard.confidential[rows],
        attributes=shard.attributes[rows],
        released=released,
        first_record=-1,
    )


def _join(left: _Drawn, right: _Drawn) -> _Drawn:
    one, other = left.shard, right.shard
    shard = Shard(
        features=np.concatenate([one.features, other.features]),
        confidential=np.concatenate([one.confidential, other.confidential]),
        attributes=np.concatenate([one.attributes, other.attributes]),
        released=np.concatenate([one.released, other.released]),
        first_record=-1,
    )
    return _Drawn(shard, np.concatenate([left.hashes, right.hashes]))
