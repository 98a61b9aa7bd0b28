"""Drawings of a page by their arguments: intervals in rows, and ROC curves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# In the page's own font of 12 pixels; LEFT holds 33 letters.
WIDTH, LEFT, ROW = 540, 218, 17
"""Of a drawing, of its names, and height of a row, in pixels of the drawing."""

# Below one false claim in a thousand no sample here says anything.
LEAST = 0.001
"""Rate of false positives at which ROC curves begin."""


Drawing = tuple[str, Mapping[str, Any]]
"""A macro of ``templates/drawings.svg``, and its arguments."""


@dataclass(frozen=True)
class IntervalRow:
    """One row: an estimate with its limits; NaN where an attack is unknown."""

    label: str
    kind: str
    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Curve:
    """One ROC curve: rates of false and of true positives, of each point."""

    label: str
    kind: str
    points: Sequence[tuple[float, float]]


def draw_intervals(
    rows: Sequence[IntervalRow],
    *,
    allowed: float | None,
    description: str,
    marks: Mapping[float, str] | None = None,
    width: int = WIDTH,
) -> Drawing:
    """Estimates with their limits, one row each, against nothing and against what is allowed.

    Parameters
    ----------
    rows
        In order; `kind` is "of-release" or "compared" and decides the colour.
    allowed
        Drawn as a line; None for no limit.
    description
        For those who do not see it.
    marks
        Names of places on the scale, which then ends at them; None for a scale of numbers.
    width
        Of the drawing, in its pixels; the page scales it.
    """
    known = [value for row in rows for value in (row.lower, row.upper) if math.isfinite(value)]
    # At least .1 wide: noise about 0 must not fill the drawing.
    least, most = (min(marks), max(marks)) if marks else (0.0, max(allowed or 0.0, 0.1))
    low, high = max(-1.0, min([least, *known])), min(1.0, max([most, *known]))
    span = (high - low) or 1.0
    left, right = low - 0.03 * span, high + 0.03 * span

    def place(value: float) -> float:
        # An interval may leave the scale of advantages, [-1, 1].
        return LEFT + (min(max(value, left), right) - left) / (right - left) * (width - LEFT - 12)

    return "intervals", {
        "rows": rows,
        "allowed": allowed,
        "description": description,
        "place": place,
        "ticks": marks or {value: f"{value:g}" for value in _choose_ticks(left, right)},
        "is_known": math.isfinite,
        "left": LEFT,
        "width": width,
        "height": ROW,
    }


def draw_roc(curves: Sequence[Curve], *, description: str) -> Drawing:
    """ROC curves whose false positives are on a logarithmic scale: the low end decides.

    Parameters
    ----------
    curves
        At most four are distinguished: solid for the first, then broken ever finer.
    description
        For those who do not see it.
    """

    def across(false: float) -> float:
        return 52 + math.log10(max(false, LEAST) / LEAST) / -math.log10(LEAST) * (WIDTH - 64)

    return "roc", {"curves": curves, "description": description, "across": across, "height": ROW}


def _choose_ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers within a range."""
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
    step = next((step for step in steps if (high - low) / step <= 6), 1.0)
    # Rounded: 3 * .1 is .30000000000000004.
    return [round(k * step, 10) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
