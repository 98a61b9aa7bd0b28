"""Shards of bounded or noisy records, for a filter that sees nothing else.

The noise of training is never released: its words come from the records themselves, so that it is
the same in any shards, and from no key. The records are public; it protects nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from privpipe.numerics.identity.record_hash import digest_records
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.protocols import (
    IntArray,
    Oracle,
    Shard,
    Shards,
    ShardSchema,
    Statistics,
    Sums,
    WordArray,
)
from privpipe.sanitizers.noise.noisy_filter import NoisyFilter

S = TypeVar("S", bound=Statistics)

_BLOCK = 1 << 12
"""Records whose words are made at once."""


@dataclass(frozen=True, eq=False)
class NoisyShards:
    """Shards whose features are what a noisy filter makes of them.

    Parameters
    ----------
    inner
        The records themselves.
    noisy
        Bounds and adds noise; what follows the noise is left out.
    with_noise
        False: bounded records without noise.
    """

    inner: Shards
    noisy: NoisyFilter
    with_noise: bool = True

    @property
    def n_records(self) -> int:
        return self.inner.n_records

    @property
    def schema(self) -> ShardSchema:
        """Of what the noise makes: features without names."""
        return replace(self.inner.schema, n_features=self.noisy.n_bounded, feature_names=())

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """See `Shards.reduce`."""
        return self.inner.reduce(
            partial(
                summarise_noisy,
                summarise=summarise,
                noisy=self.noisy,
                with_noise=self.with_noise,
            )
        )

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """See `Shards.oracle`; the same noise in every round."""
        return self.inner.oracle(
            ask_noisy,
            _function=function,
            _noisy=self.noisy,
            _with_noise=self.with_noise,
            **resident,
        )


def summarise_noisy(
    shard: Shard, *, summarise: Callable[[Shard], S], noisy: NoisyFilter, with_noise: bool
) -> S:
    """Worker side: a summary of noisy records."""
    return summarise(_make_noisy(shard, noisy, with_noise))


def ask_noisy(
    shard: Shard,
    parameters: Any,
    *,
    _function: Callable[..., Sums],
    _noisy: NoisyFilter,
    _with_noise: bool,
    **resident: Any,
) -> Sums:
    """Worker side: an answer about noisy records."""
    return _function(_make_noisy(shard, _noisy, _with_noise), parameters, **resident)


def _make_noisy(shard: Shard, noisy: NoisyFilter, with_noise: bool) -> Shard:
    features, _ = noisy.bound_features(np.asarray(shard.features, np.float64))
    if with_noise:
        parts = [
            noisy.mechanism.release(features[rows], RecordWords(digest_records(found)))
            for rows, found in _blocks(shard)
        ]
        features = np.concatenate(parts) if parts else features
    return replace(shard, features=features)


def _blocks(shard: Shard) -> list[tuple[slice, Any]]:
    x = np.asarray(shard.features, np.float64)
    edges = range(0, len(x), _BLOCK)
    return [(slice(at, at + _BLOCK), x[at : at + _BLOCK]) for at in edges]


class RecordWords:
    """A stream whose words belong to the content of a record, whatever stands before it.

    Parameters
    ----------
    digests : (n_records,), uint64
    """

    def __init__(self, digests: WordArray) -> None:
        self._places = (digests >> np.uint64(1)).astype(np.int64)
        self._stream = KeyedStream(
            bytes(KEY_BYTES), partition="training", first_record=0, n_records=2**63 - 1
        )

    @property
    def n_records(self) -> int:
        return len(self._places)

    def words(self, purpose: str, words_per_record: int) -> WordArray:
        """Uniform 64-bit words, shape (n_records, words_per_record)."""
        return self.words_at(purpose, words_per_record, np.arange(self.n_records))

    def tiles(self, purpose: str, words_per_record: int) -> Any:
        """The same in one tile."""
        yield slice(0, self.n_records), self.words(purpose, words_per_record)

    def words_at(
        self,
        purpose: str,
        words_per_record: int,
        records: IntArray,
        places: IntArray | None = None,
    ) -> WordArray:
        """Words of some records; see `RecordStream`."""
        found = np.minimum(self._places[records], 2**63 - 2)
        return self._stream.words_at(purpose, words_per_record, found, places)
