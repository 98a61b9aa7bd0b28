"""The picture of the figures of Xu et al.: complete privacy, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.reproduce.bars import BarPair, Estimate, plot_bar_panels
from flows.reproduce.result import Cell
from privpipe.report.style import ThemeName

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_complete_privacy(cells: Sequence[Cell], theme: ThemeName) -> Figure:
    """Complete privacy only: e_privacy spans ten orders of magnitude over the data sets."""
    pairs = [
        BarPair(
            cell.cell.split(", ", 1)[1].replace("complete privacy", "").rstrip(", "),
            Estimate(cell.ours, cell.lower, cell.upper),
            cell.paper,
        )
        for cell in cells
        if cell.unit == "percent"
    ]
    return plot_bar_panels(
        {"complete privacy, percent": pairs}, title="Complete privacy", theme=theme
    )
