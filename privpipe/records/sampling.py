"""Which records are held out, and those drawn for an audit, which are private as the records are.

A record's side of the split is a keyed hash of its number, or of its group. So any chunking, any
worker and any repetition of whole groups gives the same split.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from privpipe.protocols import BoolArray, IntArray, Shard, WordArray

Part = Literal["all", "fit", "held_out", "attack", "test"]

ARRAYS = tuple(one.name for one in fields(Shard) if one.name != "first_record")
"""What a shard holds of every record."""


@dataclass(frozen=True)
class Split:
    """A reproducible split into records to fit on and records to audit on.

    Parameters
    ----------
    key
        64-bit key of the hash.
    share
        Share of the records (or groups) held out, in [0, 1).
    group
        Variable whose equal values stay on one side; None to split by record.

    Notes
    -----
    The parts: "fit" and "held_out" are complementary; "attack" and "test" are the two halves
    of "held_out"; "all" keeps every record.
    """

    key: int
    share: float
    group: str | None = None

    def keep(self, part: Part, identities: IntArray) -> BoolArray:
        """Mask of the records of a part.

        Parameters
        ----------
        part
            Name of the part.
        identities : (n_records,)
            Record numbers, or the values of the group variable.
        """
        if part == "all":
            return np.ones(len(identities), bool)
        # 53 bits decide; exact in float64.
        position = (_mix(identities.astype(np.uint64), self.key) >> np.uint64(11)) * 2.0**-53
        # Halves of what is held out: who attacks is trained on one and judged on the other.
        edges = {
            "fit": (self.share, 1.0),
            "held_out": (0.0, self.share),
            "attack": (0.0, self.share / 2),
            "test": (self.share / 2, self.share),
        }
        low, high = edges[part]
        return (position >= low) & (position < high)


@dataclass(frozen=True)
class PartCount:
    """How many records a part of a split has, and of how many groups (None if not grouped)."""

    n_records: int
    n_groups: int | None


def make_split(share: float, group: str | None = None) -> Split:
    """The split of an audit.

    The key is the same for every collection, as a split hides nothing. So a collection and its
    whole repeats, split by original, hold out the same originals.
    """
    # No secret: it hides nothing, and must be the same for a collection and its copies.
    digest = hashlib.blake2b(b"audit", digest_size=8, person=b"privpipe-split").digest()
    return Split(int.from_bytes(digest, "little"), share, group)


def _mix(values: WordArray, key: int) -> WordArray:
    """Steele, Lea and Flood's splitmix64 finaliser, twice, with the key between."""
    z = values * np.uint64(0x9E3779B97F4A7C15)
    for _ in range(2):
        z = z + np.uint64(key)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return z


@dataclass(frozen=True, eq=False)
class DrawnSample:
    """Some records of some chunks.

    Parameters
    ----------
    shard
        What adversaries are given of them.
    words : (n_records,), uint64
        Those of smallest word are drawn.
    rows : (n_records,)
        Their numbers in the collection.
    counts : (n_records,)
        Records of the same group that are equal to each, itself among them.
    n_eligible
        Records that could have been drawn.
    """

    shard: Shard
    words: WordArray
    rows: IntArray
    counts: IntArray
    n_eligible: int = 0

    @classmethod
    def none(cls, n_eligible: int) -> "DrawnSample":
        """No record of so many."""
        empty = np.empty(0, np.int64)
        return cls(Shard(np.empty((0, 0))), empty.astype(np.uint64), empty, empty, n_eligible)

    def take(self, places: IntArray) -> "DrawnSample":
        """Some of them, in this order."""
        some = {name: getattr(self, name)[places] for name in ("words", "rows", "counts")}
        return replace(self, shard=take_records(self.shard, places), **some)

    @classmethod
    def join(cls, parts: "Sequence[DrawnSample]") -> "DrawnSample":
        """All of several chunks."""
        # An empty sample has no columns to be joined.
        found = [part for part in parts if len(part.words)]
        n_eligible = sum(part.n_eligible for part in parts)
        if not found:
            return cls.none(n_eligible)
        words, rows, counts = (
            np.concatenate([getattr(part, name) for part in found])
            for name in ("words", "rows", "counts")
        )
        return cls(join_records([part.shard for part in found]), words, rows, counts, n_eligible)


def take_records(shard: Shard, rows: IntArray | slice) -> Shard:
    """Some rows of what adversaries are given."""
    taken = {name: part[rows] if len(part := getattr(shard, name)) else part for name in ARRAYS}
    return Shard(**taken, first_record=-1)


def join_records(shards: Sequence[Shard]) -> Shard:
    """All rows of several shards."""
    joined = {name: np.concatenate([getattr(one, name) for one in shards]) for name in ARRAYS}
    return Shard(**joined, first_record=-1)
