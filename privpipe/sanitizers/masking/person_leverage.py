"""How much of any direction one person holds: all records of a subject, or equal ones, together.

Persons are too many to be counted one by one. The sum of all leverages is the number of
dimensions, so few hold much: a mergeable summary of the heaviest (Misra and Gries 1982; Agarwal et
al. 2012, Mergeable Summaries) finds them in one pass, with an error that it knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import FloatArray, Shard, WordArray

COUNTERS_PER_DIMENSION = 200
"""Persons remembered per dimension: what is forgotten is at most a two-hundredth in all."""


@dataclass(frozen=True, eq=False)
class PersonLeverage:
    """The persons that hold most of the features, and of each response.

    Parameters
    ----------
    words : (n,)
        Keyed names of persons and what is measured of them; no value of a record.
    shares : (n,)
        What each holds, too little by `lost` at most.
    lost
    single
        Largest share of a direction of the features that one record holds.
    capacity
        Counters that are kept.
    """

    words: WordArray
    shares: FloatArray
    lost: float
    single: float
    capacity: int

    @property
    def largest(self) -> float:
        """Upper bound of what any one person holds of a direction, or of a response."""
        return float(self.shares.max(initial=0.0)) + self.lost

    def merge(self, other: PersonLeverage) -> PersonLeverage:
        """Of the records of both."""
        return _summarise(
            np.concatenate([self.words, other.words]),
            np.concatenate([self.shares, other.shares]),
            self.lost + other.lost,
            max(self.single, other.single),
            self.capacity,
        )


def measure_person_leverage(
    shard: Shard, leverage: FloatArray, responses: FloatArray, key: int
) -> PersonLeverage:
    """What each person of a shard holds.

    Parameters
    ----------
    shard
        With groups, where persons are known by a variable; else equal features are one person.
    leverage : (n_records, rank)
        Coordinates of the features whose squares sum to the leverage.
    responses : (n_records, n_responses)
        Coordinates of each response, whose squares sum to one over all records.
    key
        Of this fit, by which persons are named.
    """
    held = np.column_stack([np.sum(leverage**2, axis=1), np.nan_to_num(responses) ** 2])
    persons = (
        shard.groups.astype(np.int64).view(np.uint64)
        if len(shard.groups)
        else identify_records(np.asarray(shard.features, np.float64))
    )
    n_columns = np.uint64(held.shape[1])
    columns = np.arange(held.shape[1], dtype=np.uint64)
    words: WordArray = (persons ^ np.uint64(key))[:, None] * n_columns + columns
    capacity = COUNTERS_PER_DIMENSION * (leverage.shape[1] + responses.shape[1])
    single = float(held[:, 0].max(initial=0.0))
    return _summarise(words.ravel(), held.ravel(), 0.0, single, capacity)


def _summarise(
    words: WordArray, shares: FloatArray, lost: float, single: float, capacity: int
) -> PersonLeverage:
    """Sum the shares of equal words; of too many, take what the next one has from all."""
    names: WordArray
    names, owner = np.unique(words, return_inverse=True)
    sums: FloatArray = np.bincount(owner, weights=shares, minlength=len(names)).astype(float)
    if len(sums) > capacity:
        cut = float(np.partition(sums, len(sums) - capacity - 1)[len(sums) - capacity - 1])
        sums, lost = sums - cut, lost + cut
    kept = sums > 0
    return PersonLeverage(names[kept], sums[kept], lost, single, capacity)
