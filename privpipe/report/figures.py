"""The figures: utility against privacy, ROC curves, trade-offs, bars beside a paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from privpipe.errors import InputError
from privpipe.protocols import FloatArray
from privpipe.report.style import MARKERS, Theme, ThemeName, finish_figure, new_figure, theme_panels


@dataclass(frozen=True)
class Estimate:
    """A value with its limits; without limits both are the value."""

    value: float
    lower: float = float("nan")
    upper: float = float("nan")

    @property
    def reach(self) -> tuple[float, float]:
        """Distances to the lower and the upper limit, 0 where there is none."""
        down, up = self.value - self.lower, self.upper - self.value
        return max(0.0, np.nan_to_num(down)), max(0.0, np.nan_to_num(up))


@dataclass(frozen=True)
class Point:
    """One release in the plane of utility and privacy."""

    label: str
    utility: Estimate
    confidential: Estimate


@dataclass(frozen=True, eq=False)
class Series:
    """A series over a scale; limits are optional, (n_points,) each."""

    label: str
    x: FloatArray
    y: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None


@dataclass(frozen=True)
class BarPair:
    """Our value beside a paper's; the paper's is None where it gives none."""

    label: str
    ours: Estimate
    paper: float | None


def plot_points(
    points: Sequence[Point],
    *,
    utility_baseline: float,
    confidential_baseline: float,
    utility: str = "desired variable, accuracy",
    confidential: str = "confidential variable, accuracy of the strongest adversary",
    title: str = "",
    theme: ThemeName = "light",
) -> Figure:
    """Utility against what adversaries find, with limits and the lines of guessing.

    The best corner is at the upper left: useful, and nothing found. Dotted lines show equal
    differences, as in Hamm 2017, Figure 4.

    Parameters
    ----------
    points
        One per release; raw records and noise are points like any other.
    utility_baseline, confidential_baseline
        What a guess reaches, drawn as dashed lines.
    utility, confidential, title
        Labels of the axes and of the figure.
    theme
        "light" or "dark".

    Raises
    ------
    InputError
        If there are no points.
    """
    _check_some(points, "points")
    figure, axes, look = new_figure(theme)
    for i, point in enumerate(points):
        axes.errorbar(
            point.confidential.value,
            point.utility.value,
            xerr=np.array(point.confidential.reach)[:, None],
            yerr=np.array(point.utility.reach)[:, None],
            fmt=MARKERS[i % len(MARKERS)],
            color=look.series[i % len(look.series)],
            markersize=7,
            capsize=2.5,
            elinewidth=1,
            label=point.label,
        )
    axes.axhline(utility_baseline, color=look.faint, linestyle="--", linewidth=1)
    axes.axvline(confidential_baseline, color=look.faint, linestyle="--", linewidth=1)
    _annotate_baselines(axes, look, utility_baseline, confidential_baseline)
    _add_level_sets(axes, look)
    axes.set(xlabel=confidential, ylabel=utility)
    finish_figure(axes, look, title=title)
    return figure


def plot_lines(
    lines: Sequence[Series],
    *,
    x: str,
    y: str,
    baseline: float | None = None,
    log_x: bool = False,
    title: str = "",
    theme: ThemeName = "light",
) -> Figure:
    """A trade-off curve: one or several series over a budget, with bands for their limits.

    Parameters
    ----------
    lines
        The series, each with at least one point.
    x, y
        Labels of the axes.
    baseline
        What a guess reaches, drawn as a dashed line.
    log_x
        Whether the scale is logarithmic; a point at 0 is then drawn at the left edge.
    title, theme
        As `plot_points`.
    """
    _check_some(lines, "lines")
    figure, axes, look = new_figure(theme)
    if log_x:
        positive = np.concatenate([line.x[line.x > 0] for line in lines])
        axes.set_xscale("symlog", linthresh=float(positive.min(initial=1.0)), linscale=0.5)
    for i, line in enumerate(lines):
        color = look.series[i % len(look.series)]
        axes.plot(
            line.x,
            line.y,
            color=color,
            marker=MARKERS[i % len(MARKERS)],
            linestyle=_dashes(i),
            markersize=5.5,
            label=line.label,
        )
        if line.lower is not None and line.upper is not None:
            axes.fill_between(line.x, line.lower, line.upper, color=color, alpha=0.18, linewidth=0)
    if baseline is not None:
        axes.axhline(baseline, color=look.faint, linestyle="--", linewidth=1, label="guessing")
    axes.set(xlabel=x, ylabel=y)
    finish_figure(axes, look, title=title)
    return figure


def plot_bar_panels(
    pairs: Mapping[str, Sequence[BarPair]], *, title: str = "", theme: ThemeName = "light"
) -> Figure:
    """Our bars beside a paper's, a panel for each unit: no axis carries two.

    Parameters
    ----------
    pairs
        By the label of the values, with their unit.
    title, theme
        As `plot_points`.
    """
    _check_some(pairs, "pairs")
    most = max(map(len, pairs.values()))
    with theme_panels(theme) as look:
        figure = Figure(
            figsize=(max(4.8, 1.1 + 0.75 * most), 4.2 * len(pairs)),
            layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
        )
        panels = figure.subplots(len(pairs), 1, squeeze=False)[:, 0]
    for number, (axes, (y, some)) in enumerate(zip(panels, pairs.items(), strict=True)):
        _check_some(some, "pairs")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, axis="y", linewidth=0.5, alpha=0.35, color=look.faint)
        axes.set_axisbelow(True)
        _draw_bars(axes, some, look)
        axes.set(ylabel=y)
        finish_figure(axes, look, title="" if number else title)
    return figure


def _draw_bars(axes: Any, pairs: Sequence[BarPair], look: Theme) -> None:
    place = np.arange(len(pairs))
    reach = np.array([pair.ours.reach for pair in pairs]).T
    axes.bar(
        place - 0.2,
        [pair.ours.value for pair in pairs],
        0.38,
        color=look.series[0],
        yerr=reach,
        error_kw={"ecolor": look.text, "capsize": 2.5, "elinewidth": 1},
        label="ours",
    )
    stated = [(i, pair.paper) for i, pair in enumerate(pairs) if pair.paper is not None]
    axes.bar(
        [i + 0.2 for i, _ in stated],
        [value for _, value in stated],
        0.38,
        color="none",
        edgecolor=look.series[1],
        hatch="////",
        linewidth=1.2,
        label="paper" if stated else None,  # else the legend shows a bar that is not there
    )
    labels = [pair.label for pair in pairs]
    steep = max(map(len, labels)) > 10
    axes.set_xticks(place, labels, rotation=35 if steep else 0, ha="right" if steep else "center")


def _annotate_baselines(axes: Any, look: Theme, utility: float, confidential: float) -> None:
    small = {"color": look.faint, "fontsize": 8}
    axes.annotate(
        "guessing", (1, utility), xycoords=("axes fraction", "data"), xytext=(-3, 3),
        textcoords="offset points", ha="right", **small,
    )  # fmt: skip
    axes.annotate(
        "guessing", (confidential, 0), xycoords=("data", "axes fraction"), xytext=(5, 4),
        textcoords="offset points", rotation=90, va="bottom", **small,
    )  # fmt: skip


def _add_level_sets(axes: Any, look: Theme) -> None:
    """Lines of equal utility less confidential accuracy, within the limits as they are."""
    x_ends, y_ends = np.array(axes.get_xlim()), np.array(axes.get_ylim())
    for difference in np.arange(-1.0, 1.01, 0.1):
        axes.plot(x_ends, x_ends + difference, ":", color=look.faint, linewidth=0.6, zorder=0)
    axes.set(xlim=x_ends, ylim=y_ends)


def _dashes(i: int) -> str:
    return ("-", "--", "-.", ":")[(i // 7) % 4]


def _check_some(values: Sequence[Any] | Mapping[str, Any], name: str) -> None:
    if len(values) == 0:
        raise InputError(f"{name} is empty: there is nothing to draw.", remedy="Give at least one.")
