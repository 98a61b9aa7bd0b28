"""Numbers for people, rounded to what their limits say; a dash where there is none."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from privpipe.numerics.limits import fix_limits

Rows = Sequence[Mapping[str, Any]]
"""Cells by the names of their columns, a row each."""

SIZES = ((0.05, "negligible"), (0.1, "small"), (0.25, "moderate"), (0.5, "large"))
"""Words for a gain, each below its bound."""


def name_size(gain: float | None) -> str:
    """A word for the size of a gain.

    >>> [name_size(gain) for gain in (0.01, 0.15, 0.7, None)]
    ['negligible', 'moderate', 'very large', 'unknown']
    """
    if gain is None or not math.isfinite(gain):
        return "unknown"
    return next((word for bound, word in SIZES if gain < bound), "very large")


def format_number(value: float | None, digits: int = 3) -> str:
    """A count in full, another number with a few significant digits; a dash where there is none.

    >>> format_number(0.74512), format_number(12345.6), format_number(12345), format_number(None)
    ('0.745', '1.23e+04', '12,345', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
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


def show_limits(found: Mapping[str, Any] | None, name: str = "", allowed: float = math.nan) -> str:
    """A figure of findings with its limits, as `format_limits`; a dash where there is none.

    >>> show_limits({"gain": 0.5, "gain_lower": 0.4, "gain_upper": 0.6}, "gain")
    '0.50 (0.40 to 0.60)'
    """
    if found is None:
        return "-"
    keys = (name, f"{name}_lower", f"{name}_upper") if name else ("estimate", "lower", "upper")
    # JSON has null for what is not a number.
    value, lower, upper = (math.nan if found[key] is None else found[key] for key in keys)
    return format_limits(value, lower, upper, allowed)


def summarise_attacks(cells: Rows) -> list[dict[str, str]]:
    """The rows of an attack report's table as people read them: one per attack.

    Parameters
    ----------
    cells
        Of ``table`` in an attack report: one per attack and score.

    Returns
    -------
    rows
        Variable, source, adversary, number of test records, then each score with its limits and
        baseline. Those of one variable are together, in the order of the report.
    """
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for cell in cells:
        target, source, adversary = cell["target"], cell["source"], cell["adversary"]
        said = {"variable": target, "source": source, "adversary": adversary.replace("_", " ")}
        row = rows.setdefault((target, source, adversary), said | {"test records": ""})
        if cell["status"] == "unknown":
            row["accuracy" if cell["kind"] == "classes" else "r2"] = f"unknown: {cell['reason']}"
            continue
        row[cell["score"]] = show_limits(cell)
        row[f"{cell['score']} of a guess"] = format_number(cell["baseline"])
        row["test records"] = str(cell["n_test"])
    targets = list(dict.fromkeys(target for target, _, _ in rows))
    return sorted(rows.values(), key=lambda row: targets.index(row["variable"]))
