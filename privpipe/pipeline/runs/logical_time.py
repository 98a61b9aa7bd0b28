"""Logical times: the moment that a run is for, whenever it happens; always with an offset."""

from __future__ import annotations

from datetime import UTC, datetime

from privpipe.errors import OptionError

PLACE = "{logical_time}"
"""Stands in ``[release] path`` for the logical time of the run."""


def read_time(text: str | datetime) -> datetime:
    """A logical time in UTC, to the second.

    Raises
    ------
    OptionError
        If it is no ISO 8601 time, or has no offset: the same text would be another moment on
        another machine.

    Examples
    --------
    >>> write_time(read_time("2026-11-22T07:00:00+01:00"))
    '20261122T060000Z'
    """
    try:
        time = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.utcoffset() is None:
        raise OptionError(
            "A logical time is no ISO 8601 time with an offset.",
            remedy='Give one as "2026-11-22T06:00:00Z" or "2026-11-22T07:00:00+01:00".',
            code="logical-time",
        )
    return time.astimezone(UTC).replace(microsecond=0)


def write_time(time: datetime) -> str:
    """As it stands in names of releases, in UTC; names sort as times do."""
    return time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def fill_time(path: str, time: datetime | None) -> str:
    """A path with the logical time in its place.

    Raises
    ------
    OptionError
        If the path asks for a logical time and none is given.
    """
    if PLACE not in path:
        return path
    if time is None:
        raise OptionError(
            f"[release] path holds {PLACE}, and this run has no logical time.",
            remedy="Give --time, as 2026-11-22T06:00:00Z; a scheduled run has its schedule's.",
            code="logical-time",
        )
    return path.replace(PLACE, write_time(time))
