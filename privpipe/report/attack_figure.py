"""The figure of an audit by attack: what every adversary found, against what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from privpipe.errors import InputError
from privpipe.report.style import MARKERS, Theme, ThemeName, finish_figure, new_figure

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["plot_attacks", "plot_group_curve"]

_SOURCES = {"released": "release", "raw": "raw records", "noise": "noise of equal utility"}


def plot_attacks(
    table: pd.DataFrame,
    *,
    allowed: float | None = None,
    title: str = "",
    theme: ThemeName = "light",
) -> Figure:
    """Advantage of every adversary on every source, with limits, for one confidential variable.

    Parameters
    ----------
    table
        Rows of one variable of an attack report's table; of each attack the row with the
        largest upper limit is drawn, an attack that is unknown as a cross.
    allowed
        Largest advantage allowed, drawn as a line.
    title, theme
        As `plot_points`.

    Raises
    ------
    InputError
        If the table has no rows or speaks of several variables.
    """
    if table["target"].nunique() != 1:
        raise InputError(
            f"The table speaks of {table['target'].nunique()} confidential variables.",
            remedy="Give the rows of one.",
        )
    # Sets of records have a curve of their own.
    table = table[~table["source"].isin(("groups", "raw groups"))]
    names = list(dict.fromkeys(table["adversary"]))
    sources = list(dict.fromkeys(table["source"]))
    figure, axes, look = new_figure(theme, height=1.4 + 0.42 * len(names))
    for i, source in enumerate(sources):
        rows = _strongest_rows(table[table["source"] == source])
        place = [names.index(n) + (i - (len(sources) - 1) / 2) * 0.22 for n in rows["adversary"]]
        _plot_advantages(axes, look, rows, place, i, _SOURCES.get(source, source))
    axes.axvline(0.0, color=look.faint, linestyle="--", linewidth=1, label="guessing")
    if allowed is not None:
        axes.axvline(allowed, color=look.limit, linewidth=1.4, label=f"allowed ({allowed:g})")
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.set(xlabel="advantage: 0 is guessing, 1 is knowing")
    finish_figure(axes, look, title=title)
    return figure


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
        As `plot_attacks`.
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


def _strongest_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each adversary the row with the largest upper limit; rmse repeats r2."""
    shown = rows[rows["score"].isin(["accuracy", "auc", "r2", ""])]
    ranked = shown.sort_values("advantage_upper", ascending=False, na_position="last")
    return ranked.drop_duplicates("adversary")


def _plot_advantages(
    axes: Any, look: Theme, rows: pd.DataFrame, place: list[float], i: int, label: str
) -> None:
    value = rows["advantage"].to_numpy(float)
    up = np.maximum(rows["advantage_upper"].to_numpy(float) - value, 0)
    known = np.isfinite(value)
    y, color = np.array(place), look.series[i % len(look.series)]
    axes.errorbar(
        value[known],
        y[known],
        xerr=np.vstack([np.zeros(known.sum()), up[known]]),
        fmt=MARKERS[i % len(MARKERS)],
        color=color,
        markersize=6,
        capsize=2.5,
        elinewidth=1.2,
        label=label,
    )
    if not known.all():
        axes.plot(np.zeros((~known).sum()), y[~known], "x", color=look.limit, label="unknown")
