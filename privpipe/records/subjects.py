"""Records of one subject: how many there are at most, and which of them are too many.

A person with several records loses a privacy budget once for each; the promise for persons rests
on the largest number. What is kept is a count per subject, never a table of records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privpipe.protocols import BoolArray, IntArray


def identify_subjects(values: npt.NDArray[np.generic]) -> IntArray:
    """A whole number per record, equal where the subject is: codes, or the bits of a number."""
    if np.issubdtype(values.dtype, np.floating):
        return (values.astype(np.float64) + 0.0).view(np.int64)  # -0.0 and 0.0 are one
    return values.astype(np.int64)


@dataclass(frozen=True, eq=False)
class SubjectCounts:
    """How many records of every subject were met so far.

    Parameters
    ----------
    subjects : (n_subjects,), int64
        In ascending order.
    counts : (n_subjects,), int64

    Examples
    --------
    >>> seen, rest = SubjectCounts.of_none().take(np.array([4, 7, 4, 4]), most=2)
    >>> seen.largest, rest
    (3, array([False, False, False,  True]))
    """

    subjects: IntArray
    counts: IntArray

    @classmethod
    def of_none(cls) -> SubjectCounts:
        """Before the first record."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def largest(self) -> int:
        """Most records of one subject; 0 of none."""
        return int(self.counts.max(initial=0))

    def take(self, found: IntArray, most: int | None) -> tuple[SubjectCounts, BoolArray]:
        """Counts with some more records, and which of these are beyond `most` of their subject.

        Parameters
        ----------
        found : (n_records,)
            Subjects, in the order of the records.
        most
            None: as many as there are.
        """
        own, place, counts = np.unique(found, return_inverse=True, return_counts=True)
        order = np.argsort(place, kind="stable")
        starts = np.cumsum(counts) - counts
        rank = np.empty(len(found), np.int64)
        rank[order] = np.arange(len(found)) - np.repeat(starts, counts)
        before = self._find(own)
        rest = np.zeros(len(found), np.bool_) if most is None else rank + before[place] >= most
        return self._add(own, counts), rest

    def _find(self, subjects: IntArray) -> IntArray:
        """Records met so far of some subjects."""
        if not len(self.subjects):
            return np.zeros(len(subjects), np.int64)
        at = np.minimum(np.searchsorted(self.subjects, subjects), len(self.subjects) - 1)
        return np.where(self.subjects[at] == subjects, self.counts[at], 0)

    def _add(self, subjects: IntArray, counts: IntArray) -> SubjectCounts:
        both, place = np.unique(np.concatenate([self.subjects, subjects]), return_inverse=True)
        total = np.zeros(len(both), np.int64)
        np.add.at(total, place, np.concatenate([self.counts, counts]))
        return SubjectCounts(both, total)
