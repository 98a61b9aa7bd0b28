"""``privpipe report`` and ``open``: the pages of an audit, again from its JSON, or in a browser."""

import json
import os
import webbrowser
from pathlib import Path
from typing import Any

import fsspec

from privpipe.errors import FormatError, StoreError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.report_writing import write_pages
from privpipe.report.console import say
from privpipe.report.release_page import FORMAT
from privpipe.store.access.location import join, shown
from privpipe.store.arrays.layout import companion_url


def report_command(release: str, *, public: bool) -> dict[str, Any]:
    """Render all pages and name one; of a configuration with what its ``[about]`` says now.

    Raises
    ------
    StoreError
        If there is no audit beside the release.
    FormatError
        If it is not one that this version can read.
    """
    declared = None
    if release.endswith(".toml"):
        options = read_options(release)
        release, declared = options.release.path, dict(options.about)
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
    if declared is not None:  # written since the run
        findings["declared"] = declared
    write_pages(folder, findings)
    page = shown(_find_page(release, public))
    say(page)
    return {"release": shown(release), "page": page, "verdict": findings["adversaries"]["verdict"]}


def open_command(release: str, *, public: bool) -> dict[str, Any]:
    """Open the report of a release, or say where it is.

    Raises
    ------
    StoreError
        If the release has no report on this machine.
    """
    page = _find_page(release, public)
    path = Path(page.removeprefix("file://"))
    if not path.is_file():
        raise StoreError(
            f"There is no report at {shown(page)} on this machine.",
            remedy="`privpipe report RELEASE` renders it again from its JSON; fetch the report "
            "of a release elsewhere first.",
            code="missing",
        )
    opened = _has_window() and webbrowser.open(path.resolve().as_uri())
    say(f"{shown(page)}" + ("" if opened else "  (no browser here: open it by hand)"))
    return {"release": shown(release), "page": shown(page), "opened": bool(opened)}


def _find_page(release: str, public: bool) -> str:
    return join(companion_url(release, "report"), "public.html" if public else "report.html")


def _has_window() -> bool:
    """Whether a browser shows a window; one of text would take over the terminal."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    # A generic browser is one of text, unless the user named it.
    return "BROWSER" in os.environ or type(found) is not webbrowser.GenericBrowser
