"""The trade-off of a comparison: what the wanted prediction loses against what is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from privpipe.errors import InputError
from privpipe.report.style import MARKERS, ThemeName, finish_figure, new_figure


def plot_trade_off(
    entries: Sequence[Mapping[str, Any]], *, allowed: float, theme: ThemeName = "light"
) -> Figure:
    """Gain of the strongest adversary against the loss of utility, with limits and the front.

    Parameters
    ----------
    entries
        Of ``compare.json``; those without a gain or a loss are left out.
    allowed
        Largest gain allowed, drawn as a line.
    theme
        "light" or "dark".

    Raises
    ------
    InputError
        If no entry has both.
    """
    known = [one for one in entries if one.get("gain") and one.get("loss")]
    if not known:
        raise InputError("No entry was measured.", remedy="See what each entry says.")
    figure, axes, look = new_figure(theme)
    for i, one in enumerate(known):
        gain, loss = one["gain"], one["loss"]
        axes.errorbar(
            gain["estimate"],
            loss["estimate"],
            xerr=[[gain["estimate"] - gain["lower"]], [gain["upper"] - gain["estimate"]]],
            yerr=[[loss["estimate"] - loss["lower"]], [loss["upper"] - loss["estimate"]]],
            fmt=MARKERS[i % len(MARKERS)],
            color=look.series[i % len(look.series)],
            markersize=7,
            capsize=2.5,
            elinewidth=1,
            label=one["label"],
        )
    front = sorted(
        (one["gain"]["estimate"], one["loss"]["estimate"]) for one in known if one["on_front"]
    )
    axes.plot(*zip(*front, strict=True), color=look.faint, linewidth=1, zorder=0, label="front")
    axes.axvline(allowed, color=look.limit, linewidth=1.4, label=f"allowed ({allowed:g})")
    axes.axvline(0.0, color=look.faint, linestyle="--", linewidth=1)
    axes.set(
        xlabel="gain of the strongest adversary: 0 is the wanted answer alone, 1 is knowing",
        ylabel="loss of the wanted prediction",
    )
    finish_figure(axes, look, title="")
    return figure
