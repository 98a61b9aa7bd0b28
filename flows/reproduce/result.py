"""What a reproduction returns: our numbers beside a paper's, a verdict for each, a figure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from flows.reproduce.bars import BarPair, Estimate, plot_bar_panels
from privpipe.report.style import ThemeName

if TYPE_CHECKING:
    import pandas as pd

CellVerdict = Literal["agrees", "better", "differs", "not compared"]

CELL_SCHEMA = {
    "cell": ("str", "row and column of the paper's table, or the point of its figure"),
    "unit": ("str", "unit of the value"),
    "ours": ("float64", "mean over our runs"),
    "lower": ("float64", "lower limit of that mean, 95 per cent; NaN with one run"),
    "upper": ("float64", "upper limit of that mean"),
    "n_runs": ("int64", "runs averaged"),
    "paper": ("float64", "the paper's value; NaN where it gives none"),
    "tolerance": ("float64", "difference within which the values agree, same unit"),
    "verdict": ("str", "agrees, better, differs or not compared"),
    "note": ("str", "what explains a difference, or why nothing is compared"),
}
"""Columns of `Reproduction.table`: dtype and meaning."""


@dataclass(frozen=True)
class Cell:
    """One number of a paper and ours; fields as in `CELL_SCHEMA`."""

    cell: str
    unit: str
    ours: float
    lower: float
    upper: float
    n_runs: int
    paper: float | None
    tolerance: float
    verdict: CellVerdict
    note: str = ""


def compare_cell(
    cell: str,
    runs: Sequence[float],
    *,
    paper: float | None,
    tolerance: float,
    unit: str = "",
    better: Literal["higher", "lower", "neither"] = "neither",
    note: str = "",
) -> Cell:
    """Hold the mean of our runs against a paper's number.

    The values agree when they differ by no more than `tolerance`, and by nothing else: the
    interval of our mean is shown beside it and excuses no difference. Beyond that ours is "better"
    where a direction is good, and "differs" otherwise.

    Parameters
    ----------
    cell
        Which number.
    runs
        Our value of each run.
    paper
        The paper's value; None where it gives none.
    tolerance
        In the unit of the value: half a digit of a printed table, the width of a line of a
        figure read off.
    unit
        Unit of the value.
    better
        Which direction is good.
    note
        What a reader should know.

    Examples
    --------
    >>> compare_cell("GENKI gender", [0.89, 0.90], paper=0.90, tolerance=0.01).verdict
    'agrees'
    """
    values = np.asarray(runs, np.float64)
    mean, n = float(values.mean()), len(values)
    margin = math.nan
    if n > 1:
        margin = float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Cell(
        cell=cell,
        unit=unit,
        ours=mean,
        lower=mean - margin,
        upper=mean + margin,
        n_runs=n,
        paper=paper,
        tolerance=tolerance,
        verdict=_judge(mean, paper, tolerance, better),
        note=note,
    )


def _judge(mean: float, paper: float | None, tolerance: float, better: str) -> CellVerdict:
    if paper is None:
        return "not compared"
    difference = mean - paper
    if not math.isfinite(difference):
        return "differs"
    # A hair for rounding, so that .90 against .89 agrees at a tolerance of .01.
    if abs(difference) <= tolerance + 1e-12:
        return "agrees"
    sign = {"higher": 1, "lower": -1, "neither": 0}[better]
    return "better" if sign * difference > 0 else "differs"


@dataclass(frozen=True)
class Reproduction:
    """A paper's figure or table, done again.

    Parameters
    ----------
    cells
        The numbers.
    notes
        Departures from the paper and what could not be matched.
    picture
        Draws the figure in a theme; bars of ours beside the paper's when not given.
    curves
        Points of the figure by name: numbers, strings, lists and dictionaries of them.
    name, title, paper, seconds
        Name on the command line, what it shows, where it is from and the time it took; the
        registry fills them in.
    """

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    picture: Callable[[ThemeName], Figure] | None = None
    curves: Mapping[str, object] = field(default_factory=dict)
    name: str = ""
    title: str = ""
    paper: str = ""
    seconds: float = math.nan

    @property
    def table(self) -> pd.DataFrame:
        """One row per cell, columns as `CELL_SCHEMA`."""
        import pandas as pd  # slow to load

        frame = pd.DataFrame([asdict(cell) for cell in self.cells], columns=list(CELL_SCHEMA))
        return frame.astype({name: dtype for name, (dtype, _) in CELL_SCHEMA.items()})

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells of each verdict."""
        return dict(Counter(cell.verdict for cell in self.cells))

    def figure(self, theme: ThemeName = "light") -> Figure:
        """The figure, ours beside the paper's."""
        if self.picture is not None:
            return self.picture(theme)
        by_unit: dict[str, list[BarPair]] = {}
        for cell in self.cells:
            ours = Estimate(cell.ours, cell.lower, cell.upper)
            by_unit.setdefault(cell.unit, []).append(BarPair(cell.cell, ours, cell.paper))
        return plot_bar_panels(by_unit, title=self.title, theme=theme)

    def to_json(self) -> str:
        """Name, paper, cells, verdict counts, curves and notes as JSON; null for what is not."""
        document = {
            "name": self.name,
            "title": self.title,
            "paper": self.paper,
            "seconds": _or_none(self.seconds),
            "verdicts": self.counts,
            "notes": list(self.notes),
            "curves": dict(self.curves),
            "cells": [
                {key: _or_none(value) for key, value in asdict(cell).items()} for cell in self.cells
            ],
        }
        return json.dumps(document, allow_nan=False, indent=1)


def _or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
