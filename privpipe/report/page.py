"""One self-contained page: a verdict, tables and figures, in light or dark as the reader's.

A page holds numbers about records and names of variables, no value of a record; nothing in it
is loaded from elsewhere.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template

from privpipe.errors import printable

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = {
    "safe": "No adversary found more than is allowed.",
    "leaks": "An adversary found more than is allowed.",
    "not protected": "Single records are given away by what the release is.",
    "unproven": "The limits reach above what is allowed: more test records are needed.",
    "unknown": "Some attacks failed, so that nothing can be said.",
}


@dataclass(frozen=True)
class Picture:
    """A figure as SVG text in both themes, with the words for those who do not see it."""

    light: str
    dark: str
    description: str


@dataclass(frozen=True)
class PageSection:
    """A heading with text, pictures, drawings (SVG elements) and a table; any may be missing."""

    title: str
    text: str = ""
    pictures: tuple[Picture, ...] = ()
    table: pd.DataFrame | None = None
    folded: bool = False
    drawings: tuple[str, ...] = ()


def render_page(
    title: str,
    sections: Sequence[PageSection],
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
        # The name of a style.
        verdict=verdict.replace(" ", "-"),
        verdict_text=verdict_text or VERDICTS.get(verdict, ""),
        verdict_name=verdict_name or verdict,
        facts=dict(facts or {}),
        sections=[_describe(section) for section in sections],
        version=version,
    )


def render_markdown(
    title: str, sections: Sequence[PageSection], *, verdict: str, facts: Mapping[str, str]
) -> str:
    """The page as Markdown, without its pictures; nothing in names or texts acts as markup.

    Parameters
    ----------
    title, sections, facts
        As `render_page`.
    verdict
        What the first paragraph says.
    """
    listed = "\n".join(f"- {name}: {_escape(value)}" for name, value in facts.items())
    parts = [f"# {title}", f"**{_escape(verdict)}**", listed]
    for section in sections:
        table = section.table
        written = "" if table is None or table.empty else _write_table(table)
        parts += [f"## {_escape(section.title)}", _escape(section.text), written]
    return "\n\n".join(part for part in parts if part) + "\n"


def unescape_markdown(text: str) -> str:
    r"""Markdown for a terminal, where no backslash hides a sign.

    >>> unescape_markdown(r"local\_dp, a\|b")
    'local_dp, a|b'
    """
    return re.sub(rf"\\({MARKUP})", r"\1", text)


MARKUP = r"[\\`*_{}\[\]<>()#+!|~]"
"""Signs that Markdown may take for its own."""


def _escape(text: object) -> str:
    return re.sub(f"({MARKUP})", r"\\\1", printable(str(text))).replace("\n", " ")


def _write_table(table: pd.DataFrame) -> str:
    """Without tabulate's guesses at numbers: cells are texts that were rounded already."""
    cells = table.fillna("").map(_escape)
    return str(cells.to_markdown(index=False, disable_numparse=True))


@cache
def _page_template() -> Template:
    """Compiled once: to compile it takes longer than to render it."""
    # Names of variables are data; a field that is missing must fail, not vanish.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(
        resources.files("privpipe.report").joinpath("templates/page.html").read_text("utf-8")
    )


def _describe(section: PageSection) -> dict[str, Any]:
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


def _embed(svg: str) -> str:
    # An image of its own: identifiers inside one SVG cannot meet those of another.
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
