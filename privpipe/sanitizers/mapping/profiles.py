"""Counts of profiles and private values over records: what a privacy mapping is fitted on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from privpipe.errors import InputError
from privpipe.protocols import FloatArray, IntArray, Shard

# The same for all records: a split hides nothing.
_SPLIT_KEYS = {"held_out": 0x5BB9, "halves": 0x5BBA}


@dataclass(frozen=True, eq=False)
class ProfileCounts:
    """A sparse histogram of (profile, private values), mergeable over shards.

    Parameters
    ----------
    keys : (n_cells, n_attributes + n_private_variables)
        Attribute codes and codes of the private variables; rows sorted, each once.
    counts : (n_cells,)
        Records of each.
    n_attributes
    n_left_out
        Records whose private value is missing.
    """

    keys: IntArray
    counts: IntArray
    n_attributes: int
    n_left_out: int

    @classmethod
    def of(cls, shard: Shard) -> ProfileCounts:
        """Count a shard.

        Raises
        ------
        InputError
            If a private variable is not categorical.
        """
        private = shard.confidential
        known = np.isfinite(private).all(axis=1)
        codes = private[known]
        if (codes % 1 != 0).any():
            raise InputError(
                "a private variable is not categorical.",
                remedy="Name a categorical variable, or cut a numeric one into classes.",
            )
        table = np.concatenate(
            [shard.attributes[known].astype(np.int64), codes.astype(np.int64)], axis=1
        )
        keys, counts = np.unique(table, axis=0, return_counts=True)
        width = int(shard.attributes.shape[1])
        return cls(keys, counts.astype(np.int64), width, int((~known).sum()))

    def merge(self, other: ProfileCounts) -> ProfileCounts:
        """Counts of the records of both."""
        table = np.concatenate([self.keys, other.keys])
        keys, inverse = np.unique(table, axis=0, return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        np.add.at(counts, inverse.ravel(), np.concatenate([self.counts, other.counts]))
        return ProfileCounts(keys, counts, self.n_attributes, self.n_left_out + other.n_left_out)

    @property
    def n_records(self) -> int:
        return int(self.counts.sum())


def split_counts(
    counts: ProfileCounts, share: float, purpose: Literal["held_out", "halves"] = "held_out"
) -> tuple[ProfileCounts, ProfileCounts]:
    """Counts of records to fit on, and of records held out, independent of one another.

    Each record is held out by a draw of its own, which does not depend on what it is: a cell loses
    a binomial number. So the split needs no second pass, and is the same for every order and
    every cut of the records into shards.

    Parameters
    ----------
    counts
    share
        Of the records that are held out; none at 0.
    purpose
        Two splits after one another draw apart, or the second would know the first.
    """
    # Thinning a multinomial: the two histograms are independent given how many are in each.
    rng = np.random.Generator(np.random.Philox(key=_SPLIT_KEYS[purpose]))
    out = rng.binomial(counts.counts, share).astype(np.int64)
    return _select_cells(counts, counts.counts - out), _select_cells(counts, out)


def _select_cells(counts: ProfileCounts, left: IntArray) -> ProfileCounts:
    used = left > 0
    return replace(counts, keys=counts.keys[used], counts=left[used])


def make_joint(
    counts: ProfileCounts, private: IntArray | None = None
) -> tuple[FloatArray, IntArray, IntArray]:
    """Dense counts of private values by symbols.

    Several private variables become one: their combinations that occur, in sorted order.

    Parameters
    ----------
    counts
    private : (n_private, n_private_variables), optional
        The private values to count, in sorted order, those that occur among them.

    Returns
    -------
    table : (n_private, n_symbols)
        Records of each private value and symbol.
    codes : (n_symbols, n_attributes)
        Symbols in sorted order.
    private : (n_private, n_private_variables)
        Codes of the private variables of each private value.
    """
    codes, symbol = np.unique(counts.keys[:, : counts.n_attributes], axis=0, return_inverse=True)
    private, value = number_private(counts, private)
    table = np.zeros((len(private), len(codes)))
    np.add.at(table, (value, symbol.ravel()), counts.counts)
    return table, codes, private


def number_private(
    counts: ProfileCounts, private: IntArray | None = None
) -> tuple[IntArray, IntArray]:
    """The private values that occur, or those given, and which of them each cell has."""
    found = counts.keys[:, counts.n_attributes :]
    given = found[:0] if private is None else private
    values, place = np.unique(np.concatenate([given, found]), axis=0, return_inverse=True)
    return values, place.ravel()[len(given) :]
