"""Steps of a search that were taken before: a search is a function of what its steps answer.

One that was interrupted asks the same again, in the same order, is told what is known, and ends in
the same mapping, bit for bit, whatever its route.
"""

from __future__ import annotations

from typing import Any, Protocol


class KnownSteps(Protocol):
    """A place that outlives the process, for the steps of one search."""

    def read(self, question: tuple[Any, ...]) -> Any:
        """What a step answered, a tuple of arrays and numbers; None if it is not known.

        `question` names the step and holds all that its answer depends on beside the problem.
        """
        ...

    def write(self, question: tuple[Any, ...], answer: tuple[Any, ...]) -> None:
        """Leave the answer of a step."""
        ...
