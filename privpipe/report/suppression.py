"""Small counts on a page for everybody: left out, with another beside each, and rounded away.

A count of three, or a sum from which it can be taken, may say who. Where one term of a sum is left
out, so is the next smallest, and the total is shown. Where at most one other is not zero, the total
is left out instead.
"""

import math
from collections.abc import Mapping
from typing import Any

from privpipe.numerics.limits import say_upper, step_up

# As statistical offices do with tables of counts.
SMALL = 10
"""Counts below it are not shown; none is the count of no record, and shown."""

LEFT_OUT = "left out (small counts)"


def suppress_counts(
    counts: Mapping[str, int], *, total: tuple[str, int | None] | None = None
) -> dict[str, str]:
    """Counts as text, the small ones left out and none to be worked out from the others.

    Parameters
    ----------
    counts
        Terms of one sum, by name.
    total
        Their sum, or something whose difference from theirs may be taken; None where it is not
        shown.

    Examples
    --------
    >>> suppress_counts({"a": 500, "b": 3, "c": 40}, total=("all", 543))
    {'a': '500', 'b': 'left out (small counts)', 'c': 'left out (small counts)', 'all': '543'}
    >>> suppress_counts({"a": 500, "b": 3}, total=("all", 503))
    {'a': '500', 'b': 'left out (small counts)', 'all': 'left out (small counts)'}
    """
    suppressed = {name for name, count in counts.items() if 0 < count < SMALL}
    hides_total = False
    if suppressed:
        others = {n: c for n, c in counts.items() if n not in suppressed and c > 0}
        # The largest stays where it can: it is what readers look for.
        partners = sorted(others, key=lambda name: others[name])[: max(0, len(others) - 1)]
        # One that is left out is the total less the others; several small ones together
        # may be.
        if sum(counts[name] for name in suppressed) < SMALL or len(suppressed) == 1:
            if partners:
                suppressed.add(partners[0])
            else:
                hides_total = True
    shown = {n: LEFT_OUT if n in suppressed else f"{count:,}" for n, count in counts.items()}
    if total is not None and total[1] is not None:
        shown[total[0]] = LEFT_OUT if hides_total else f"{total[1]:,}"
    return shown


def suppress_sizes(found: Mapping[str, Any]) -> dict[str, str]:
    """Numbers of attacked records for everybody, from the findings on adversaries."""
    counts = {
        "Records attacked": found.get("n_records"),
        "Withheld by the release": found.get("n_withheld"),
        "Learned from and left out": found.get("n_seen"),
    }
    known = {name: count for name, count in counts.items() if count is not None}
    return suppress_counts(known, total=("Records given", found.get("n_given")))


def find_shown_size(found: Mapping[str, Any]) -> int:
    """A number of records that is shown: the rounding of shares reveals no other one."""
    suppressed = suppress_sizes(found).get("Records attacked") == LEFT_OUT
    return int(found.get("n_given" if suppressed else "n_records") or 0)


def coarsen(value: float | None, n_records: int) -> str:
    """A share, rounded so that no count of fewer than `SMALL` records is reported; a dash for none.

    Parameters
    ----------
    value
        A share of records.
    n_records
        Records that it may be a share of; 0 where that is not known.

    Examples
    --------
    >>> coarsen(0.9964, 276), coarsen(0.9964, 100_000), coarsen(0.5, 5), coarsen(None, 10)
    ('1', '1', '-', '-')
    """
    if value is None or not math.isfinite(value) or n_records < 2 * SMALL:
        return "-"
    n_steps = _count_steps(n_records)
    return f"{round(value * n_steps) / n_steps:.2g}"


def coarsen_limit(upper: float | None, allowed: float | None, n_records: int) -> str:
    """An upper limit, rounded up to the same steps, and no further than what it lies within.

    Parameters
    ----------
    upper
        Of a share of records.
    allowed
        What it is held against; it is on the page, and reveals no count.
    n_records
        As of `coarsen`.

    Examples
    --------
    >>> coarsen_limit(0.251, 0.35, 917), coarsen_limit(0.251, 0.252, 917)
    ('0.27', '0.252')
    """
    if upper is None or not math.isfinite(upper) or n_records < 2 * SMALL:
        return "-"
    shown = step_up(upper, _count_steps(n_records))
    limit = math.nan if allowed is None else allowed
    return say_upper(limit, limit) if upper <= limit < shown else say_upper(shown, limit, digits=2)


def _count_steps(n_records: int) -> int:
    """Steps of a share of so many records; one divides 1: all but a few look like all."""
    # Half a step is SMALL records: fewer cannot be seen in a share.
    return min(100, n_records // (2 * SMALL))
