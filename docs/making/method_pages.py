"""One page per method: its row of the table, and what somebody wrote about it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from docs.making.configuration import tabulate_options
from docs.making.figures import DRAWN
from privpipe.protocols import Method
from privpipe.sanitizers import METHODS

__all__ = ["write_method_pages"]

RELEASES = {
    "rows": "one released record per record",
    "surrogate": "records of its own, nobody's",
}


def write_method_pages(bodies: Path) -> dict[str, str]:
    """Pages by their place in the site: one per method, and one that lists them."""
    pages = {f"methods/{name}.md": _write(method, bodies) for name, method in METHODS.items()}
    rows = [
        f"| [`{name}`]({name}.md) | {method.promise} | {method.source} |"
        for name, method in METHODS.items()
    ]
    toctree = ["```{toctree}", ":hidden:", "", *METHODS, "```"]
    head = ["| method | promise | source |", "|---|---|---|"]
    told = (
        "[Choose a method](../howto/choose_a_method.md) says which one to begin with. A promise "
        "is about what stands there and nothing else: see [what is not promised]"
        "(../explanation/not_promised.md)."
    )
    pages["methods/index.md"] = "\n".join(["# Methods", "", told, "", *head, *rows, "", *toctree])
    return pages


def _write(method: Method[Any], bodies: Path) -> str:
    body = bodies / f"{method.name}.md"
    text = body.read_text() if body.exists() else _read_module(method)
    figure = (
        [
            f"```{{image}} /_static/figures/{method.name}.svg",
            f":alt: What {method.name} does to the records of the figure",
            "```",
            "",
            DRAWN[method.name],
            "",
        ]
        if method.name in DRAWN
        else []
    )
    return "\n".join(
        [
            f"# `{method.name}`",
            "",
            f"**Promise** {method.promise}  ",
            f"**Releases** {RELEASES[method.releases]}  ",
            f"**Source** {method.source}",
            "",
            text.strip(),
            "",
            *figure,
            "## Keys",
            "",
            f'In a configuration, `[method] name = "{method.name}"`:',
            "",
            *tabulate_options(method.name),
            "",
        ]
    )


def _read_module(method: Method[Any]) -> str:
    """What the first lines of the method's module say, as Markdown."""
    text = str(importlib.import_module(method.options.__module__).__doc__)
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"`\1`", text)
