"""Whether every link of the built site leads somewhere in it, and nothing is loaded from elsewhere.

``python -m docs.making.links docs/_build/html``
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("source", "srcset"), ("link", "href")}
HARMLESS = ("canonical", "alternate", "search", "index", "next", "prev", "author")


class _Page(HTMLParser):
    """Links, anchors and what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name, value in attrs if name in ("id", "name") and value}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if given.get("rel") in HARMLESS:
            return
        self.loads += [str(v) for name, v in attrs if (tag, name) in LOADS and v]


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def find_problems(site: Path) -> list[str]:
    """One line per link that leads nowhere, and per thing that is fetched from a network."""
    problems = []
    for path in sorted(site.rglob("*.html")):
        page = _read(path)
        name = path.relative_to(site)
        problems += [
            f"{name} loads {place} from a network"
            for place in page.loads
            if urlsplit(place).netloc or place.startswith("http")
        ]
        for place in (*page.links, *page.loads):
            if problem := _follow(path, place):
                problems.append(f"{name}: {problem}")
    return problems


def _follow(path: Path, place: str) -> str:
    parts = urlsplit(place)
    if parts.scheme in ("http", "https", "mailto", "data") or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return f"{place} is not there"
    anchor = unquote(parts.fragment)
    if anchor and target.suffix == ".html" and anchor not in _read(target).anchors:
        return f"{place} has no such place"
    return ""


if __name__ == "__main__":
    found = find_problems(Path(sys.argv[1]))
    print("\n".join(found) or "Every link leads somewhere.")
    sys.exit(bool(found))
