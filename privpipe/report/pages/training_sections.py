"""How a filter was learned: Phi and losses over the rounds, and what is known of new records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from privpipe.report.pages.page import PageSection, Picture
from privpipe.report.pages.training_curve import plot_losses, plot_phi
from privpipe.report.style import THEMES
from privpipe.report.tables import format_number

STOPPED = {
    "iterations": "after the most iterations allowed",
    "progress": "where Phi hardly fell any more",
    "gradient": "where the gradient vanished",
    "held_out": "when Phi on held-out records had stopped falling",
    "line_search": "where no step lowered Phi",
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
