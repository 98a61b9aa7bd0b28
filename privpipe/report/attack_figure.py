"""The figure of an audit by group: what several records of one group say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from privpipe.report.style import ThemeName, finish_figure, new_figure

if TYPE_CHECKING:
    import pandas as pd


def plot_group_curve(
    table: pd.DataFrame,
    *,
    allowed: float | None = None,
    title: str = "",
    theme: ThemeName = "light",
) -> Figure:
    """Advantage of who knows several records of one group, over their number, with limits.

    Parameters
    ----------
    table
        Rows of one variable of an attack report's table whose source is "groups".
    allowed, title, theme
        As `plot_points`; the largest advantage allowed is a line.
    """
    rows = table[(table["score"] == "accuracy") & (table["status"] == "measured")]
    names = [name.removeprefix("together_") for name in rows["adversary"]]
    value = rows["advantage"].to_numpy(float)
    reach = [
        np.maximum(value - rows["advantage_lower"].to_numpy(float), 0),
        np.maximum(rows["advantage_upper"].to_numpy(float) - value, 0),
    ]
    figure, axes, look = new_figure(theme, height=3.4)
    places = np.arange(len(names))
    axes.errorbar(
        places,
        value,
        yerr=np.vstack(reach),
        fmt="o-",
        color=look.series[0],
        capsize=2.5,
        label="release",
    )
    axes.axhline(0.0, color=look.faint, linestyle="--", linewidth=1, label="guessing")
    if allowed is not None:
        axes.axhline(allowed, color=look.limit, linewidth=1.4, label=f"allowed ({allowed:g})")
    axes.set_xticks(places, names)
    axes.set(xlabel="released records known to be of one group", ylabel="advantage")
    finish_figure(axes, look, title=title)
    return figure
