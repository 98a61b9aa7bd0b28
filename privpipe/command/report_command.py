"""``privpipe report``: the pages of an audit, again from its JSON."""

from __future__ import annotations

import json
from typing import Any

import fsspec

from privpipe.errors import FormatError, StoreError
from privpipe.pipeline.stages.report_writing import write_pages
from privpipe.report.console import say
from privpipe.report.pages.release_page import FORMAT
from privpipe.store.access.location import join, shown
from privpipe.store.arrays.headers import companion_url


def report_command(release: str, *, public: bool, as_json: bool) -> dict[str, Any]:
    """Render both pages and name one.

    Raises
    ------
    StoreError
        If there is no audit beside the release.
    FormatError
        If it is not one that this version can read.
    """
    folder = companion_url(release, "report")
    try:
        with fsspec.open(join(folder, "audit.json"), encoding="utf-8", mode="rt") as file:
            findings = json.load(file)
    except FileNotFoundError:
        raise StoreError(
            f"There is no audit of {shown(release)} at {shown(folder)}.",
            remedy="Run `privpipe audit` or `privpipe run` first.",
            code="missing",
        ) from None
    except ValueError:
        raise FormatError(f"{shown(folder)}/audit.json is no JSON.", remedy="Run again.") from None
    if not isinstance(findings, dict) or findings.get("format_version") != FORMAT:
        raise FormatError(
            f"{shown(folder)}/audit.json is not of format {FORMAT}.",
            remedy="Run again with this version of privpipe.",
        )
    write_pages(folder, findings)
    page = f"{shown(folder)}/{'public' if public else 'report'}.html"
    if not as_json:
        say(page)
    return {"release": shown(release), "page": page, "verdict": findings["adversaries"]["verdict"]}
