"""A stored map on the worker that uses it, and what it makes of a shard where that is read.

Audits of training data see what the map makes of records that were never released.
"""

import secrets
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from privpipe import protocols
from privpipe.capabilities import Reconstructs, RunsCode
from privpipe.errors import FormatError
from privpipe.fitted_names import schema_of
from privpipe.fitted_schema import NamedCodes, check_numbered_alike
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.protocols import AnyArray, Shard, ShardSchema
from privpipe.records.schema import expand_indicators
from privpipe.store.models import digest_map, open_model


@dataclass(frozen=True)
class StoredMap:
    """A fitted map as workers find it.

    Parameters
    ----------
    url, digest
        Of its artifact.
    """

    url: str
    digest: str


def clean_shard(shard: Shard, *, model: StoredMap, schema: ShardSchema) -> Shard:
    """Worker side: a shard whose `released` is what a stored map makes of its features."""
    return replace(shard, released=release_shard(shard, model, schema))


def release_shard(shard: Shard, model: StoredMap, schema: ShardSchema) -> AnyArray:
    """Worker side: what a stored map makes of a shard; see `release_by`."""
    return release_by(load_map(model.url, model.digest), shard, schema)


def release_by(fitted: protocols.RecordMap, shard: Shard, schema: ShardSchema) -> AnyArray:
    """What a map makes of a shard, codes as indicators.

    Draws are fresh: nothing of it is published.

    Raises
    ------
    InputError
        If the shards of that schema are not numbered as the map's records were.
    """
    # Codes are numbers of categories: numbered otherwise they would be released as others.
    if (known := schema_of(fitted)) is not None:
        check_numbered_alike(known, schema)
    n, stream = shard.n_records, None
    if fitted.draws:
        key = secrets.token_bytes(KEY_BYTES)
        stream = KeyedStream(key, partition="audit", first_record=0, n_records=n)
    if fitted.reads == "features":
        return release_records(fitted, shard.features, stream)
    named = NamedCodes(shard.attributes, schema.attributes)
    return expand_indicators(fitted.apply(named, stream), schema.attributes)


def release_records(
    fitted: protocols.RecordMap, x: AnyArray, stream: protocols.RecordStream | None = None
) -> AnyArray:
    """Records as a reader of the release will see them, whatever its layout."""
    released = fitted.apply(x, stream)
    return fitted.reconstruct(released) if isinstance(fitted, Reconstructs) else released


@lru_cache(maxsize=4)
def load_map(url: str, digest: str) -> protocols.RecordMap:
    """Worker side: open a model once per process, and only the one that was fitted."""
    fitted = open_model(url)
    if digest_map(fitted) != digest:
        problem = "The stored model is not the one of this run."
        raise FormatError(problem, remedy="Do not change a run's workspace while it works.")
    trust_code(fitted)  # the digest covers the code, and the driver read the code from its file
    return fitted


def trust_code(fitted: Any) -> None:
    """Let code of the user's run in this process, of a map or of one within it."""
    if isinstance(fitted, RunsCode):
        fitted.trust()
    elif isinstance(fitted, tuple):
        for part in fitted:
            trust_code(part)
    elif is_dataclass(fitted):
        for item in fields(fitted):
            trust_code(getattr(fitted, item.name))
