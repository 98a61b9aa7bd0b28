"""How a filter was learned: Phi and losses over the rounds, and what is known of new records."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from privpipe.protocols import FloatArray
from privpipe.report.page import PageSection, Picture
from privpipe.report.style import MARKERS, THEMES, ThemeName, draw_themes, finish_figure, new_figure
from privpipe.report.tables import format_number


def plot_phi(history: FloatArray, columns: Sequence[str], *, theme: ThemeName = "light") -> Figure:
    """Phi over rounds, on training records and, where there are any, on held-out ones.

    Parameters
    ----------
    history : (n_iterations, n_columns)
        As a minimax filter stores it.
    columns
        Names of the columns of `history`.
    theme
        "light" or "dark".
    """
    names = {"phi": "training records", "held_out_phi": "held-out records"}
    at = {name: history[:, j] for j, name in enumerate(columns)}
    values = {label: at[name] for name, label in names.items() if name in at}
    return _plot_rounds(at["rounds"], values, "Phi (nats)", theme)


def plot_losses(
    history: FloatArray,
    columns: Sequence[str],
    task_names: Sequence[str],
    baselines: FloatArray,
    *,
    theme: ThemeName = "light",
) -> Figure:
    """Each task's loss as a share of the best constant guess, over rounds.

    A private loss at 1 says that the trained adversary does no better than guessing; a target's
    loss should be far below.

    Parameters
    ----------
    history, columns, theme
        As `plot_phi`.
    task_names
        Tasks in the order of `baselines`; their losses are the columns ``loss_<task>``.
    baselines : (n_tasks,)
        Entropy of the classes in nats, or 1 for a number.
    """
    at = {name: history[:, j] for j, name in enumerate(columns)}
    values = {
        name: at[f"loss_{name}"] / guess for name, guess in zip(task_names, baselines, strict=True)
    }
    return _plot_rounds(at["rounds"], values, "loss / best constant guess", theme, guess=1.0)


def _plot_rounds(
    rounds: FloatArray,
    values: Mapping[str, FloatArray],
    label: str,
    theme: ThemeName,
    guess: float | None = None,
) -> Figure:
    figure, axes, look = new_figure(theme)
    for color, marker, (name, series) in zip(look.series, MARKERS, values.items(), strict=False):
        axes.plot(rounds, series, color=color, marker=marker, markersize=5.5, label=name)
    if guess is not None:
        axes.axhline(guess, color=look.faint, linestyle="--", linewidth=1, label="guessing")
    axes.set(xlabel="rounds", ylabel=label)
    finish_figure(axes, look)
    return figure


STOPPED = {
    "iterations": "after the most iterations allowed",
    "progress": "where Phi hardly fell any more",
    "gradient": "where the gradient vanished",
    "held_out": "when Phi on held-out records had stopped falling",
    "line_search": "where no step lowered Phi",
    "inner": "where an inner problem was not solved: the best filter before it is released",
}


def list_training(findings: Mapping[str, Any], *, drawn: bool = True) -> Iterator[PageSection]:
    """Pictures of the descent, where drawn, and a table of every task's loss at start and end."""
    found = findings.get("training")
    if not found:
        return
    history, columns = np.array(found["history"], np.float64), found["columns"]
    tasks, baselines = found["tasks"], np.array(found["baselines"])
    first = slice(0, len(THEMES["light"].series))  # no two series share a colour
    pictures: tuple[Picture, ...] = ()
    if drawn:
        phi = draw_themes(lambda theme: plot_phi(history, columns, theme=theme))
        losses = draw_themes(
            lambda theme: plot_losses(history, columns, tasks[first], baselines[first], theme=theme)
        )
        pictures = (
            Picture(*phi, "Phi over rounds."),
            Picture(*losses, "Loss of every task, as a share of the best constant guess."),
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
    more = " Losses beyond the tenth are in the table alone." if len(tasks) > first.stop else ""
    yield PageSection("How it was learned", text + more, rows, True, pictures)


def _say_bound(bound: float | None, phi: Any) -> str:
    """What Hamm's Theorem 4 says of new records, and whether that is anything."""
    if bound is None:
        return ""
    gained = float(phi[0] - phi.min())
    said = f" On new records Phi is at most {format_number(bound)} nats higher in expectation"
    # Theorem 4 of Hamm 2017 bounds a supremum over filters: with few records it says nothing.
    if bound >= gained:
        return (
            f"{said}: more than the {format_number(gained)} that training gained, so that this "
            "bound is vacuous; the audit judges on records that were held out."
        )
    return f"{said}, of the {format_number(gained)} that training gained."
