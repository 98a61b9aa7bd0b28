"""``privpipe open``: the report of a release in a browser, where there is one."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Any

from privpipe.errors import StoreError
from privpipe.report.console import say
from privpipe.store.access.location import join, shown
from privpipe.store.arrays.headers import companion_url


def open_command(release: str, *, public: bool, as_json: bool) -> dict[str, Any]:
    """Open the report of a release, or say where it is.

    Raises
    ------
    StoreError
        If the release has no report on this machine.
    """
    page = join(companion_url(release, "report"), "public.html" if public else "report.html")
    path = Path(page.removeprefix("file://"))
    if not path.is_file():
        raise StoreError(
            f"There is no report at {shown(page)} on this machine.",
            remedy="`privpipe report RELEASE` renders it again from its JSON; fetch the report "
            "of a release elsewhere first.",
            code="missing",
        )
    opened = _has_window() and webbrowser.open(path.resolve().as_uri())
    if not as_json:
        say(f"{shown(page)}" + ("" if opened else "  (no browser here: open it by hand)"))
    return {"release": shown(release), "page": shown(page), "opened": bool(opened)}


def _has_window() -> bool:
    """Whether a browser shows a window; one of text would take over the terminal."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    return "BROWSER" in os.environ or type(found) is not webbrowser.GenericBrowser
