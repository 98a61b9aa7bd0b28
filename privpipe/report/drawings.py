"""Small drawings of an audit as SVG within a page: they take the page's colours, light or dark.

Written by hand because a report may hold sixty of them: each takes a millisecond and some
kilobytes, where a plotting library takes a second. Names are escaped, and shown by the reader's own
fonts, whatever their script.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

# In the page's own font of 12 pixels; LEFT holds 33 letters.
WIDTH, LEFT, ROW = 540, 218, 17
"""Of a drawing, of its names, and height of a row, in pixels of the drawing."""


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
    """One ROC curve: rates of false and of true positives."""

    label: str
    kind: str
    false_positive: Sequence[float]
    true_positive: Sequence[float]


def draw_intervals(rows: Sequence[IntervalRow], *, allowed: float, description: str) -> str:
    """Estimates with their limits, one row each, against nothing and against what is allowed.

    Parameters
    ----------
    rows
        In order; `kind` is "of-release" or "compared" and decides the colour.
    allowed
        Drawn as a line.
    description
        For those who do not see it.

    Returns
    -------
    str
        An ``svg`` element.
    """
    known = [value for row in rows for value in (row.lower, row.upper) if math.isfinite(value)]
    # At least .1 wide: noise about 0 must not fill the drawing.
    low, high = max(-1.0, min([0.0, *known])), min(1.0, max([allowed, 0.1, *known]))
    span = (high - low) or 1.0
    left, right = low - 0.03 * span, high + 0.03 * span

    def place(value: float) -> float:
        # An interval may leave the scale of advantages, [-1, 1].
        inside = min(max(value, left), right)
        return LEFT + (inside - left) / (right - left) * (WIDTH - LEFT - 12)

    height = ROW * len(rows) + 44
    bottom = ROW * len(rows) + 14
    parts = [_line(place(0), 6, place(0), bottom, "zero")]
    parts.append(_line(place(allowed), 6, place(allowed), bottom, "limit"))
    for i, row in enumerate(rows):
        parts += _draw_interval(row, 18 + ROW * i, place)
    for value in _choose_ticks(left, right):
        parts.append(_line(place(value), bottom, place(value), bottom + 4, "axis"))
        parts.append(_text(place(value), bottom + 16, f"{value:g}", "middle"))
    parts.append(_text(place(allowed), bottom + 28, f"allowed {allowed:g}", "middle", "limit-text"))
    return _wrap(parts, height, description)


def _draw_interval(row: IntervalRow, y: float, place: Callable[[float], float]) -> list[str]:
    label = row.label if len(row.label) <= 33 else f"{row.label[:32]}\u2026"
    parts = [_text(LEFT - 8, y + 4, label, "end")]
    if not math.isfinite(row.estimate):
        return [*parts, _text(place(0) + 6, y + 4, "unknown", "start", "limit-text")]
    if math.isfinite(row.lower) and math.isfinite(row.upper):
        parts.append(_line(place(row.lower), y, place(row.upper), y, row.kind))
    x = place(row.estimate)
    if row.kind == "of-release":
        return [*parts, f'<circle cx="{x:.1f}" cy="{y}" r="4" class="{row.kind}"/>']
    corners = f"{x:.1f},{y - 5} {x + 5:.1f},{y} {x:.1f},{y + 5} {x - 5:.1f},{y}"
    return [*parts, f'<polygon points="{corners}" class="{row.kind}"/>']


def draw_roc(curves: Sequence[Curve], *, description: str) -> str:
    """ROC curves whose false positives are on a logarithmic scale: the low end decides.

    Parameters
    ----------
    curves
        At most four are distinguished: solid for the first, then broken ever finer.
    description
        For those who do not see it.
    """
    left, top, right, bottom = 52, 12, WIDTH - 12, 232
    # Below one false claim in a thousand no sample here says anything.
    least = 0.001

    def at(false: float, true: float) -> str:
        share = math.log10(max(false, least) / least) / -math.log10(least)
        return f"{left + share * (right - left):.1f},{bottom - true * (bottom - top):.1f}"

    parts = [_line(left, bottom, right, bottom, "axis"), _line(left, top, left, bottom, "axis")]
    guess = " ".join(at(10 ** (-3 + 0.1 * k), 10 ** (-3 + 0.1 * k)) for k in range(31))
    parts.append(f'<polyline points="{guess}" class="zero"/>')
    for value, text in ((0.001, ".1 %"), (0.01, "1 %"), (0.1, "10 %"), (1.0, "100 %")):
        x = float(at(value, 0).split(",")[0])
        parts.append(_text(x, bottom + 16, text, "start" if value == least else "end"))
    for value in (0.0, 0.5, 1.0):
        y = float(at(least, value).split(",")[1])
        parts.append(_text(left - 6, y + 4, f"{100 * value:.0f} %", "end"))
    parts.append(_text((left + right) / 2, bottom + 32, "false positives", "middle"))
    for i, curve in enumerate(curves):
        points = zip(curve.false_positive, curve.true_positive, strict=True)
        line = " ".join(at(false, true) for false, true in points if false > 0)
        parts.append(f'<polyline points="{line}" class="{curve.kind} dash-{min(i, 3)}"/>')
        y = bottom + 52 + ROW * i
        parts.append(_line(left, y - 4, left + 28, y - 4, f"{curve.kind} dash-{min(i, 3)}"))
        parts.append(_text(left + 36, y, curve.label, "start"))
    return _wrap(parts, bottom + 52 + ROW * len(curves), description)


def _choose_ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers within a range."""
    step = next(
        s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0) if (high - low) / s <= 6 or s == 1.0
    )
    # Rounded: 3 * .1 is .30000000000000004.
    return [round(k * step, 10) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _wrap(parts: Sequence[str], height: float, description: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(description)}">'
        f"{''.join(parts)}</svg>"
    )
