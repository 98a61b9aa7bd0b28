"""What public records tell of a bound: their mean, and quantiles of their norms, in two passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.numerics.noise.bounding import measure_norms
from privpipe.protocols import FloatArray, IntArray, Shard
from privpipe.sanitizers.noise.noisy_filter import NoisyFilter

_PER_OCTAVE = 64
_LOWEST, _HIGHEST = -128, 128
"""Powers of two between which norms are told apart, 1.1 % from one to the next."""


@dataclass(frozen=True, eq=False)
class FilteredMean:
    """Sum of filtered records.

    Parameters
    ----------
    n_records
        How many.
    total : (n_filtered,)
    """

    n_records: int
    total: FloatArray

    @classmethod
    def of(cls, shard: Shard, noisy: NoisyFilter) -> FilteredMean:
        """Of what `noisy` filters, with its shift."""
        filtered = noisy.filter_features(np.asarray(shard.features, np.float64))
        return cls(len(filtered), filtered.sum(axis=0))

    def merge(self, other: FilteredMean) -> FilteredMean:
        """Of the records of both."""
        return FilteredMean(self.n_records + other.n_records, self.total + other.total)

    @property
    def mean(self) -> FloatArray:
        """(n_filtered,); zeros of no records."""
        found: FloatArray = self.total / max(self.n_records, 1)
        return found


@dataclass(frozen=True, eq=False)
class NormCounts:
    """How many filtered records have a norm of each size.

    Parameters
    ----------
    counts : (n_sizes,)
        By the logarithm, in 64 steps an octave; the first are zeros.
    """

    counts: IntArray

    @classmethod
    def of(cls, shard: Shard, noisy: NoisyFilter) -> NormCounts:
        """Of what `noisy` filters and centres."""
        filtered = noisy.filter_features(np.asarray(shard.features, np.float64))
        norms = measure_norms(filtered, noisy.norm)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.ceil((np.log2(norms) - _LOWEST) * _PER_OCTAVE)
        size = (_HIGHEST - _LOWEST) * _PER_OCTAVE
        places = np.clip(np.nan_to_num(steps, nan=size, posinf=size, neginf=0), 0, size)
        return cls(np.bincount(places.astype(np.int64), minlength=size + 1))

    def merge(self, other: NormCounts) -> NormCounts:
        """Of the records of both."""
        return NormCounts(self.counts + other.counts)

    def quantile(self, share: float) -> float:
        """A norm that this share of the records do not exceed, at most 1.1 % too large."""
        reached = np.cumsum(self.counts) >= share * self.counts.sum()
        return float(2.0 ** (np.argmax(reached) / _PER_OCTAVE + _LOWEST))


NORM_STATISTICS = (FilteredMean, NormCounts)
"""Sums that a fit of a noisy filter may checkpoint."""
