"""What long work reports to whoever watches: a name and numbers, never a value of a record.

Passes over records, rounds of a fit, searches, attacks and publication all report the same kind of
event; the console, Prefect and whatever measures runs listen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Event:
    """Something happened to a piece of work.

    Parameters
    ----------
    work
        What is under way, as the dashboard names its tasks: "clean_chunk", "sum_moments",
        "attack", "price_columns".
    what
        "begins", "advances", "stalls" or "ends".
    amount
        When it begins, how much there is to do (0: not known); when it advances, how much more
        is done; when it stalls, seconds without progress.
    unit
        Of the amount: "records", "chunks", "rounds", "attacks", "objects".
    numbers
        What else is known by now, by name: workers, bytes, a gap.
    """

    work: str
    what: Literal["begins", "advances", "stalls", "ends"]
    amount: float = 0.0
    unit: str = "records"
    numbers: tuple[tuple[str, float], ...] = ()


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
