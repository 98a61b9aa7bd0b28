"""Several records of one subject: counted, the rest withheld, the promise multiplied."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pandas as pd

from privpipe.errors import GuaranteeError, OptionError
from privpipe.pipeline.runs.run import Run
from privpipe.promises import RECORDS_OF_ONE
from privpipe.protocols import AnyArray, BoolArray, Guarantee, IntArray
from privpipe.report.audit_text import say
from privpipe.store.access import location, objects, workspace

Counts: TypeAlias = "pd.Series[int]"
"""Records by subject."""


def identify_subjects(values: AnyArray) -> IntArray:
    """A whole number per record, equal where the subject is: codes, or the bits of a number."""
    if np.issubdtype(values.dtype, np.floating):
        return (values.astype(np.float64) + 0.0).view(np.int64)  # -0.0 and 0.0 are one
    return values.astype(np.int64)


def count_more(counts: Counts, ids: IntArray, most: int | None = None) -> tuple[Counts, BoolArray]:
    """Counts with some more records, and which of these are beyond `most` of their subject.

    Parameters
    ----------
    counts
        Records met so far, by subject.
    ids : (n_records,)
        Subjects of further ones, in the order of the records.
    most
        None: as many as there are.

    Examples
    --------
    >>> counts, rest = count_more(pd.Series(dtype=np.int64), np.array([4, 7, 4, 4]), most=2)
    >>> counts.to_dict(), rest
    ({4: 3, 7: 1}, array([False, False, False,  True]))
    """
    subjects = pd.Series(ids)
    # Records of earlier chunks, then the order within this one: no chunking changes the choice.
    rank = counts.reindex(subjects, fill_value=0).to_numpy()
    rank = rank + subjects.groupby(subjects).cumcount().to_numpy()
    more = subjects.value_counts()
    rest = np.zeros(len(ids), np.bool_) if most is None else rank >= most
    return counts.add(more, fill_value=0).astype(np.int64), rest


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
        return say("subjects", one=self)


def check_subjects(run: Run) -> None:
    """Raise OptionError or InputError if the variable of the subjects cannot be used."""
    subject = run.options.collection.subject
    if subject is not None and (run.options.counts_subjects or run.split.group is None):
        run.collection.schema_of_records.variable(subject)
    elif subject is None and run.options.privacy.records_per_subject is not None:
        remedy = "Name the variable of the subjects as [collection] subject."
        raise OptionError("[privacy] records_per_subject is given, but no subject.", remedy=remedy)


def count_subjects(run: Run) -> SubjectFindings | None:
    """Read the variable of the subjects, chunk by chunk; None where none is named."""
    name, most = run.options.collection.subject, run.options.privacy.records_per_subject
    if name is None or not run.options.counts_subjects:
        return None
    largest, n_subjects, n_withheld = 0, 0, 0
    for counts, rest in _walk(run, name):
        largest, n_subjects = int(counts.max()), len(counts)
        n_withheld += int(rest.sum())
    released = largest if most is None else min(most, largest)
    return SubjectFindings(name, n_subjects, largest, released, n_withheld)


def write_withheld(run: Run) -> str | None:
    """Which records of each chunk are withheld, as bits in the workspace; None if none may be."""
    name = run.options.collection.subject
    if name is None or run.options.privacy.records_per_subject is None:
        return None
    place = location.join(workspace.workspace_url(run.release_url), "withheld")
    store = objects.open_store(place)
    for chunk, (_, rest) in enumerate(_walk(run, name)):
        objects.write_bytes(store, f"{chunk:08d}", np.packbits(rest).tobytes())
    return place


def _walk(run: Run, name: str) -> Iterator[tuple[Counts, BoolArray]]:
    """After each chunk, in their order: the counts, and which of its records are withheld."""
    counts = pd.Series(dtype=np.int64)
    for chunk in range(run.collection.plan.n_chunks):
        found = identify_subjects(run.collection.read(name, *run.collection.plan.rows(chunk)))
        counts, rest = count_more(counts, found, run.options.privacy.records_per_subject)
        yield counts, rest


def protect_subjects(guarantee: Guarantee, found: SubjectFindings) -> Guarantee:
    """The promise for all records of a subject together, by basic composition."""
    if guarantee.number is None:
        return guarantee
    if guarantee.kind == "local_dp":
        n = found.n_released  # basic composition: as many draws of one subject
        delta = guarantee.delta * n
    elif guarantee.kind == "central_dp":
        n = found.largest  # sums are of all records: none is withheld
        # Group privacy: from one collection to the other by n steps, each of one record.
        delta = guarantee.delta * n * math.exp(min(700.0, guarantee.number * (n - 1)))
    else:
        return guarantee
    if delta >= 1:
        raise GuaranteeError(
            f"A subject has {n:,} records: epsilon {guarantee.number:g} of each is no promise.",
            remedy=f"Use an epsilon of at most {guarantee.number / n:.2g}, or fewer of each.",
            code="many-records",
        )
    number, said = guarantee.number * n, (*guarantee.parameters, (RECORDS_OF_ONE, float(n)))
    return replace(guarantee, number=number, delta=delta, protects=found.subject, parameters=said)
