"""What records lack of labels, and which variables tell one another: from labels alone.

Two variables tell one another where each value of one comes with one value of the other. What is
kept of a pair is the least and the largest partner of each value, never a table of records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privpipe.protocols import BoolArray, FloatArray, IntArray

MOST_VALUES = 1 << 16
"""Different values of a variable beyond which nothing is said of what it tells."""

Labels = Mapping[str, FloatArray]
"""Values by variable, (n_records,) each, NaN where missing."""


@dataclass(frozen=True, eq=False)
class Partners:
    """With which values of one variable those of another come.

    Parameters
    ----------
    values : (n_values,)
        Different values of the first, ascending; empty once there were too many.
    counts : (n_values,)
        Records of each that have both.
    least, most : (n_values,)
        Smallest and largest value of the second beside each.
    is_known
        Whether these are all values.
    """

    values: npt.NDArray[np.generic]
    counts: IntArray
    least: FloatArray
    most: FloatArray
    is_known: bool = True

    @classmethod
    def of(
        cls, first: npt.NDArray[np.generic], second: FloatArray, limit: int = MOST_VALUES
    ) -> Partners:
        """Partners of records that have both.

        Parameters
        ----------
        first : (n_records,)
            Numbers or whole numbers.
        second : (n_records,)
        limit
            Most different values of the first.
        """
        values, place, counts = np.unique(first, return_inverse=True, return_counts=True)
        least, most = np.full(len(values), np.inf), np.full(len(values), -np.inf)
        np.minimum.at(least, place, second)
        np.maximum.at(most, place, second)
        return cls(values, counts, least, most)._within(limit)

    def merge(self, other: Partners, limit: int = MOST_VALUES) -> Partners:
        """Partners in the records of both."""
        if not (self.is_known and other.is_known):
            return self if not self.is_known else other
        values = np.union1d(self.values, other.values)
        counts = np.zeros(len(values), np.int64)
        least, most = np.full(len(values), np.inf), np.full(len(values), -np.inf)
        for part in (self, other):
            at = np.searchsorted(values, part.values)
            counts[at] += part.counts
            least[at] = np.minimum(least[at], part.least)
            most[at] = np.maximum(most[at], part.most)
        return Partners(values, counts, least, most)._within(limit)

    def _within(self, limit: int) -> Partners:
        if len(self.values) <= limit:
            return self
        return Partners(self.values[:0], self.counts[:0], self.least[:0], self.most[:0], False)

    @property
    def tells(self) -> bool:
        """Whether each value of the first comes with one value of the second.

        Not where that is no wonder: values of the first that hardly occur twice, or one and the
        same value of the second.

        >>> Partners.of(np.array([0, 1, 2] * 4), np.array([5.0, 6.0, 5.0] * 4)).tells
        True
        >>> Partners.of(np.arange(12), np.arange(12) % 2.0).tells
        False
        """
        n_records = int(self.counts.sum())
        return (
            n_records >= 2 * len(self.values) > 0
            and bool((self.least == self.most).all())
            and bool(self.least.min() < self.most.max())
        )


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """Labels of some records.

    Parameters
    ----------
    n_records
    missing
        Records without a value, by variable.
    classes
        Which codes occur, by categorical variable.
    complete
        Records that have all variables of a set, by set.
    pairs
        Partners by pair of variables.
    """

    n_records: int
    missing: Mapping[str, int]
    classes: Mapping[str, BoolArray]
    complete: Mapping[frozenset[str], int]
    pairs: Mapping[tuple[str, str], Partners]

    @classmethod
    def of(
        cls,
        labels: Labels,
        n_records: int,
        *,
        n_categories: Mapping[str, int],
        sets: Sequence[frozenset[str]] = (),
        pairs: Sequence[tuple[str, str]] = (),
    ) -> LabelCounts:
        """Count some records.

        Parameters
        ----------
        labels, n_records
        n_categories
            Of categorical variables.
        sets
            Variables that a fit needs together.
        pairs
            Variables of which the first may tell the second.
        """
        known = {name: np.isfinite(values) for name, values in labels.items()}
        return cls(
            n_records,
            {name: int(n_records - there.sum()) for name, there in known.items()},
            {
                name: np.bincount(labels[name][known[name]].astype(np.int64), minlength=k) > 0
                for name, k in n_categories.items()
            },
            {one: _count_all([known[name] for name in one], n_records) for one in sets},
            {
                (a, b): Partners.of(labels[a][both], labels[b][both])
                for a, b in pairs
                for both in [known[a] & known[b]]
            },
        )

    def merge(self, other: LabelCounts) -> LabelCounts:
        """Counts of the records of both."""
        return LabelCounts(
            self.n_records + other.n_records,
            {name: n + other.missing[name] for name, n in self.missing.items()},
            {name: seen | other.classes[name] for name, seen in self.classes.items()},
            {one: n + other.complete[one] for one, n in self.complete.items()},
            {pair: found.merge(other.pairs[pair]) for pair, found in self.pairs.items()},
        )


def _count_all(known: Sequence[BoolArray], n_records: int) -> int:
    """Records that have all of some variables."""
    there = np.ones(n_records, np.bool_)
    for one in known:
        there &= one
    return int(there.sum())
