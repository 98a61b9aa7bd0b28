"""What an interrupted run has found out and need not find out again: sums and outcomes.

They are stored in the private workspace, one sealed object each, and go with it. What cannot be
read back whole counts as not checkpointed. Only classes listed here are made again: no pickle, no
code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.attacks.moment_audit import AuditSums, PairMoments
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.statistics.joint_sums import JointSums
from privpipe.attacks.statistics.places import PlaceSums
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome
from privpipe.attacks.threats.verdicts.safeguards import Detection, LearningCurve
from privpipe.attacks.utility import UtilityLosses
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard
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
