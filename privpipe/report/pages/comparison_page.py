"""The page of a comparison: one table, one figure, and what every entry says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from privpipe.report.comparison_figure import plot_trade_off
from privpipe.report.pages.page import Picture, Section, render_page
from privpipe.report.tables import format_limits

if TYPE_CHECKING:
    import pandas as pd

TEXT = (
    "Every entry was trained on the same records and judged by the same adversaries on the same "
    "held-out sample; nothing was published. The gain is what the strongest adversary has beyond "
    "knowing the wanted answer, of the variable that is told most; the loss is that of the wanted "
    "prediction that loses most. An entry is on the front where no other does better in one and "
    "no worse in the other. Limits of one entry hold together; differences between entries that "
    "overlap are not shown to be differences. Choosing the best of many by one sample flatters "
    "it: its own run judges it again."
)


def tabulate_comparison(comparison: Mapping[str, Any]) -> pd.DataFrame:
    """One row per entry: verdict, gain, loss, front."""
    import pandas as pd  # slow to load

    return pd.DataFrame([_describe(one) for one in comparison["entries"]])


def _describe(one: Mapping[str, Any]) -> dict[str, str]:
    if "error" in one:
        return {
            "entry": one["label"],
            "verdict": "unknown",
            "gate": f"no: {one['code']}",
            "gain": "-",
            "loss of the wanted prediction": "-",
            "front": "",
        }
    return {
        "entry": one["label"],
        "verdict": one["verdict"],
        "gate": "would pass" if one["would_pass"] else "would fail",
        "gain": _limits(one["gain"]),
        "loss of the wanted prediction": _limits(one["loss"]),
        "front": "yes" if one["on_front"] else "",
    }


def _limits(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    return format_limits(found["estimate"], found["lower"], found["upper"])


def render_comparison(comparison: Mapping[str, Any], *, version: str = "") -> str:
    """The page as HTML, from what ``compare.json`` holds."""
    entries = comparison["entries"]
    pictures: tuple[Picture, ...] = ()
    if any(one.get("gain") and one.get("loss") for one in entries):
        allowed = comparison["limits"]["confidential_advantage_max"]
        light, dark = (
            plot_trade_off(entries, allowed=allowed, theme=theme) for theme in ("light", "dark")
        )
        pictures = (Picture(light, dark, "Gain against loss of every entry, with limits."),)
    sections = [
        Section("Side by side", TEXT, pictures, tabulate_comparison(comparison)),
        *(
            Section(one["label"], one.get("reason") or one.get("error", ""), folded=True)
            for one in entries
        ),
    ]
    facts = {"Made": comparison["made"], "Source": comparison["source"]}
    return render_page("Comparison", sections, facts=facts, version=version)
