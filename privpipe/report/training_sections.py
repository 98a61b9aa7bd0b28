"""How a filter was learned: Phi and losses over the rounds, and what is known of new records."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from privpipe.protocols import FloatArray
from privpipe.report.page import PageSection, Picture
from privpipe.report.style import MARKERS, THEMES, ThemeName, draw_themes, finish_figure, new_figure
from privpipe.report.tables import format_number


def plot_rounds(
    rounds: FloatArray,
    values: Mapping[str, FloatArray],
    label: str,
    *,
    guess: float | None = None,
    theme: ThemeName = "light",
) -> Figure:
    """Some series over the rounds of a fit.

    Parameters
    ----------
    rounds : (n_iterations,)
    values
        (n_iterations,) each, by name.
    label
        Of the values' axis.
    guess
        What guessing reaches, drawn as a line.
    theme
        "light" or "dark".
    """
    figure, axes, look = new_figure(theme)
    for color, marker, (name, series) in zip(look.series, MARKERS, values.items(), strict=False):
        axes.plot(rounds, series, color=color, marker=marker, markersize=5.5, label=name)
    if guess is not None:
        axes.axhline(guess, color=look.faint, linestyle="--", linewidth=1, label="guessing")
    axes.set(xlabel="rounds", ylabel=label)
    finish_figure(axes, look)
    return figure


def scale_losses(
    at: Mapping[str, FloatArray], tasks: Sequence[str], baselines: FloatArray
) -> dict[str, FloatArray]:
    """Each task's loss as a share of the best constant guess.

    A private loss at 1 says that the trained adversary does no better than guessing; a target's
    loss should be far below.

    Parameters
    ----------
    at
        Columns of a history by name; losses are ``loss_<task>``.
    tasks
        In the order of `baselines`.
    baselines : (n_tasks,)
        Entropy of the classes in nats, or 1 for a number.
    """
    return {name: at[f"loss_{name}"] / guess for name, guess in zip(tasks, baselines, strict=True)}


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
    at = dict(zip(columns, history.T, strict=True))
    first = slice(0, len(THEMES["light"].series))  # no two series share a colour
    pictures: tuple[Picture, ...] = ()
    if drawn:
        names = {"phi": "training records", "held_out_phi": "held-out records"}
        phi = {label: at[name] for name, label in names.items() if name in at}
        draw_phi = partial(plot_rounds, at["rounds"], phi, "Phi (nats)")
        shares = scale_losses(at, tasks[first], baselines[first])
        label = "loss / best constant guess"
        draw_losses = partial(plot_rounds, at["rounds"], shares, label, guess=1.0)
        pictures = (
            Picture(*draw_themes(draw_phi), "Phi over rounds."),
            Picture(
                *draw_themes(draw_losses),
                "Loss of every task, as a share of the best constant guess.",
            ),
        )
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
