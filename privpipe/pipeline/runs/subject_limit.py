"""Several records of one subject: counted, the rest withheld, the promise multiplied."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from privpipe.errors import OptionError
from privpipe.pipeline.runs.run import Run
from privpipe.protocols import BoolArray, Guarantee, IntArray
from privpipe.store.access.location import join
from privpipe.store.access.objects import open_store, write_bytes
from privpipe.store.access.workspace import workspace_url


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


@dataclass(frozen=True)
class SubjectFindings:
    """What was counted of the subjects; no name of one.

    Parameters
    ----------
    subject
        Their variable.
    n_subjects
        Different ones.
    largest
        Most records of one of them in the collection.
    n_released
        Most records of one of them that are released: by this epsilon is multiplied.
    n_withheld
        Records beyond that.
    """

    subject: str
    n_subjects: int
    largest: int
    n_released: int
    n_withheld: int

    def describe(self) -> str:
        """In a sentence."""
        rest = f"; {self.n_withheld:,} further records are withheld" if self.n_withheld else ""
        return (
            f"{self.n_subjects:,} subjects in {self.subject!r}, at most {self.largest:,} records "
            f"of one: the promise for a subject is epsilon times {self.n_released}{rest}."
        )


def check_subjects(run: Run) -> None:
    """Raise OptionError or InputError if the variable of the subjects cannot be used."""
    privacy = run.options.privacy
    if privacy.subject is not None:
        run.collection.schema_of_records.variable(privacy.subject)
    elif privacy.records_per_subject is not None:
        raise OptionError(
            "[privacy] records_per_subject is given, but no subject.",
            remedy="Name the variable of the subjects as [privacy] subject.",
        )


def count_subjects(run: Run) -> SubjectFindings | None:
    """Read the variable of the subjects, chunk by chunk; None where none is named."""
    name, most = run.options.privacy.subject, run.options.privacy.records_per_subject
    if name is None:
        return None
    counts, n_withheld = SubjectCounts.of_none(), 0
    for chunk in range(run.collection.plan.n_chunks):
        counts, rest = counts.take(_read(run, name, chunk), most)
        n_withheld += int(rest.sum())
    released = counts.largest if most is None else min(most, counts.largest)
    return SubjectFindings(name, len(counts.subjects), counts.largest, released, n_withheld)


def write_withheld(run: Run) -> str | None:
    """Which records of each chunk are withheld, as bits in the workspace; None if none may be."""
    name, most = run.options.privacy.subject, run.options.privacy.records_per_subject
    if name is None or most is None:
        return None
    place = join(workspace_url(run.release_url), "withheld")
    counts, store = SubjectCounts.of_none(), open_store(place)
    for chunk in range(run.collection.plan.n_chunks):
        counts, rest = counts.take(_read(run, name, chunk), most)
        write_bytes(store, f"{chunk:08d}", np.packbits(rest).tobytes())
    return place


def _read(run: Run, name: str, chunk: int) -> IntArray:
    return identify_subjects(run.collection.read(name, *run.collection.plan.rows(chunk)))


def protect_subjects(guarantee: Guarantee, found: SubjectFindings | None) -> Guarantee:
    """The promise for all records of a subject together, by basic composition."""
    if found is None or guarantee.kind != "local_dp" or guarantee.number is None:
        return guarantee
    n = found.n_released
    return replace(
        guarantee,
        number=guarantee.number * n,
        delta=guarantee.delta * n,
        protects=found.subject,
        parameters=(*guarantee.parameters, ("records of one subject, at most", float(n))),
    )
