"""Tables for people: numbers rounded to what their limits say, as text and as HTML."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privpipe.numerics.limits import fix_limits

if TYPE_CHECKING:
    import pandas as pd


def format_number(value: float, digits: int = 3) -> str:
    """A number with a few significant digits; a dash where there is none.

    >>> format_number(0.74512), format_number(12345.6), format_number(math.nan)
    ('0.745', '1.23e+04', '-')
    """
    if not math.isfinite(value):
        return "-"
    return f"{value:.{digits}g}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"


def format_limits(value: float, lower: float, upper: float, allowed: float = math.nan) -> str:
    """A value with its limits, rounded outwards, to as many decimals as these are apart.

    >>> format_limits(0.74512, 0.6465, 0.8235), format_limits(0.74512, 0.7441, 0.7462)
    ('0.75 (0.64 to 0.83)', '0.7451 (0.7441 to 0.7462)')
    """
    if not all(map(math.isfinite, (value, lower, upper))):
        return format_number(value)
    width = upper - lower
    apart = width > 1e-9 * max(abs(value), 1e-300)  # otherwise they differ by rounding only
    # Two digits of the width: more are noise, fewer hide that limits differ.
    decimals = min(6, max(0, 1 - math.floor(math.log10(width)))) if apart else 3
    if not apart:
        lower = upper = round(value, 9)
    return f"{value:.{decimals}f} ({fix_limits(lower, upper, decimals, allowed)})"


def summarise_attack_table(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of an attack report's table as people read them: one per attack.

    Parameters
    ----------
    table
        An attack report's table.

    Returns
    -------
    DataFrame
        Columns variable, source, adversary, then one per score with its limits and baseline,
        and the number of test records.
    """
    import pandas as pd  # slow to load

    rows = []
    keys = ["target", "source", "adversary"]
    # All of one variable together, in the order of the report.
    by_target = pd.concat([part for _, part in table.groupby("target", sort=False)])
    for (target, source, adversary), part in by_target.groupby(keys, sort=False):
        row = {"variable": target, "source": source, "adversary": str(adversary).replace("_", " ")}
        for cell in part.to_dict("records"):
            if cell["status"] == "unknown":
                row["accuracy" if cell["kind"] == "classes" else "r2"] = (
                    f"unknown: {cell['reason']}"
                )
                continue
            row[cell["score"]] = format_limits(cell["estimate"], cell["lower"], cell["upper"])
            row[f"{cell['score']} of a guess"] = format_number(cell["baseline"])
            row["test records"] = str(cell["n_test"])
        rows.append(row)
    frame = pd.DataFrame(rows).fillna("")
    order = [c for c in frame.columns if c != "test records"]
    return frame[[*order, *(["test records"] if "test records" in frame else [])]]
