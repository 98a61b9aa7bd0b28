"""How a filter was learned: Phi and losses over the rounds, and what is known of new records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from privpipe.protocols import FloatArray
from privpipe.report.figures import Series, plot_lines
from privpipe.report.pages.page import PageSection, Picture
from privpipe.report.style import THEMES, ThemeName
from privpipe.report.tables import format_number


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
        lines, x="rounds", y="loss / best constant guess", baseline=1.0, title=title, theme=theme
    )


STOPPED = {
    "iterations": "after the most iterations allowed",
    "progress": "where Phi hardly fell any more",
    "gradient": "where the gradient vanished",
    "held_out": "when Phi on held-out records had stopped falling",
    "line_search": "where no step lowered Phi",
    "inner": "where an inner problem was not solved: the best filter before it is released",
}


def list_training(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """Pictures of the descent, and a table of every task's loss at its start and end."""
    import pandas as pd  # slow to load

    found = findings.get("training")
    if not found:
        return
    history, columns = np.array(found["history"], np.float64), found["columns"]
    tasks, baselines = found["tasks"], np.array(found["baselines"])
    drawn = slice(0, len(THEMES["light"].series))  # no two series share a colour
    curves = (history, columns)
    phi = Picture(
        plot_phi(*curves, theme="light"), plot_phi(*curves, theme="dark"), "Phi over rounds."
    )
    chosen = (*curves, tasks[drawn], baselines[drawn])
    losses = Picture(
        plot_losses(*chosen, theme="light"),
        plot_losses(*chosen, theme="dark"),
        "Loss of every task over rounds, as a share of the best constant guess.",
    )
    at = {name: history[:, j] for j, name in enumerate(columns)}
    rows = [
        {
            "task": name,
            "loss at the start": format_number(at[f"loss_{name}"][0]),
            "at the end": format_number(at[f"loss_{name}"][-1]),
            "constant guess": "-" if name.startswith("loss:") else format_number(guess),
        }
        for name, guess in zip(tasks, baselines.tolist(), strict=True)
    ]
    text = (
        f"{len(history) - 1} iterations in {int(at['rounds'][-1])} rounds over the training "
        f"records; it stopped {STOPPED.get(found['stopped'], found['stopped'])}. A confidential "
        "loss at that of a constant guess says that the adversary trained against finds nothing."
        f"{_say_bound(found['bound'], at['phi'])}"
    )
    more = " Losses beyond the tenth stand in the table alone." if len(tasks) > drawn.stop else ""
    table = pd.DataFrame(rows)
    yield PageSection("How it was learned", text + more, (phi, losses), table, folded=True)


def _say_bound(bound: float | None, phi: Any) -> str:
    """What Hamm's Theorem 4 says of new records, and whether that is anything."""
    if bound is None:
        return ""
    gained = float(phi[0] - phi.min())
    said = f" On new records Phi is at most {format_number(bound)} nats higher in expectation"
    if bound >= gained:
        return (
            f"{said}: more than the {format_number(gained)} that training gained, so that this "
            "bound is vacuous; the audit judges on records that were held out."
        )
    return f"{said}, of the {format_number(gained)} that training gained."
