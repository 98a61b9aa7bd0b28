"""Information against distortion: what is promised, what is counted, what nobody can undercut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from privpipe.report.figures import Line, plot_lines
from privpipe.report.style import ThemeName

_LINES = {
    "upper_bound": "upper confidence bound",
    "plug_in": "on the fitted counts",
    "lower_bound": "certificate: no mapping has less",
    "exponential": "exponential mechanism, on the counts",
    "identity": "records as they are, on the counts",
}


def plot_tradeoff(
    points: Sequence[Mapping[str, float]], *, title: str = "", theme: ThemeName = "light"
) -> Figure:
    """The curve of a privacy mapping beside the exponential mechanism and the identity.

    Parameters
    ----------
    points
        Numbers by name, by ascending distortion budget.
    title, theme
        As `plot_points`.
    """
    lines = []
    for name, label in _LINES.items():
        known = [point for point in points if name in point]
        if known:
            x = np.array([point["distortion_budget"] for point in known])
            lines.append(Line(label, x, np.array([point[name] for point in known])))
    return plot_lines(
        lines,
        x="mean distortion",
        y="information on the private value (nats)",
        title=title,
        theme=theme,
    )
