"""Sums of several statistics of the same records, which one pass over the data finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class JointSums:
    """Several statistics of the same records, merged together.

    Parameters
    ----------
    parts
        Mergeable statistics, in the order in which they were requested.
    """

    parts: tuple[Any, ...]

    def merge(self, other: JointSums) -> JointSums:
        """The statistics of the records of both."""
        return JointSums(tuple(a.merge(b) for a, b in zip(self.parts, other.parts, strict=True)))
