"""What a run checkpoints of its work in the workspace, named by the questions it answers.

A name is a hash of all that the answer depends on. A run that resumes finds an answer where it
poses the same question, and nothing where anything differs.

Sums and outcomes are stored in the private workspace, one sealed object each, and go with it. What
cannot be read back whole counts as not checkpointed. Only classes listed here are made again: no
pickle, no code.
"""

import hashlib
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from dask.tokenize import TokenizationError, tokenize

from privpipe.attacks.moment_audit import AuditSums, PairMoments
from privpipe.attacks.statistics import intervals, places, scores
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome
from privpipe.attacks.threats.verdicts.safeguards import Detection, LearningCurve
from privpipe.attacks.utility import UtilityLosses
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard
from privpipe.records.sampling import DrawnSample, PartCount
from privpipe.sanitizers import STATISTICS as OF_FITS
from privpipe.store.access.objects import open_store, read_bytes, write_bytes
from privpipe.store.models import FieldReader, FieldWriter


@dataclass(frozen=True, eq=False)
class JointSums:
    """Several statistics of the same records, merged together.

    Parameters
    ----------
    parts
        Mergeable statistics, in the order in which they were requested.
    """

    parts: tuple[Any, ...]

    def merge(self, other: "JointSums") -> "JointSums":
        """The statistics of the records of both."""
        return JointSums(tuple(a.merge(b) for a, b in zip(self.parts, other.parts, strict=True)))


@dataclass(frozen=True, eq=False)
class PartialSum:
    """A statistic of some chunks, or an oracle's answer.

    Parameters
    ----------
    n_records
        Records that it summarises.
    statistic
        Of a class that may be checkpointed.
    """

    n_records: int
    statistic: Any

    def merge(self, other: "PartialSum") -> "PartialSum":
        """That of these chunks and the next ones."""
        return PartialSum(self.n_records + other.n_records, self.statistic.merge(other.statistic))


OF_ATTACKS = (
    *(JointSums, AuditSums, PairMoments, places.PlaceSums, UtilityLosses),
    *(Attack, AttackOutcome, Detection, intervals.Interval, LearningCurve, scores.Score),
)
OF_RECORDS = (CoMoments, PartialSum, PartCount, Shard, DrawnSample)

KNOWN = {cls.__name__: cls for cls in (*OF_FITS, *OF_ATTACKS, *OF_RECORDS)}
"""Dataclasses that may be checkpointed: sums over many records (see `privpipe.cluster`), and the
few records that an audit attacks."""

SEAL_BYTES = 32

ROOT, DOCUMENT = "value", "document"
"""Place of what a checkpoint holds, and the name of its JSON among the arrays."""


def read_checkpoint(url: str, name: str) -> Any:
    """The checkpoint of a name in a folder; None where there is none, or it is damaged."""
    content = read_bytes(open_store(url, read_only=True), name)
    # Damaged counts as absent: it is computed again.
    if content is None or _seal(name, content[SEAL_BYTES:]) != content[:SEAL_BYTES]:
        return None
    return _unpack(content[SEAL_BYTES:])


def write_checkpoint(url: str, name: str, value: Any, *, most_bytes: float = math.inf) -> int:
    """Store a value whole, unless its class is not listed or it is too large.

    Parameters
    ----------
    url
        Folder within a private workspace.
    name
        Of the question that it answers, with all that the answer depends on.
    value
        Written if it is of one of the classes `KNOWN`, and all that it holds.
    most_bytes
        A larger one is not written.

    Returns
    -------
    n_bytes
        Its size, whether it was written or too large; 0 if it is of another class.
    """
    try:
        content = _pack(value)
    except UnknownClassError:
        return 0
    if len(content) <= most_bytes:
        # Not flushed: what a power cut takes back or tears is computed again.
        write_bytes(open_store(url), name, _seal(name, content) + content)
    return len(content)


class UnknownClassError(TypeError):
    """A value of a class that may not be checkpointed."""


def _seal(name: str, content: bytes) -> bytes:
    """Covers the name too: two that were exchanged are damaged, and found out anew."""
    return hashlib.blake2b(f"{name}\n".encode() + content, digest_size=SEAL_BYTES).digest()


class _Writer(FieldWriter):
    """Of the listed classes alone; numbers of NumPy's stay what they are."""

    def name(self, value: Any) -> str:
        # By a list of rows, never by what a file says: nothing of it is imported or run.
        if (name := type(value).__name__) not in KNOWN:
            raise UnknownClassError
        return name

    def describe_number(self, value: np.generic, place: str) -> Any:
        self.arrays[place] = np.asarray(value)
        return {"scalar": place}


def _pack(value: Any) -> bytes:
    """The arrays as NumPy stores them, dtypes with their byte order, and JSON of the value."""
    writer, file = _Writer(), io.BytesIO()
    described = json.dumps(writer.describe(value, ROOT))
    stored: Any = {DOCUMENT: np.array(described), **writer.arrays}
    np.savez(file, **stored)
    return file.getvalue()


def _unpack(content: bytes) -> Any:
    """The value; None if this version makes nothing of it."""
    try:
        arrays = dict(np.load(io.BytesIO(content)))  # never of pickles
        return FieldReader(KNOWN, arrays).read(json.loads(str(arrays.pop(DOCUMENT))), ROOT)
    except (ValueError, KeyError, TypeError, BadZipFile):
        return None


# A sixteenth: what is written is at most that share of what is read.
CHECKPOINTED_SHARE = 1 / 16
"""Of the bytes that a statistic sums up; a larger one is not stored."""

FEWEST_CHECKPOINTED = 1000
"""Records; a statistic of fewer is not stored: it may say too much of one, and costs little."""

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpointed answers; small and picklable: workers write theirs themselves.

    Parameters
    ----------
    url
        The folder, within a private workspace.
    question
        What the answers are about; see `about`.
    """

    url: str
    question: str = ""

    def about(self, *parts: Any) -> "Checkpoints | None":
        """Checkpoints of the answers to one question, or to a part of it; None if it has no name.

        Parameters
        ----------
        *parts
            All that the answer depends on, beside the version of privpipe: values, arrays,
            dataclasses of these, functions of modules and partials of them.

        Examples
        --------
        >>> some = Checkpoints("/somewhere")
        >>> some.about("mean", 1) == some.about("mean", 1) != some.about("mean", 2)
        True
        """
        try:
            question = tokenize(
                # The version too: sums of another one may have other shapes, or
                # other bits.
                version("privpipe"),
                self.question,
                *parts,
                ensure_deterministic=True,
            )
        # A closure or an open file has no name that is the same tomorrow: nothing is
        # stored.
        except TokenizationError:
            return None
        return replace(self, question=str(question))


def recall(
    checkpoints: Checkpoints | None,
    name: str,
    make: Callable[[], T],
    *,
    most_bytes: float = math.inf,
    stores: Callable[[T], bool] = lambda _: True,
) -> T:
    """The answer stored under a name, or the one that `make` gives, which is stored then.

    Parameters
    ----------
    checkpoints
        About the question; None to store nothing.
    name
        Of the answer.
    make
        Called where none is stored.
    most_bytes
        A larger answer is not stored.
    stores
        Whether an answer is to be stored.
    """
    if checkpoints is None:
        return make()
    url, name = checkpoints.url, f"{checkpoints.question}-{name}"
    known: T | None = read_checkpoint(url, name)
    if known is not None:
        return known
    made = make()
    if stores(made):
        write_checkpoint(url, name, made, most_bytes=most_bytes)
    return made


def recall_sum(
    checkpoints: Checkpoints | None, name: str, n_bytes: int, make: Callable[[], PartialSum]
) -> PartialSum:
    """`recall` of what is summed up of `n_bytes` of records.

    Nothing is stored that may say too much of few records, or is large beside what it sums up. What
    is too large beside the records of a task may be small beside all of them.
    """

    def says_little(made: PartialSum) -> bool:
        return made.n_records >= FEWEST_CHECKPOINTED

    most = CHECKPOINTED_SHARE * n_bytes
    return recall(checkpoints, name, make, most_bytes=most, stores=says_little)
