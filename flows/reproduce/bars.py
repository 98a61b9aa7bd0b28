"""Bars of ours beside a paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from privpipe.report.style import Theme, ThemeName, finish_figure, theme_panels


@dataclass(frozen=True)
class Estimate:
    """A value with its limits; without limits both are the value."""

    value: float
    lower: float = float("nan")
    upper: float = float("nan")

    @property
    def margin(self) -> tuple[float, float]:
        """Distances to the lower and the upper limit, 0 where there is none."""
        down, up = self.value - self.lower, self.upper - self.value
        return max(0.0, np.nan_to_num(down)), max(0.0, np.nan_to_num(up))


@dataclass(frozen=True)
class BarPair:
    """Our value beside a paper's; the paper's is None where it gives none."""

    label: str
    ours: Estimate
    paper: float | None


def plot_bar_panels(
    pairs: Mapping[str, Sequence[BarPair]], *, title: str = "", theme: ThemeName = "light"
) -> Figure:
    """Our bars beside a paper's, a panel for each unit: no axis carries two.

    Parameters
    ----------
    pairs
        By the label of the values, with their unit.
    title
        Of the figure.
    theme
        "light" or "dark".
    """
    most = max(map(len, pairs.values()))
    with theme_panels(theme) as look:
        figure = Figure(
            figsize=(max(4.8, 1.1 + 0.75 * most), 4.2 * len(pairs)),
            layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
        )
        panels = figure.subplots(len(pairs), 1, squeeze=False)[:, 0]
    for number, (axes, (y, some)) in enumerate(zip(panels, pairs.items(), strict=True)):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, axis="y", linewidth=0.5, alpha=0.35, color=look.faint)
        axes.set_axisbelow(True)
        _draw_bars(axes, some, look)
        axes.set(ylabel=y)
        finish_figure(axes, look, title="" if number else title)
    return figure


def _draw_bars(axes: Any, pairs: Sequence[BarPair], look: Theme) -> None:
    place = np.arange(len(pairs))
    margin = np.array([pair.ours.margin for pair in pairs]).T
    axes.bar(
        place - 0.2,
        [pair.ours.value for pair in pairs],
        0.38,
        color=look.series[0],
        yerr=margin,
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
