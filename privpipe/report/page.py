"""One self-contained page: a verdict, tables and figures, in light or dark as the reader's.

A page holds numbers about records and names of variables, no value of a record; nothing in it
is loaded from elsewhere.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from privpipe.errors import printable

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
    """A heading with text, a table, pictures and drawings; any may be missing.

    Drawings are macros of ``templates/drawings.svg`` with their arguments.
    """

    title: str
    text: str = ""
    rows: Sequence[Mapping[str, object]] = ()
    folded: bool = False
    pictures: tuple[Picture, ...] = ()
    drawings: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    @property
    def columns(self) -> list[str]:
        """Of the table: the keys of all rows, in the order in which they come."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


@dataclass(frozen=True)
class FirstScreen:
    """What a reader sees without scrolling.

    Parameters
    ----------
    line
        The verdict, in at most 15 words.
    released
        What is released, in a sentence.
    reliance
        Against whom the verdict holds.
    exposed
        What is not protected, linkability first.
    drawing
        The picture; none on a public page.
    """

    line: str
    released: str
    reliance: str
    exposed: tuple[str, ...]
    drawing: tuple[str, Mapping[str, Any]] | None = None


def render_page(
    title: str,
    sections: Sequence[PageSection],
    *,
    verdict: str = "",
    verdict_text: str = "",
    verdict_name: str = "",
    facts: Mapping[str, str] | None = None,
    version: str = "",
    screen: FirstScreen | None = None,
    terms: Mapping[str, str] | None = None,
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
    screen
        The first screen, in place of `verdict_text`.
    terms
        Meanings of terms, listed at the end; where one heads a column it leads there.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside.
    """
    return TEMPLATES.get_template("page.html").render(
        title=title,
        # The name of a style.
        verdict=verdict.replace(" ", "-"),
        verdict_text=verdict_text or VERDICTS.get(verdict, ""),
        verdict_name=verdict_name or verdict,
        facts=facts or {},
        sections=sections,
        version=version,
        screen=screen,
        terms=terms or {},
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
        parts += [f"## {_escape(section.title)}", _escape(section.text), _write_table(section)]
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


def _write_table(section: PageSection) -> str:
    """Without tabulate's guesses at numbers: cells are texts that were rounded already."""
    import pandas as pd  # slow to load

    if not section.rows:
        return ""
    cells = pd.DataFrame(section.rows).fillna("").map(_escape)
    return str(cells.to_markdown(index=False, disable_numparse=True))


# Names of variables are data: all that is filled in is escaped, and a field that is missing must
# fail, not vanish. Templates are compiled once: that takes longer than to render them.
TEMPLATES = Environment(
    loader=PackageLoader("privpipe.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)
# An image of its own: identifiers inside one SVG cannot meet those of another.
TEMPLATES.filters["embed"] = lambda s: f"data:image/svg+xml;base64,{b64encode(s.encode()).decode()}"
TEMPLATES.filters["slug"] = lambda name: "term-" + re.sub(r"\W+", "-", str(name).lower())
