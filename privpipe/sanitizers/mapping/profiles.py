"""What a privacy mapping is fitted on: counts of profiles and private values over records, and ways
to smooth them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import gammaincc

from privpipe.errors import InputError
from privpipe.numerics.kinds import find_distinct_rows
from privpipe.protocols import FloatArray, IntArray, Shard

SmoothingKind = Literal["none", "dirichlet", "hierarchical"]

# What is chosen among beside none, and of how many records per profile.
SMOOTHINGS: tuple[SmoothingKind, ...] = ("dirichlet", "hierarchical")
PSEUDO_RECORDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
# Of the records, to judge by; the key is the same for all, since the split hides nothing.
_LEFT_ASIDE = 0.2
_KEY = 0x5A00
# The same for all records: a split hides nothing.
_SPLIT_KEY = 0x5BB9


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
    def of(cls, shard: Shard, middle: int = 0) -> ProfileCounts:
        """Count a shard.

        Parameters
        ----------
        shard
        middle
            From this record on the first attribute, which comes before the others, is 1 and not
            0; see `find_change`. Without it there is none.

        Raises
        ------
        InputError
            If a private variable is not categorical.
        """
        private = shard.confidential
        known = np.isfinite(private).all(axis=1)
        if (private[known] % 1 != 0).any():
            remedy = "Name a categorical variable, or cut a numeric one into classes."
            raise InputError("a private variable is not categorical.", remedy=remedy)
        first = max(shard.first_record, ~shard.first_record)
        later = (first + np.arange(len(shard.attributes)) >= middle)[:, None][:, : int(middle > 0)]
        columns = [part[known].astype(np.int64) for part in (later, shard.attributes, private)]
        keys, places = find_distinct_rows(np.concatenate(columns, axis=1))
        width = later.shape[1] + int(shard.attributes.shape[1])
        return cls(keys, np.bincount(places), width, int((~known).sum()))

    def merge(self, other: ProfileCounts) -> ProfileCounts:
        """Counts of the records of both."""
        left_out = self.n_left_out + other.n_left_out
        both = np.concatenate([self.keys, other.keys]), np.concatenate([self.counts, other.counts])
        return ProfileCounts(*_add_cells(*both), self.n_attributes, left_out)

    def select_variable(self, variable: int) -> ProfileCounts:
        """Counts by profile and one of the private variables."""
        columns = [*range(self.n_attributes), self.n_attributes + variable]
        keys, counts = _add_cells(self.keys[:, columns], self.counts)
        return replace(self, keys=keys, counts=counts)

    def without(self, attributes: int | slice) -> ProfileCounts:
        """Counts without some attributes."""
        gone = np.arange(self.n_attributes)[attributes]
        keys, counts = _add_cells(np.delete(self.keys, gone, axis=1), self.counts)
        return ProfileCounts(keys, counts, self.n_attributes - np.size(gone), self.n_left_out)

    def select_value(self, value: int) -> ProfileCounts:
        """Counts of records that have this value of the last attribute, without it."""
        here = self.keys[:, self.n_attributes - 1] == value
        return _select_cells(self, self.counts * here).without(-1)

    @property
    def n_records(self) -> int:
        return int(self.counts.sum())


def _add_cells(keys: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Each key once, and the records of all that are equal."""
    found, place = find_distinct_rows(keys)
    summed = np.zeros(len(found), np.int64)
    np.add.at(summed, place, counts)
    return found, summed


def add_rows(joint: FloatArray, values: IntArray) -> tuple[IntArray, FloatArray]:
    """Values of one variable, sorted, and the joint of each: the sum of the rows that have it."""
    found, place = np.unique(values, return_inverse=True)
    summed = np.zeros((len(found), joint.shape[1]))
    np.add.at(summed, place.ravel(), joint)
    return found, summed


def find_change(halves: ProfileCounts) -> tuple[float, int]:
    """Whether the first and the later records may be draws of one law.

    Pearson's statistic for all cells, for the private variables, and for each attribute with them,
    on two columns. Given the sums of the table its mean is exact. A gamma law has its mean and
    variance, because most cells are rare.

    Parameters
    ----------
    halves
        The first attribute says which half; see `ProfileCounts.of`.

    Returns
    -------
    chance
        That one law differs as much in any of these tables; at most 1 (Bonferroni).
    table
        Which of these changed most, from 0, in this order.
    """
    keys, attributes = halves.keys[:, 1:], range(halves.n_attributes - 1)
    private = [*range(halves.n_attributes - 1, keys.shape[1])]
    tables = [[*attributes, *private], private, *([k, *private] for k in attributes)]
    later = halves.counts * halves.keys[:, 0]
    found = []
    for columns in tables:
        place = find_distinct_rows(keys[:, columns])[1]
        total, late = (np.bincount(place, each) for each in (halves.counts, later))
        found.append(_compare_halves(total, late))
    return min(1.0, len(tables) * min(found)), int(np.argmin(found))


def _compare_halves(total: IntArray, late: IntArray) -> float:
    """The chance that a random part of so many records differs as much from the rest."""
    n = total.sum()
    share = late.sum() / max(n, 1)
    if len(total) < 2 or not (spread := share * (1 - share)):
        return 1.0
    mean = n / (n - 1) * (len(total) - 1)
    # Fourth moments of binomial draws; a table of two cells shows that the sum lacks one cell.
    variance = (2 + (1 - 6 * spread) / (total * spread)).sum() * (len(total) - 1) / len(total)
    statistic = ((late - share * total) ** 2 / (total * spread)).sum()
    # Cells of single records and equal halves: the statistic has one value, and shows nothing.
    scale = max(variance, 1e-9 * mean) / mean
    return float(gammaincc(mean / scale, statistic / scale))


def split_counts(counts: ProfileCounts, share: float) -> tuple[ProfileCounts, ProfileCounts]:
    """Counts of records to fit on, and of records held out, independent of one another.

    Each record is held out by a draw of its own, which does not depend on what it is: a cell loses
    a binomial number. So the split needs no second pass, and is the same for every order and
    every cut of the records into shards.

    Parameters
    ----------
    counts
    share
        Of the records that are held out; none at 0.
    """
    # Thinning a multinomial: the two histograms are independent given how many are in each.
    rng = np.random.Generator(np.random.Philox(key=_SPLIT_KEY))
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
    codes, symbol = find_distinct_rows(counts.keys[:, : counts.n_attributes])
    private, value = number_private(counts, private)
    table = np.zeros((len(private), len(codes)))
    np.add.at(table, (value, symbol), counts.counts)
    return table, codes, private


def number_private(
    counts: ProfileCounts, private: IntArray | None = None
) -> tuple[IntArray, IntArray]:
    """The private values that occur, or those given, and which of them each cell has."""
    found = counts.keys[:, counts.n_attributes :]
    given = found[:0] if private is None else private
    values, place = np.unique(np.concatenate([given, found]), axis=0, return_inverse=True)
    return values, place.ravel()[len(given) :]


@dataclass(frozen=True)
class Smoothing:
    """A way to smooth.

    Parameters
    ----------
    kind
    pseudo_records
        Per profile; 0 for "none".
    """

    kind: SmoothingKind
    pseudo_records: float


def smooth_table(table: FloatArray, codes: IntArray, smoothing: Smoothing) -> FloatArray:
    """Counts with the same number of records per profile and smoothed posteriors.

    Parameters
    ----------
    table : (n_private, n_symbols)
        Records of each private value and symbol.
    codes : (n_symbols, n_attributes)
    smoothing

    Returns
    -------
    table : (n_private, n_symbols)
    """
    if smoothing.kind == "none" or smoothing.pseudo_records == 0:
        return table
    size, records = smoothing.pseudo_records, table.sum(axis=0)
    expected = np.repeat(table.sum(axis=1, keepdims=True) / table.sum(), len(codes), axis=1)
    if smoothing.kind == "hierarchical":
        expected = _expect_from_neighbours(table, codes, expected, size)
    return np.asarray((table + size * expected) * (records / (records + size)))


def _expect_from_neighbours(
    table: FloatArray, codes: IntArray, prior: FloatArray, size: float
) -> FloatArray:
    """Posteriors of the profiles that agree in all attributes but one; (n_private, n_symbols)."""
    used = prior[:, 0] > 0
    total = np.zeros((int(used.sum()), len(codes)))
    for k in range(codes.shape[1]):
        _, group = np.unique(np.delete(codes, k, axis=1), axis=0, return_inverse=True)
        group = group.ravel()
        pooled = np.stack([np.bincount(group, row)[group] for row in table[used]])
        total += np.log((pooled + size * prior[used]) / (pooled.sum(axis=0) + size))
    found = np.zeros(table.shape)
    shares = np.exp(total / codes.shape[1])
    found[used] = shares / shares.sum(axis=0)
    return found


def choose_smoothing(table: FloatArray, codes: IntArray) -> Smoothing:
    """The smoothing under which counts left aside are the most likely; of equals the first.

    Parameters
    ----------
    table : (n_private, n_symbols)
        Whole numbers of records.
    codes : (n_symbols, n_attributes)
    """
    rng = np.random.Generator(np.random.Philox(key=_KEY))
    aside = rng.binomial(np.rint(table).astype(np.int64), _LEFT_ASIDE)
    rest = table - aside
    known = rest.sum(axis=0) > 0
    ways = [Smoothing("none", 0.0), *(Smoothing(k, n) for k in SMOOTHINGS for n in PSEUDO_RECORDS)]
    if not known.any() or not aside[:, known].sum():  # nothing to choose by
        return ways[-1]
    return max(ways, key=lambda way: _score(rest, aside, codes, known, way))


def _score(
    rest: FloatArray, aside: IntArray, codes: IntArray, known: IntArray, way: Smoothing
) -> float:
    """Mean log-likelihood of the private values left aside, given profiles that were seen."""
    smooth = smooth_table(rest[:, known], codes[known], way)
    seen = aside[:, known]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smooth / smooth.sum(axis=0))
        return float(np.where(seen > 0, seen * logs, 0.0).sum() / seen.sum())
