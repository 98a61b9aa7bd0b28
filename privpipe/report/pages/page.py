"""One self-contained page: a verdict, tables and figures, in light or dark as the reader's.

A page holds numbers about records and names of variables, no value of a record; nothing in it
is loaded from elsewhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template
from matplotlib.figure import Figure

from privpipe.report.attack_figure import plot_attacks, plot_group_curve
from privpipe.report.style import ThemeName, render_svg
from privpipe.report.tables import format_number, summarise_attack_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Picture", "Section", "draw_attacks", "draw_groups", "page_of_attacks", "render_page"]

VERDICTS = {
    "safe": "No adversary found more than is allowed.",
    "leaks": "An adversary found more than is allowed.",
    "not protected": "Single records are given away by what the release is.",
    "unproven": "The limits reach above what is allowed: more test records are needed.",
    "unknown": "Some attacks failed, so that nothing can be said.",
}


@dataclass(frozen=True)
class Picture:
    """A figure in both themes with the words for those who do not see it."""

    light: Figure
    dark: Figure
    description: str


@dataclass(frozen=True)
class Section:
    """A heading with text, pictures, drawings (SVG elements) and a table; any may be missing."""

    title: str
    text: str = ""
    pictures: tuple[Picture, ...] = ()
    table: pd.DataFrame | None = None
    folded: bool = False
    drawings: tuple[str, ...] = ()


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    verdict: str = "",
    verdict_text: str = "",
    verdict_name: str = "",
    facts: Mapping[str, str] | None = None,
    version: str = "",
) -> str:
    """The page as HTML.

    Parameters
    ----------
    title
        Heading of the page.
    sections
        In order.
    verdict
        "safe", "not protected", "leaks", "unproven" or "unknown" for a banner; none when empty.
    verdict_text
        What the banner says beside it; what the verdict means, when empty.
    verdict_name
        What it calls the verdict; the verdict itself, when empty.
    facts
        Names and values listed under the heading, such as run, method and options.
    version
        Version of the package, for the footer.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside.
    """
    return _page_template().render(
        title=title,
        verdict=verdict.replace(" ", "-"),
        verdict_text=verdict_text or VERDICTS.get(verdict, ""),
        verdict_name=verdict_name or verdict,
        facts=dict(facts or {}),
        sections=[_describe(section) for section in sections],
        version=version,
    )


@cache
def _page_template() -> Template:
    """Compiled once: to compile it takes longer than to render it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(
        resources.files("privpipe.report").joinpath("templates/page.html").read_text("utf-8")
    )


def page_of_attacks(report_json: str, *, title: str = "Audit", version: str = "") -> str:
    """The page of an attack report, from its JSON form.

    Parameters
    ----------
    report_json
        What ``AttackReport.to_json`` gives.
    title, version
        As `render_page`.
    """
    import pandas as pd  # slow to load

    document = json.loads(report_json)
    table = pd.DataFrame(document["table"])
    numbers = ["estimate", "lower", "upper", "baseline", "advantage", "advantage_upper"]
    numbers += ["gain", "gain_lower", "gain_upper"]
    table[numbers] = table[numbers].astype(float)
    sections = [Section("Decisions", _explain(document), table=_decisions(document))]
    for target in dict.fromkeys(table["target"]):
        rows = table[table["target"] == target]
        picture = draw_attacks(rows, document["options"]["max_advantage"], str(target))
        curve = draw_groups(rows, document["options"]["max_advantage"], str(target))
        sections.append(Section(str(target), pictures=(picture, *curve)))
    sections.append(Section("All attacks", table=summarise_attack_table(table), folded=True))
    sections.append(Section("Options", table=_options(document), folded=True))
    facts = {
        "Records attacked": f"{document['n_records']:,} of {document['n_given']:,}",
        "Withheld by the release": f"{document['n_withheld']:,}",
        "Seen by the sanitiser": f"{document['n_seen']:,}",
    }
    return render_page(title, sections, verdict=document["verdict"], facts=facts, version=version)


def _explain(document: Mapping[str, Any]) -> str:
    options = document["options"]
    return (
        "Adversaries were trained on released records with their labels and judged on others. "
        "Advantage is the share of the way from guessing to knowing; a gain is the part of it "
        "beyond knowing the wanted answer, which was to be kept. A variable leaks where the lower "
        f"limit of a gain is above {options['max_advantage']:g} (of a true-positive rate, "
        f"{options['max_exposed']:g} beyond its false alarms) and is safe where every upper limit "
        f"is within. All verdicts hold together with confidence {options['level']:g}. A verdict "
        "speaks of these adversaries and this sample; it proves nothing about others. "
        + " ".join(decision["reason"] for decision in document["decisions"])
    )


def _decisions(document: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd  # slow to load

    def number(value: float | None) -> str:
        return "-" if value is None else format_number(value)

    return pd.DataFrame([
        {
            "variable": d["target"],
            "verdict": d["verdict"],
            "strongest": f"{d['strongest'].replace('_', ' ')} ({d['score']})",
            "score": number(d["estimate"]),
            "of a guess": number(d["baseline"]),
            "advantage": number(d["advantage"]),
            "at least": number(d["advantage_lower"]),
            "at most": number(d["advantage_upper"]),
            "beyond the wanted answer": number(d["gain"]),
            "beyond, at most": number(d["gain_upper"]),
            "allowed": number(d["allowed"]),
            "on raw records": number(d["control_advantage"]),
            "on noise": number(d["noise_advantage"]),
            "intervals": str(d["n_compared"]),
            "failed": str(d["n_unknown"]),
        }
        for d in document["decisions"]
    ])  # fmt: skip


def _options(document: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd  # slow to load

    items = document["options"].items()
    text = {k: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in items}
    return pd.DataFrame({"option": list(text), "value": list(text.values())})


def draw_attacks(rows: pd.DataFrame, allowed: float, target: str) -> Picture:
    """The interval figure of one variable, from its rows of an attack report's table."""

    def draw(theme: ThemeName) -> Figure:
        return plot_attacks(rows, allowed=allowed, title=target, theme=theme)

    return Picture(draw("light"), draw("dark"), f"Advantage of every adversary on {target}.")


def draw_groups(rows: pd.DataFrame, allowed: float, target: str) -> list[Picture]:
    """The curve over records of one group, where a variable was attacked by group."""
    rows = rows[(rows["source"] == "groups") & (rows["score"] == "accuracy")]
    if rows.empty:
        return []

    def draw(theme: ThemeName) -> Figure:
        return plot_group_curve(rows, allowed=allowed, title=target, theme=theme)

    about = f"Advantage on {target} of who knows several records of one group."
    return [Picture(draw("light"), draw("dark"), about)]


def _describe(section: Section) -> dict[str, Any]:
    table = section.table
    return {
        "title": section.title,
        "text": section.text,
        "folded": section.folded,
        "pictures": [
            {"light": _embed(p.light), "dark": _embed(p.dark), "description": p.description}
            for p in section.pictures
        ],
        "drawings": list(section.drawings),
        "columns": [] if table is None else [str(c).replace("_", " ") for c in table.columns],
        "rows": [] if table is None else table.astype(str).to_numpy().tolist(),
    }


def _embed(figure: Figure) -> str:
    # An image of its own: identifiers inside one SVG cannot meet those of another.
    encoded = base64.b64encode(render_svg(figure).encode()).decode()
    return f"data:image/svg+xml;base64,{encoded}"
