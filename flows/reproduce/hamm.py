"""Hamm, JMLR 2017, figures 4 and 6: filters on faces (GENKI) and on motion (HAR)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from flows.reproduce.hamm_accuracies import Accuracies, measure_genki, measure_har
from flows.reproduce.result import Reproduction, compare_cell
from privpipe.report.figures import Estimate, Point, plot_points
from privpipe.report.style import ThemeName

__all__ = ["plot_accuracies", "present_accuracies", "reproduce_genki", "reproduce_har"]

NOTES = (
    "The paper prints accuracies of the raw records only; its filters are marks in a figure.",
    "Adversaries choose settings on a quarter of the training records, then train on all.",
    '"papers" is the original authors\' adversary: no intercept, ridge 1e-6, fifty BFGS steps.',
    "HAR: neighbouring windows of a run overlap by half, so that random halves share "
    "measurements; the paper's split, kept here, flatters every accuracy.",
    "Linear filters wider than the targets need hide from linear adversaries only.",
)


def reproduce_genki(data: Path, runs: int) -> Reproduction:
    """Figure 4: hide gender, keep expression, at widths 10 to 100."""
    return present_accuracies(measure_genki(data, n_trials=runs))


def reproduce_har(data: Path, runs: int) -> Reproduction:
    """Figure 6: hide who moves, keep how; run k draws its subjects with seed k."""
    return present_accuracies(measure_har(data, seeds=range(runs)))


def present_accuracies(found: Accuracies) -> Reproduction:
    """Cells of every accuracy, compared where the paper or its code has a number."""
    cells = []
    for r in found.results:
        paper = [
            p
            for p in found.paper
            if (p.filter_name, p.n_filtered) == (r.filter_name, r.n_filtered)
            and r.adversary == p.adversary
        ]
        number = getattr(paper[0], r.task) if paper else None
        cells.append(
            compare_cell(
                f"{r.filter_name} {r.n_filtered} {r.task} {r.adversary}",
                r.accuracies,
                paper=number,
                tolerance=0.03 if found.n_test < 1000 else 0.02,
                unit="accuracy",
                better="lower" if r.task == "private" and r.filter_name != "raw" else "higher",
                note=paper[0].source if paper else "",
            )
        )
    stored = (
        f"{p.filter_name}: {p.target:.3f} / {p.private:.3f}, {p.source}."
        for p in found.paper
        if p.n_filtered == 0
    )
    return Reproduction(
        cells=tuple(cells),
        notes=(
            *NOTES,
            f"Guessing the commonest class: {found.chance[0]:.3f} / {found.chance[1]:.3f}.",
            *stored,
        ),
        picture=partial(plot_accuracies, found),
    )


def plot_accuracies(found: Accuracies, theme: ThemeName, *, adversary: str = "logistic") -> Figure:
    """The papers' plot: private accuracy to the right, target accuracy up, a mark per release."""
    points = [
        Point(
            f"{r.filter_name} {r.n_filtered}",
            _estimate(found, r.filter_name, r.n_filtered, "target", adversary),
            _estimate(found, r.filter_name, r.n_filtered, "private", adversary),
        )
        for r in found.results
        if (r.task, r.adversary) == ("private", adversary)
    ]
    return plot_points(
        points,
        utility_baseline=found.chance[0],
        confidential_baseline=found.chance[1],
        utility="target accuracy",
        confidential=f"private accuracy, {adversary} adversary",
        title=found.name,
        theme=theme,
    )


def _estimate(found: Accuracies, name: str, width: int, task: str, adversary: str) -> Estimate:
    r = found.find(name, width, task, adversary)
    return Estimate(r.mean, r.lower, r.upper)
