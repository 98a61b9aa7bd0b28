"""What a run checkpoints of its work in the workspace, named by the questions it answers.

A name is a hash of all that the answer depends on: a run that resumes finds an answer where it
poses the same question, and nothing where anything differs.

Sums and outcomes are stored in the private workspace, one sealed object each, and go with it. What
cannot be read back whole counts as not checkpointed. Only classes listed here are made again: no
pickle, no code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from dask.tokenize import TokenizationError, tokenize

from privpipe.attacks.moment_audit import AuditSums, PairMoments
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.statistics.joint_sums import JointSums
from privpipe.attacks.statistics.places import PlaceSums
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome
from privpipe.attacks.threats.verdicts.safeguards import Detection, LearningCurve
from privpipe.attacks.utility import UtilityLosses
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard, Statistics, Sums
from privpipe.records.sampling import DrawnSample, PartCount
from privpipe.sanitizers import STATISTICS as OF_FITS
from privpipe.store.access.location import local_path
from privpipe.store.access.objects import open_store, read_bytes, write_bytes


@dataclass(frozen=True, eq=False)
class PartialSum:
    """A statistic of some chunks.

    Parameters
    ----------
    n_chunks, n_records
        Chunks and records that it summarises.
    statistic
        Of a class that may be checkpointed.
    """

    n_chunks: int
    n_records: int
    statistic: Any

    def merge(self, other: PartialSum) -> PartialSum:
        """That of these chunks and the next ones."""
        return PartialSum(
            self.n_chunks + other.n_chunks,
            self.n_records + other.n_records,
            self.statistic.merge(other.statistic),
        )


OF_ATTACKS = (
    *(JointSums, AuditSums, PairMoments, PlaceSums, UtilityLosses),
    *(Attack, AttackOutcome, Detection, Interval, LearningCurve, Score),
)
OF_RECORDS = (CoMoments, PartialSum, PartCount, Shard, DrawnSample)

KNOWN = {cls.__name__: cls for cls in (*OF_FITS, *OF_ATTACKS, *OF_RECORDS)}
"""Dataclasses that may be checkpointed: sums over many records (see `privpipe.cluster`), and the
few records that an audit attacks."""

SEAL_BYTES = 32


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
        _write(url, name, _seal(name, content) + content)
    return len(content)


def _write(url: str, name: str, content: bytes) -> None:
    """Whole; in a folder without Zarr's way there, which took longer than the sums of a chunk."""
    path = local_path(url)
    if path is None:
        write_bytes(open_store(url), name, content)
        return
    # Not flushed: after a power cut what is lost is computed again.
    work = os.path.join(path, f".{name}.{secrets.token_hex(8)}.partial")
    os.makedirs(path, exist_ok=True)
    with open(work, "xb") as file:
        file.write(content)
    os.replace(work, os.path.join(path, name))


class UnknownClassError(TypeError):
    """A value of a class that may not be checkpointed."""


def _seal(name: str, content: bytes) -> bytes:
    """Covers the name too: two that were exchanged are damaged, and found out anew."""
    return hashlib.blake2b(f"{name}\n".encode() + content, digest_size=SEAL_BYTES).digest()


def _pack(value: Any) -> bytes:
    """JSON of the value and of its arrays' kinds, after its length; then their bytes."""
    arrays: list[npt.NDArray[Any]] = []
    described = _describe(value, arrays)
    # The dtype with its byte order: the next run may be on another machine.
    kinds = [[array.dtype.str, array.shape] for array in arrays]
    document = json.dumps([described, kinds]).encode()
    return b"".join(
        (len(document).to_bytes(8, "little"), document, *(array.tobytes() for array in arrays))
    )


def _unpack(content: bytes) -> Any:
    """The value; None if this version makes nothing of it."""
    try:
        place = 8 + int.from_bytes(content[:8], "little")
        described, kinds = json.loads(content[8:place])
        arrays = []
        for kind, shape in kinds:
            flat = np.frombuffer(content, kind, math.prod(shape), place)
            # Writable, and not a view that holds the whole content.
            arrays.append(flat.reshape(shape).copy())
            place += flat.nbytes
        return _restore(described, arrays)
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _describe(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """JSON of a value; its arrays are appended to `arrays` and named by their number."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple):
        return {"tuple": [_describe(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        pairs = [[_describe(key, arrays), _describe(item, arrays)] for key, item in value.items()]
        return {"mapping": pairs}
    if is_dataclass(value):
        name = type(value).__name__
        # By a list of rows, never by what a file says: nothing of it is imported or run.
        if name not in KNOWN:
            raise UnknownClassError
        found = {item.name: getattr(value, item.name) for item in fields(KNOWN[name])}
        return {
            "class": name,
            "fields": {field: _describe(item, arrays) for field, item in found.items()},
        }
    if isinstance(value, np.generic):
        arrays.append(np.asarray(value))
        return {"scalar": len(arrays) - 1}
    return value


def _restore(document: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    if not isinstance(document, dict):
        return document
    if "array" in document:
        return arrays[document["array"]]
    if "scalar" in document:
        return arrays[document["scalar"]][()]
    if "tuple" in document:
        return tuple(_restore(item, arrays) for item in document["tuple"])
    if "mapping" in document:
        return {_restore(k, arrays): _restore(v, arrays) for k, v in document["mapping"]}
    made = {name: _restore(item, arrays) for name, item in document["fields"].items()}
    return KNOWN[document["class"]](**made)


# A sixteenth: what is written is at most that share of what is read.
CHECKPOINTED_SHARE = 1 / 16
"""Of the bytes that a statistic sums up; a larger one is not stored."""

FEWEST_CHECKPOINTED = 1000
"""Records; a statistic of fewer is not stored: it may say too much of one, and costs little."""

S = TypeVar("S", bound=Statistics)


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

    def about(self, *parts: Any) -> Checkpoints | None:
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

    def read(self, name: str) -> Any:
        """The answer stored under a name; None where there is none, or it is damaged."""
        return read_checkpoint(self.url, f"{self.question}-{name}")

    def write(self, name: str, answer: Any, *, most_bytes: float = math.inf) -> int:
        """Store an answer; see `write_checkpoint`."""
        return write_checkpoint(self.url, f"{self.question}-{name}", answer, most_bytes=most_bytes)


class KnownResponses:
    """Answers of an oracle to the questions of a fit; stored, if there is a place for them.

    A fit is a function of the answers to its questions: one that was interrupted poses the same
    again, finds what is known, and resumes where it stopped, to the same map, bit for bit.

    Parameters
    ----------
    checkpoints
        About the oracle; None to store nothing.
    n_records, n_bytes
        What it sums over: answers that may say too much of few records, or are large beside
        them, are not stored.
    """

    def __init__(self, checkpoints: Checkpoints | None, n_records: int, n_bytes: int) -> None:
        self._checkpoints = checkpoints if n_records >= FEWEST_CHECKPOINTED else None
        self._most_bytes = CHECKPOINTED_SHARE * n_bytes

    def find(self, question: Any, ask: Callable[[Any], Sums]) -> Sums:
        """The known answer, or the one that `ask` gives, which is known from now on."""
        checkpoints = self._checkpoints and self._checkpoints.about(question)
        if checkpoints is None:
            return ask(question)
        known: Sums | None = checkpoints.read("answer")
        if known is not None:
            return known
        answer = ask(question)
        checkpoints.write("answer", answer, most_bytes=self._most_bytes)
        return answer


def remember_whole(
    checkpoints: Checkpoints | None, n_bytes: int, ask: Callable[[], PartialSum]
) -> PartialSum:
    """The statistic of all chunks as it was stored, or as `ask` gives it, which is stored then.

    What is too large beside the records of a task may be small beside all of them, of `n_bytes`.
    """
    known: PartialSum | None = checkpoints.read("whole") if checkpoints else None
    if known is not None:
        return known
    whole = ask()
    if checkpoints and whole.n_records >= FEWEST_CHECKPOINTED:
        checkpoints.write("whole", whole, most_bytes=CHECKPOINTED_SHARE * n_bytes)
    return whole


class RunningSum(Generic[S]):
    """The statistic of the chunks of a task so far; stored as it grows, if there is a place for it.

    Parameters
    ----------
    checkpoints
        About the question; None to store nothing.
    name
        Of the task. What an earlier run stored of it is where this one begins.
    """

    def __init__(self, checkpoints: Checkpoints | None, name: str) -> None:
        self._checkpoints, self._name = checkpoints, name
        begun: PartialSum | None = checkpoints.read(name) if checkpoints is not None else None
        self.n_chunks, self._n_records = (begun.n_chunks, begun.n_records) if begun else (0, 0)
        self.statistic: S | None = begun.statistic if begun else None
        self._bytes_allowed = 0.0
        self._size = 0

    @property
    def total(self) -> PartialSum:
        """So far; of one chunk at least."""
        assert self.statistic is not None, "a task has chunks"
        return PartialSum(self.n_chunks, self._n_records, self.statistic)

    def add(self, part: S, n_records: int, n_bytes: int) -> None:
        """Merge the statistic of the next chunk, of so many records and bytes."""
        self.statistic = part if self.statistic is None else self.statistic.merge(part)
        self.n_chunks += 1
        self._n_records += n_records
        self._bytes_allowed += CHECKPOINTED_SHARE * n_bytes
        if self._checkpoints is None or self._n_records < FEWEST_CHECKPOINTED:
            return
        # Written again only once as much was read as the last one took: a statistic that
        # grows with each chunk would otherwise cost the square of their number.
        if self._size <= self._bytes_allowed:
            most = self._bytes_allowed
            self._size = self._checkpoints.write(self._name, self.total, most_bytes=most)
            if self._size <= self._bytes_allowed:
                self._bytes_allowed = 0.0
