"""Records drawn for an audit, with the words that decided for them; private, as the records are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from privpipe.protocols import IntArray, Shard, WordArray


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
    def none(cls, n_eligible: int) -> DrawnSample:
        """Nobody of so many."""
        empty = np.empty(0, np.int64)
        return cls(Shard(np.empty((0, 0))), empty.astype(np.uint64), empty, empty, n_eligible)

    def take(self, places: IntArray) -> DrawnSample:
        """Some of them, in this order."""
        return replace(
            self,
            shard=take_records(self.shard, places),
            words=self.words[places],
            rows=self.rows[places],
            counts=self.counts[places],
        )

    @classmethod
    def join(cls, parts: Sequence[DrawnSample]) -> DrawnSample:
        """All of several chunks."""
        found = [part for part in parts if len(part.words)]
        n_eligible = sum(part.n_eligible for part in parts)
        if not found:
            return cls.none(n_eligible)
        arrays = {
            one.name: np.concatenate([getattr(part.shard, one.name) for part in found])
            for one in fields(Shard)
            if one.name != "first_record"
        }
        return cls(
            Shard(**arrays, first_record=-1),
            np.concatenate([part.words for part in found]),
            np.concatenate([part.rows for part in found]),
            np.concatenate([part.counts for part in found]),
            n_eligible,
        )


def take_records(shard: Shard, rows: IntArray) -> Shard:
    """Some rows of what adversaries are given."""
    taken = {
        one.name: part[rows] if len(part := getattr(shard, one.name)) else part
        for one in fields(Shard)
        if one.name != "first_record"
    }
    return Shard(**taken, first_record=-1)
