"""Steps of one of several searches that share a place to leave them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privpipe.numerics.mapping.problem.known_steps import KnownSteps


@dataclass(frozen=True)
class NamedSteps:
    """Known steps under a name of their own.

    Parameters
    ----------
    known
        Where all searches leave their steps.
    name, number
        Of the one search.
    """

    known: KnownSteps
    name: str
    number: int

    @classmethod
    def of(cls, known: KnownSteps | None, name: str, number: int) -> NamedSteps | None:
        """None where nothing is kept."""
        return None if known is None else cls(known, name, number)

    def read(self, question: tuple[Any, ...]) -> Any:
        """See `KnownSteps.read`."""
        return self.known.read((self.name, self.number, *question))

    def write(self, question: tuple[Any, ...], answer: tuple[Any, ...]) -> None:
        """See `KnownSteps.write`."""
        self.known.write((self.name, self.number, *question), answer)
