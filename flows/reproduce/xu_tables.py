"""Figures 4, 6 and 7 of Xu et al. 2017 as reproductions: cells, notes and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.reproduce.result import Cell, Reproduction, compare_cell
from flows.reproduce.xu import reproduce_xu_fig4, reproduce_xu_fig6, reproduce_xu_fig7
from flows.reproduce.xu_figures import NOTES, XuCell
from privpipe.report.figures import BarPair, Estimate, plot_bars
from privpipe.report.style import ThemeName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["reproduce_fig4", "reproduce_fig6", "reproduce_fig7"]


def reproduce_fig4(data: Path, runs: int) -> Reproduction:
    """Figure 4: both algorithms without attack; see `reproduce_xu_fig4`."""
    return _present(reproduce_xu_fig4(data, runs))


def reproduce_fig6(data: Path, runs: int) -> Reproduction:
    """Figure 6: both algorithms with the attack; see `reproduce_xu_fig6`."""
    return _present(reproduce_xu_fig6(data, runs))


def reproduce_fig7(data: Path, runs: int) -> Reproduction:
    """Figure 7: Laplace noise at equal utility; see `reproduce_xu_fig7`."""
    return _present(reproduce_xu_fig7(data, runs))


def _present(found: Sequence[XuCell]) -> Reproduction:
    cells = tuple(
        compare_cell(
            cell.cell,
            cell.runs,
            paper=cell.paper,
            tolerance=cell.tolerance,
            unit=cell.unit,
            note=cell.note,
        )
        for cell in found
    )
    return Reproduction(cells=cells, notes=NOTES, picture=partial(_draw, cells))


def _draw(cells: Sequence[Cell], theme: ThemeName) -> Figure:
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
    return plot_bars(pairs, y="complete privacy, percent", title="Complete privacy", theme=theme)
