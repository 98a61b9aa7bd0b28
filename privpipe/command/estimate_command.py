"""``privpipe estimate``: numbers about the records from their noisy release, with error bars."""

from typing import Any, get_args

from privpipe.cluster.estimate import Quantity, estimate
from privpipe.errors import OptionError
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import shown

MOST_SHOWN = 40
"""Rows of the table; ``--json`` has all."""


def estimate_command(
    release: str, *, of: Any, response: str | None, level: float
) -> dict[str, Any]:
    """Estimate, print a table, and give the document.

    Raises
    ------
    OptionError
        If the quantity or the level is none that there is.
    """
    known = get_args(Quantity)
    if of not in known or not 0 < level < 1:
        wrong = f"--of is {of!r}" if of not in known else f"--level is {level:g}"
        raise OptionError(
            f"{wrong}.", remedy=f"Use --of {', '.join(known)}; a level between 0 and 1."
        )
    found = estimate(release, of, response or None)
    rows = []
    for one in found:
        low, high = one.find_limits(level)
        rows.append(
            {"of": one.name, "estimate": one.value, "error": one.error, "low": low, "high": high}
        )
    texts = [
        {key: value if isinstance(value, str) else f"{value:.5g}" for key, value in row.items()}
        for row in rows[:MOST_SHOWN]
    ]
    say(tabulate(texts, title=f"{of} of the records, {level:.0%} intervals of sample and noise"))
    if len(rows) > MOST_SHOWN:
        say(f"and {len(rows) - MOST_SHOWN:,} more; --json has them.")
    if of == "regression":
        say("Of masking_private the sample's error is that of residuals of one variance.")
    say("Estimates are of records within the bounds of the release: clipped ones count as clipped.")
    return {"release": shown(release), "of": of, "level": level, "estimates": rows}
