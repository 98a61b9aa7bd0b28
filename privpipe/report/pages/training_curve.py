"""How a filter was learned: Phi, and the losses of its tasks, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from privpipe.protocols import FloatArray
from privpipe.report.figures import Series, plot_lines
from privpipe.report.style import ThemeName


def plot_phi(
    history: FloatArray, columns: Sequence[str], *, title: str = "", theme: ThemeName = "light"
) -> Figure:
    """Phi over rounds, on training records and, where there are any, on held-out ones.

    Parameters
    ----------
    history : (n_iterations, n_columns)
        As a minimax filter keeps it.
    columns
        Names of the columns of `history`.
    title, theme
        As `plot_points`.
    """
    at = {name: history[:, j] for j, name in enumerate(columns)}
    lines = [Series("training records", at["rounds"], at["phi"])]
    if "held_out_phi" in at:
        lines.append(Series("held-out records", at["rounds"], at["held_out_phi"]))
    return plot_lines(lines, x="rounds", y="Phi (nats)", title=title, theme=theme)


def plot_losses(
    history: FloatArray,
    columns: Sequence[str],
    task_names: Sequence[str],
    baselines: FloatArray,
    *,
    title: str = "",
    theme: ThemeName = "light",
) -> Figure:
    """Each task's loss as a share of the best constant guess, over rounds.

    A private loss at 1 says that the trained adversary does no better than guessing; a target's
    loss should be far below.

    Parameters
    ----------
    history, columns
        As `plot_phi`.
    task_names
        Tasks in the order of `baselines`; their losses are the columns ``loss_<task>``.
    baselines : (n_tasks,)
        Entropy of the classes in nats, or 1 for a number.
    title, theme
        As `plot_points`.
    """
    at = {name: history[:, j] for j, name in enumerate(columns)}
    lines = [
        Series(name, at["rounds"], at[f"loss_{name}"] / baseline)
        for name, baseline in zip(task_names, baselines, strict=True)
    ]
    return plot_lines(
        lines,
        x="rounds",
        y="loss / best constant guess",
        baseline=1.0,
        title=title,
        theme=theme,
    )
