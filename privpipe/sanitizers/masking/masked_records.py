"""Surrogates as a value, and drawing them from records in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from privpipe.described import described
from privpipe.errors import InputError
from privpipe.protocols import (
    FloatArray,
    Guarantee,
    IntArray,
    RecordStream,
    Shard,
    Shards,
    ShardSchema,
)
from privpipe.sanitizers.masking.masking_model import MaskingModel, SignedSums


def _facts(made: MaskedRecords) -> dict[str, str]:
    return {
        "surrogates": f"{len(made.features):,}",
        "features": f"{made.features.shape[1]:,}",
        "responses": ", ".join(made.response_names),
        "promise": f"{made.guarantee.kind}, {made.guarantee.scope}",
    }


@described(_facts)
@dataclass(frozen=True, eq=False)
class MaskedRecords:
    """Surrogate records: with a count of their own, and none is a person's.

    Parameters
    ----------
    features : (n_surrogates, n_features + 1)
        The last is the bias feature: regress without an intercept of your own.
    responses : (n_surrogates, n_responses)
        ``features @ coefficients``: they hold the model and no residual.
    feature_names, response_names
    guarantee
        What is promised, and what is not.
    """

    features: FloatArray
    responses: FloatArray
    feature_names: tuple[str, ...]
    response_names: tuple[str, ...]
    guarantee: Guarantee


def draw_masked_records(model: MaskingModel, shards: Shards, stream: RecordStream) -> MaskedRecords:
    """Draw the surrogates of records in memory.

    Parameters
    ----------
    model
        Fitted to the same records.
    shards
        They, with the desired variables.
    stream
        Words of all of them, of a key that is destroyed afterwards: whoever has it solves for the
        records.

    Raises
    ------
    InputError
        If the stream is of another number of records, or a record is unlike those of the fit.

    Examples
    --------
    >>> from privpipe.numerics.random.streams import KeyedStream
    >>> from privpipe.records.memory import Records
    >>> from privpipe.sanitizers.masking.surrogates import MaskingOptions, fit_masking
    >>> x = np.random.default_rng(0).normal(size=(400, 3))
    >>> records = Records(x, desired=x @ [1.0, 2.0, 0.0])
    >>> model = fit_masking(records, MaskingOptions(n_surrogates=90))
    >>> stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=400)
    >>> made = draw_masked_records(model, records, stream)
    >>> made.features.shape, made.response_names
    ((90, 4), ('desired_0',))
    """
    if stream.n_records != shards.n_records:
        raise InputError(
            f"The stream is of {stream.n_records} records, not of {shards.n_records}.",
            remedy="Give a stream of all records.",
        )
    parts = []
    for tile in range(model.n_tiles):
        summarise = partial(_sum_shard, model=model, schema=shards.schema, stream=stream, tile=tile)
        parts.append(model.finish_records(shards.reduce(summarise)))
    return MaskedRecords(
        np.concatenate([features for features, _ in parts]),
        np.concatenate([responses for _, responses in parts]),
        model.feature_names,
        model.response_names,
        model.guarantee,
    )


def _sum_shard(
    shard: Shard, *, model: MaskingModel, schema: ShardSchema, stream: RecordStream, tile: int
) -> SignedSums:
    """Sums of a shard with the words of its records."""
    places: IntArray = np.arange(shard.first_record, shard.first_record + shard.n_records)
    return model.sum_records(shard, schema, stream, places, tile)
