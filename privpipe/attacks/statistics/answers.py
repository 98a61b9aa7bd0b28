"""Statistics of several questions side by side, merged together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Answers:
    """A statistic per question, of the same records.

    Parameters
    ----------
    parts
        Mergeable statistics, in the order of the questions.
    """

    parts: tuple[Any, ...]

    def merge(self, other: Answers) -> Answers:
        """Answers about the records of both."""
        return Answers(
            tuple(mine.merge(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))
        )
