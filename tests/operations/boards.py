"""Grafana's boards, drawn from what Prometheus recorded as Grafana draws them by default.

Grafana itself is in no package registry that tests may ask. What is followed is what its manual
says of panels: series are lines with legends. A `stat` or `gauge` has the last value of each
series, beside it the name where there are several, or as `textMode` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.dates import ConciseDateFormatter

from tests.operations.deploy_words import DEPLOY

__all__ = ["BOARDS", "Drawn", "draw_board", "list_queries", "read_panel"]

BOARDS = sorted((DEPLOY / "grafana" / "boards").glob("*.json"))
Ask = Callable[..., list[dict[str, Any]]]
"""A query, and the span of it as `start`, `end` and `step`: series as Prometheus answers."""

COLUMNS, ROW_INCHES, WIDTH_INCHES = 24, 0.34, 15.0


@dataclass(frozen=True)
class Drawn:
    """A series of a panel: its legend, and its values in seconds since 1970."""

    legend: str
    times: np.ndarray
    values: np.ndarray


def list_queries(board: Mapping[str, Any], run: str) -> list[tuple[str, dict[str, Any]]]:
    """Titles of panels with their targets, of a run that is chosen above."""
    return [
        (panel["title"], target | {"expr": target["expr"].replace("$run", run)})
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def read_panel(
    panel: Mapping[str, Any], run: str, ask: Ask, span: tuple[float, float]
) -> list[Drawn]:
    """The series of a panel; of an instant target what is there at the end."""
    found = []
    for _, target in list_queries({"panels": [panel]}, run):
        step = max((span[1] - span[0]) / 500, 1.0)
        for one in ask(target["expr"], start=span[0], end=span[1], step=step):
            table = np.array([(float(time), float(value)) for time, value in one["values"]])
            if target.get("instant") and table[-1, 0] < span[1] - 1.5 * step:
                continue
            labels = one["metric"]
            legend = re.sub(
                r"\{\{(\w+)\}\}",
                lambda name, of=labels: of.get(name[1], ""),
                target["legendFormat"],
            )
            found.append(Drawn(legend, *table.T))
    return found


def write_value(value: float, unit: str) -> str:
    """With the unit, as `s`, `bytes`, `percentunit` and `short` are written."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "s":
        for size, name in ((86_400, "days"), (3_600, "hours"), (60, "min")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.3g} s"
    if unit == "bytes":
        return f"{value / 2**20:.3g} MiB" if value >= 2**20 else f"{value / 2**10:.3g} KiB"
    return f"{value:,.4g}"


def list_words(panel: Mapping[str, Any], series: list[Drawn]) -> list[tuple[str, str]]:
    """Value and name of each series of a `stat` or `gauge`; empty where it is not shown."""
    mode = panel.get("options", {}).get("textMode", "auto")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    named = mode in ("name", "value_and_name") or (mode == "auto" and len(series) > 1)
    return [
        ("" if mode == "name" else write_value(one.values[-1], unit), one.legend if named else "")
        for one in series
    ]


def draw_board(path: Path, run: str, ask: Ask, span: tuple[float, float], out: Path) -> list[str]:
    """Draw a board in its grid.

    Returns
    -------
    Titles of panels, each with the legend of a target, that have nothing to show.
    """
    board = json.loads(path.read_text())
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(WIDTH_INCHES, ROW_INCHES * (height + 1)))
    figure.suptitle(board["title"], fontsize=10)
    for panel in board["panels"]:
        at = panel["gridPos"]
        left, top = at["x"] / COLUMNS, 1 - (at["y"] + 1) / (height + 1)
        box = (
            left + 0.03,
            top - at["h"] / (height + 1) + 0.03,
            at["w"] / COLUMNS - 0.045,
            at["h"] / (height + 1) - 0.065,
        )
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], fontsize=8, loc="left", pad=2)
        series = read_panel(panel, run, ask, span)
        if panel["type"] == "timeseries":
            draw_lines(axes, panel, series, span)
        else:
            draw_words(axes, list_words(panel, series))
    figure.savefig(out, dpi=90)
    plt.close(figure)
    return [
        f"{panel['title']}: {target['legendFormat']}"
        for panel in board["panels"]
        for target in panel["targets"]
        if not read_panel({"title": "", "targets": [target]}, run, ask, span)
    ]


def draw_lines(
    axes: Any, panel: Mapping[str, Any], series: list[Drawn], span: tuple[float, float]
) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for one in series:
        dates = [datetime.fromtimestamp(float(time), UTC) for time in one.times]
        mark = "." if len(dates) < 3 else None
        axes.plot(dates, one.values, lw=1.1, label=one.legend, marker=mark, clip_on=False)
    axes.set_xlim(*(datetime.fromtimestamp(time, UTC) for time in span))
    axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
    axes.yaxis.set_major_formatter(lambda value, _: write_value(value, unit))
    axes.tick_params(labelsize=6)
    axes.grid(lw=0.2)
    axes.set_ylim(bottom=0)
    if series:
        axes.legend(fontsize=6, loc="upper left", ncols=2, framealpha=0.6)


def draw_words(axes: Any, words: list[tuple[str, str]]) -> None:
    axes.set_axis_off()
    for number, (value, name) in enumerate(words):
        x = (number + 0.5) / len(words)
        axes.text(x, 0.6, value or name, ha="center", fontsize=16 if len(words) < 4 else 11)
        if value and name:
            axes.text(x, 0.2, name, ha="center", fontsize=7)
