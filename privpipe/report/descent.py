"""How a filter was learned: Phi and the losses of its tasks over the rounds, as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from privpipe.protocols import FloatArray

__all__ = ["draw_descent"]


def draw_descent(
    path: str,
    history: FloatArray,
    columns: Sequence[str],
    task_names: Sequence[str],
    baselines: FloatArray,
) -> None:
    """Draw Phi, and each task's loss as a share of the best constant guess, over rounds.

    Parameters
    ----------
    path
        Of the file; its ending says the format (png, svg, pdf).
    history : (n_iterations, n_columns)
        As a minimax filter keeps it.
    columns
        Names of the columns of `history`.
    task_names
        Tasks in the order of `baselines`; their losses are the columns ``loss_<task>``.
    baselines : (n_tasks,)
        Entropy of the classes in nats, or 1 for a number.

    Notes
    -----
    A private loss at 1 says that the trained adversary does no better than guessing; a target's
    loss should be far below.
    """
    from matplotlib.figure import Figure

    at = {name: history[:, j] for j, name in enumerate(columns)}
    figure = Figure(figsize=(8, 3.4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(at["rounds"], at["phi"], marker=".", label="training records")
    if "held_out_phi" in at:
        left.plot(at["rounds"], at["held_out_phi"], marker=".", label="held-out records")
        left.legend(fontsize=8)
    left.set(xlabel="rounds", ylabel="Phi (nats)")
    for name, baseline in zip(task_names, baselines, strict=True):
        right.plot(at["rounds"], at[f"loss_{name}"] / baseline, marker=".", label=name)
    right.axhline(1.0, color="0.6", linewidth=0.8)
    right.set(xlabel="rounds", ylabel="loss / best constant guess", ylim=(0, None))
    right.legend(fontsize=8)
    figure.savefig(path)
