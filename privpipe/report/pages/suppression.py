"""Small counts on a page for everybody: left out, with another beside each, and rounded away.

A count of three, or a sum from which it can be taken, may say who. Where one term of a sum is left
out, so is the next smallest and the total is kept; where every other is nothing, the total goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["LEFT_OUT", "SMALL", "coarsen", "suppress_counts"]

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
    hidden = {name for name, count in counts.items() if 0 < count < SMALL}
    hides_total = False
    if hidden:
        others = {n: c for n, c in counts.items() if n not in hidden and c > 0}
        # The largest stays where it can: it is what readers look for.
        partners = sorted(others, key=lambda name: others[name])[: max(0, len(others) - 1)]
        if sum(counts[name] for name in hidden) < SMALL or len(hidden) == 1:
            if partners:
                hidden.add(partners[0])
            else:
                hides_total = True
    shown = {n: LEFT_OUT if n in hidden else f"{count:,}" for n, count in counts.items()}
    if total is not None and total[1] is not None:
        shown[total[0]] = LEFT_OUT if hides_total else f"{total[1]:,}"
    return shown


def coarsen(value: float | None, n_records: int) -> str:
    """A share, rounded so that no count of fewer than `SMALL` records is told; a dash for none.

    Parameters
    ----------
    value
        A share of records, or an upper limit of one.
    n_records
        Records that it may be a share of; 0 where that is not known.

    Examples
    --------
    >>> coarsen(0.9964, 276), coarsen(0.9964, 100_000), coarsen(0.5, 5), coarsen(None, 10)
    ('1', '1', '-', '-')
    """
    if value is None or not math.isfinite(value) or n_records < 2 * SMALL:
        return "-"
    n_steps = min(100, n_records // (2 * SMALL))  # one divides 1: all but a few look like all
    return f"{round(value * n_steps) / n_steps:.2g}"
