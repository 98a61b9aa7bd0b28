"""Which records are held out: a keyed hash of the record's number, or of its group.

A record's side depends on the key and its own number only, so that any chunking, any worker
and any repetition of whole groups gives the same split.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from privpipe.protocols import BoolArray

Part = Literal["all", "fit", "held_out", "attack", "test"]


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

    def keep(self, part: Part, identities: npt.NDArray[np.integer]) -> BoolArray:
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

    The key is the same for every collection: a split hides nothing, and so a collection and its
    whole repeats, split by original, hold out the same originals.
    """
    digest = hashlib.blake2b(b"audit", digest_size=8, person=b"privpipe-split").digest()
    return Split(int.from_bytes(digest, "little"), share, group)


def _mix(values: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """Steele, Lea and Flood's splitmix64 finaliser, twice, with the key between."""
    z = values * np.uint64(0x9E3779B97F4A7C15)
    for _ in range(2):
        z = z + np.uint64(key)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return z
