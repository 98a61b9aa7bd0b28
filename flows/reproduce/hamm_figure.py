"""The papers' accuracy plot: target against private accuracy, one mark per filter and width."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("agg", force=False)
from matplotlib.figure import Figure

from flows.reproduce.hamm import Reproduction

__all__ = ["draw_accuracies", "tabulate_accuracies"]

MARKS = {
    "raw": ("k", "*"),
    "rand": ("tab:gray", "v"),
    "pca": ("tab:brown", "s"),
    "ppls": ("tab:orange", "D"),
    "ddd": ("tab:pink", "P"),
    "privacy_lds": ("tab:green", "^"),
    "least_squares": ("tab:olive", "<"),
    "minimax_1": ("tab:blue", "o"),
    "minimax_2": ("tab:red", "X"),
}


def draw_accuracies(found: Reproduction, path: str | Path, *, adversary: str = "logistic") -> None:
    """Write the plot as PNG: private accuracy to the right, target accuracy up, limits as bars.

    Dotted lines are level sets of their difference, as in the paper; numbers are widths.
    """
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for name, (colour, mark) in MARKS.items():
        pairs = [
            (r, found.find(name, r.n_filtered, "target", adversary))
            for r in found.results
            if (r.filter_name, r.task, r.adversary) == (name, "private", adversary)
        ]
        for i, (private, target) in enumerate(pairs):
            axes.errorbar(
                private.mean,
                target.mean,
                xerr=[[private.mean - private.lower], [private.upper - private.mean]],
                yerr=[[target.mean - target.lower], [target.upper - target.mean]],
                fmt=mark,
                color=colour,
                elinewidth=0.6,
                label=name if i == 0 else None,
            )
            axes.annotate(
                str(private.n_filtered),
                (private.mean, target.mean),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
                color=colour,
            )
    axes.axvline(found.chance[1], color="0.6", linewidth=0.8)
    for step in range(-10, 11):
        axes.axline((0, step / 10), slope=1, color="0.85", linewidth=0.6, linestyle=":", zorder=0)
    shown = [r for r in found.results if r.adversary == adversary]
    lowest = min(r.mean for r in shown if r.task == "target")
    axes.set(
        xlabel=f"private accuracy ({adversary} adversary; line: chance)",
        ylabel="target accuracy",
        xlim=(max(0.0, min(r.mean for r in shown if r.task == "private") - 0.1), 1),
        ylim=(max(0.0, lowest - 0.1), 1),
        title=f"{found.name}: upper left is best",
    )
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


def tabulate_accuracies(found: Reproduction) -> str:
    """Our accuracies by filter, width and adversary, the paper's beside them, as plain text."""
    adversaries = list(dict.fromkeys(r.adversary for r in found.results))
    head = f"{'filter':14}{'d':>4}  " + "".join(f"{a:>24}" for a in adversaries) + "   paper"
    lines = [f"{found.name}: target / private accuracy, {found.n_trials} trials", head]
    widths = dict.fromkeys((r.filter_name, r.n_filtered) for r in found.results)
    for name, width in widths:
        cells = ""
        for adversary in adversaries:
            target = found.find(name, width, "target", adversary)
            private = found.find(name, width, "private", adversary)
            half = (private.upper - private.lower) / 2
            cells += f"{target.mean:10.3f} /{private.mean:6.3f} ±{half:.3f}"
        paper = [p for p in found.paper if (p.filter_name, p.n_filtered) == (name, width)]
        beside = f"   {paper[0].target:.3f} / {paper[0].private:.3f}" if paper else ""
        lines.append(f"{name:14}{width:>4}  {cells}{beside}")
    elsewhere = [p for p in found.paper if (p.filter_name, p.n_filtered) not in widths]
    lines += [
        f"{p.filter_name:14}{'':>4}  {p.target:10.3f} /{p.private:6.3f}   {p.source}"
        for p in elsewhere
    ]
    lines.append(f"{'chance':14}{'':>4}  {found.chance[0]:10.3f} /{found.chance[1]:6.3f}")
    return "\n".join(lines) + "\n"
