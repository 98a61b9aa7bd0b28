"""The page of a comparison: one table, one figure, and what every entry says."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from privpipe.report.audit_text import say
from privpipe.report.page import PageSection, Picture, render_page
from privpipe.report.published_findings import say_promised
from privpipe.report.style import MARKERS, ThemeName, draw_themes, finish_figure, new_figure
from privpipe.report.tables import Rows, show_limits


def plot_trade_off(entries: Rows, *, allowed: float, theme: ThemeName = "light") -> Figure:
    """Gain of the strongest adversary against the loss of utility, with limits and the front.

    Parameters
    ----------
    entries
        Of ``compare.json``, with a gain and a loss: what failed has no place in the plane, and its
        reason on the page.
    allowed
        Largest gain allowed, drawn as a line.
    theme
        "light" or "dark".
    """
    figure, axes, look = new_figure(theme)
    for i, e in enumerate(entries):
        gain, loss = e["gain"], e["loss"]
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
            label=e["label"],
        )
    # By gain: the line between neighbours crosses no other.
    front = sorted((e["gain"]["estimate"], e["loss"]["estimate"]) for e in entries if e["on_front"])
    axes.plot(*zip(*front, strict=True), color=look.faint, linewidth=1, zorder=0, label="front")
    axes.axvline(allowed, color=look.limit, linewidth=1.4, label=f"allowed ({allowed:g})")
    axes.axvline(0.0, color=look.faint, linestyle="--", linewidth=1)
    gain = "gain of the strongest adversary: 0 is the target alone, 1 is knowing"
    axes.set(xlabel=gain, ylabel="loss of the target's prediction")
    finish_figure(axes, look)
    return figure


def tabulate_comparison(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per entry: verdict, promise, gain, loss, front."""
    return [
        {
            "entry": one["label"],
            "verdict": one.get("verdict", "unknown"),
            "gate": _say_gate(one),
            "promise": _say_promise(one.get("guarantee") or {}),
            "gain": show_limits(one.get("gain")),
            "loss of the target": show_limits(one.get("loss")),
            "front": "yes" if one["on_front"] else "",
        }
        for one in comparison["entries"]
    ]


def _say_gate(one: Mapping[str, Any]) -> str:
    if "error" in one:
        return f"no: {one['code']}"
    return "would pass" if one["would_pass"] else "would fail"


def _say_promise(guarantee: Mapping[str, Any]) -> str:
    number = guarantee.get("number")
    return "-" if number is None else f"{say_promised(number)} {guarantee['unit']}"


def render_comparison(comparison: Mapping[str, Any], *, version: str = "") -> str:
    """The page as HTML, from what ``compare.json`` holds."""
    entries = comparison["entries"]
    pictures: tuple[Picture, ...] = ()
    if known := [one for one in entries if one.get("gain") and one.get("loss")]:
        allowed = comparison["limits"]["confidential_advantage_max"]
        drawn = draw_themes(lambda theme: plot_trade_off(known, allowed=allowed, theme=theme))
        pictures = (Picture(*drawn, "Gain against loss of every entry, with limits."),)
    sections = [
        PageSection(
            "Side by side", say("compared"), tabulate_comparison(comparison), pictures=pictures
        ),
        *(
            PageSection(one["label"], one.get("reason") or one.get("error", ""), folded=True)
            for one in entries
        ),
    ]
    facts = {"Made": comparison["made"], "Source": comparison["source"]}
    return render_page("Comparison", sections, facts=facts, version=version)
